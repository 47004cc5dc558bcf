"""DLRMs in PyTorch: plain, the published code, and a benchmark with table-batched embeddings.

`pytorch`: a DLRM written without embedding libraries, as `perfmodel collect trace --model dlrm`
captures it. Batches are copied into buffers on the device.

`reference`: dlrm_s_pytorch.py of github.com/facebookresearch/dlrm, as recalled. Batches are sent
from pageable memory, pooled rows are concatenated, and the places of the interaction are made on
the host in each step and sent to the device.

`fbgemm`: PyTorch of 2022 with FBGEMM of the same time, one process per GPU, batches from pageable
memory, dense SGD parameter by parameter, the loss copied to the host in every step.
Source: execution graph of DLRM_default, github.com/moderato/param.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import partial

from perfmodel.ops.graph import INPUT, Tensor
from perfmodel.workload.eager.dense import (
    COMPUTE,
    LOSSES,
    Dense,
    Layer,
    bmm,
    dense_layers,
    interact,
    mlp,
    pair_indices,
)
from perfmodel.workload.eager.embedding_bag import (
    add_sparse,
    batched,
    embedding_bag,
    even_bags,
    full_slice,
    index_pairs,
    look_up,
)
from perfmodel.workload.eager.recorder import Recorder, shares
from perfmodel.workload.settings import implementation
from perfmodel.workload.step import Run
from perfmodel.workload.tables import lookups, total_lookups
from perfmodel.workload.training import LABEL, LAST, LEARNING_RATE, backward_and_update

Indices = Iterable[tuple[Tensor, Tensor]]
"""Per table of the rank, flat indices and offsets of its bags."""


@implementation("pytorch", mixed_dims=False, fused_optimizers=False, int32_keys=False)
def pytorch(r: Recorder, run: Run) -> None:
    layers, tables = dense_layers(r, run.workload), _weights(r, run)
    dense, labels, *loaded = _load(r, run)
    indices: Indices = zip(loaded[::2], loaded[1::2], strict=False)
    if len(loaded) == 1:
        numbers = range(len(tables))
        indices = (even_bags(r, r.select(loaded[0], 0, number)) for number in numbers)
    pooled = _bags(r, run, tables, indices)
    features = _module(r, run, dense, layers.bottom, "relu")
    sparse = r.stack(pooled, 1) if run.ranks == 1 else _exchange(r, run, pooled)
    _learn(r, run, layers, features, sparse, tables, labels)


@implementation("reference", mixed_dims=False, fused_optimizers=False, int32_keys=False)
def reference(r: Recorder, run: Run) -> None:
    layers, tables = dense_layers(r, run.workload), _weights(r, run)
    width, bags = run.workload.model.dense_features, run.global_batch
    with r.during(INPUT):
        dense = r.send_from_host((run.batch, width), "fp32", pinned=False)
        flat = [table.lookups(bags) for table in run.tables]
        sent = partial(r.send_from_host, dtype="int64", pinned=False)
        indices = [(sent((count,)), sent((bags,))) for count in flat]
    features = _module(r, run, dense, layers.bottom, "relu")
    pooled = _bags(r, run, tables, indices)
    if run.ranks == 1:
        sparse = r.reshape(r.cat(pooled, 1), (run.batch, len(pooled), run.workload.dim))
    else:
        sparse = _exchange(r, run, pooled)
    _learn(r, run, layers, features, sparse, tables)


FBGEMM = "fbgemm"


@implementation(FBGEMM, mixed_dims=False, int32_keys=False, overheads="lin2022-v100")
def fbgemm(r: Recorder, run: Run) -> None:
    layers, bags = dense_layers(r, run.workload), run.global_batch
    tables = None
    if run.tables:
        dtype = run.workload.implementation.table_precision
        about, optimizer = lookups(run.tables, bags), run.workload.training.table_optimizer
        tables = batched(r, about, dtype=dtype, optimizer=optimizer, is_modern=False)
    width = run.workload.model.dense_features
    with r.during(INPUT):
        indices = r.send_from_host((total_lookups(run.tables, bags),), "int32", pinned=False)
        offsets = r.send_from_host((len(run.tables) * bags + 1,), "int32", pinned=False)
        dense = r.send_from_host((run.batch, width), "fp32", pinned=False)
    features = _module(r, run, dense, layers.bottom, "relu")
    pooled = _nothing(r) if tables is None else look_up(r, tables, indices, offsets, bags)
    if run.ranks == 1:
        sparse = r.reshape(pooled, (run.batch, len(run.tables), run.workload.dim))
    else:
        sparse = _exchanged(r, run, pooled)
    _learn(r, run, layers, features, sparse)


def _weights(r: Recorder, run: Run) -> list[Tensor]:
    made = [r.tensor((table.rows, table.dim)) for table in run.tables]
    r.parameter(*made)
    return made


def _load(r: Recorder, run: Run) -> list[Tensor]:
    """Copy a batch into the buffers that the step reads: features, labels, indices.

    Indices are in one tensor where all tables take the same whole number of rows per sample, else
    flat, with offsets in another, per table.
    """
    bags, poolings = run.global_batch, {table.pooling for table in run.tables}
    shapes: list[tuple[int, ...]]
    if len(poolings) == 1 and float(run.tables[0].pooling).is_integer():
        shapes = [(len(run.tables), bags, int(run.tables[0].pooling))]
    else:
        shapes = [shape for table in run.tables for shape in ((table.lookups(bags),), (bags,))]
    buffers = [
        r.tensor((run.batch, run.workload.model.dense_features)),
        r.tensor((run.batch, 1)),
        *(r.tensor(shape, "int64") for shape in shapes),
    ]
    with r.during(INPUT):
        for buffer in buffers:
            source = r.tensor(buffer.shape, buffer.dtype, place="cpu")
            r.copy(buffer, source, non_blocking=True)
    return buffers


def _bags(r: Recorder, run: Run, tables: Sequence[Tensor], indices: Indices) -> list[Tensor]:
    each = zip(tables, indices, run.attributes, strict=True)
    return [embedding_bag(r, weight, *bags, about) for weight, bags, about in each]


def _module(r: Recorder, run: Run, x: Tensor, stack: Sequence[Layer], last: str) -> Tensor:
    """An MLP, wrapped by DDP where there are several ranks."""
    with r.label(LABEL) if run.ranks > 1 else nullcontext():
        return mlp(r, x, stack, last=last, dtype=COMPUTE[run.workload.implementation.precision])


def _exchange(r: Recorder, run: Run, pooled: Sequence[Tensor]) -> Tensor:
    """Pooled rows of own tables for the global batch -> of all tables for the own batch; of ranks
    with unequal batches sample by sample."""
    shape = (run.ranks, run.batch, -1) if run.fill_frac == 1.0 else (run.global_batch, 1, -1)
    each = [r.reshape(rows, shape) for rows in pooled]
    return _exchanged(r, run, r.stack(each, 1) if each else _nothing(r))


def _nothing(r: Recorder) -> Tensor:
    """What a rank without tables sends."""
    empty = r.tensor((0,))
    r.parameter(empty)
    return empty


def _exchanged(r: Recorder, run: Run, sent: Tensor) -> Tensor:
    """Rows of own tables, in the order of ranks -> `[own batch, all tables, dim]`."""
    width = run.batch * run.workload.dim
    held = [len(shards) * width for shards in run.plan.shards]
    received = r.made("aten::new_empty", (sent, (sum(held),)), (sum(held),), sent.dtype)
    own_dim = len(run.tables) * run.workload.dim
    mine = [count * own_dim for count in shares(run.global_batch, run.ranks)]
    got = r.all_to_all(r.reshape(sent, (-1,)), received, mine, held)
    shape = (len(run.workload.tables), run.batch, -1)
    return r.transpose(r.reshape(got, shape), 0, 1)


def _learn(
    r: Recorder,
    run: Run,
    layers: Dense,
    features: Tensor,
    sparse: Tensor,
    bags: Sequence[Tensor] = (),
    labels: Tensor | None = None,
) -> None:
    """From both kinds of features to the loss and, if it is trained, the optimizers' steps; SGD on
    the rows of `bags` that were looked up.

    Without `labels` they are sent from pageable memory, and the places of the interaction are made
    on the host.
    """
    loss_name, dtype = run.workload.training.loss, COMPUTE[run.workload.implementation.precision]
    is_fbgemm = run.workload.implementation.name == FBGEMM
    if is_fbgemm and run.workload.interaction.kind == "dot":
        joined = _dot(r, run, features, sparse, dtype)
    else:
        places = pair_indices(r, run.workload, place="cpu" if labels is None else "")
        joined = interact(r, run.workload, features, sparse, layers.crosses, dtype, places)
    output = _module(r, run, joined, layers.top, LAST[loss_name])
    if not run.train:
        return
    if labels is None:
        labels = r.send_from_host((run.batch, 1), "fp32", pinned=False)
    loss = LOSSES[loss_name](r, output, labels)
    if is_fbgemm:
        r.to_device(r.detach(loss), "cpu")

    def sparse_sgd(gradients: dict[int, Tensor]) -> None:
        for weight, about in zip(bags, run.attributes, strict=True):
            add_sparse(r, weight, gradients[weight.tensor_id], -LEARNING_RATE, about)

    backward_and_update(r, run, loss, layers.modules, sparse_sgd if bags else None)


def _dot(r: Recorder, run: Run, features: Tensor, sparse: Tensor, dtype: str) -> Tensor:
    """The dot interaction, its places made on the host and sent in each step."""
    batch, dim = features.shape
    joined = r.cast(r.cat([r.reshape(features, (batch, 1, dim)), sparse], 1), dtype)
    products = bmm(r, joined, r.transpose(joined, 1, 2))
    places = pair_indices(r, run.workload, place="cpu")
    vectors = joined.shape[1]
    r.leaf("aten::tril_indices", (vectors, vectors, -1, 4, None, "cpu", False), places)
    rows, columns = (r.view(places, places.shape[1:], (1,)) for _ in range(2))
    r.leaf("aten::unbind", (places, 0), (rows, columns))
    return r.cat([features, index_pairs(r, full_slice(r, products), rows, columns)], 1)

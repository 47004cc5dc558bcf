"""DLRMs in PyTorch: plain, the published code, and a benchmark with table-batched embeddings.

What it stands for: a DLRM written without embedding libraries, as `perfmodel collect trace --model
dlrm` captures it. Batches are copied into buffers on the device.

What it stands for: dlrm_s_pytorch.py of github.com/facebookresearch/dlrm, as recalled. Batches are
sent from pageable memory, pooled rows are concatenated, and the places of the interaction are made
on the host in each step and sent to the device.

What it stands for: PyTorch of 2022 with FBGEMM of the same time, one process per GPU, batches from
pageable memory, dense SGD parameter by parameter, the loss copied to the host in every step.
Source: execution graph of DLRM_default, github.com/moderato/param.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.ops.graph import INPUT, Tensor
from perfmodel.workload.collectives import all_to_all, new_empty
from perfmodel.workload.dense import COMPUTE, Layer, dense_layers, interact, mlp, pair_indices
from perfmodel.workload.eager.arithmetic import LOSSES, bmm
from perfmodel.workload.eager.embedding_bag import embedding_bag, full_slice, index_pairs
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.table_batched import look_up
from perfmodel.workload.eager.tensors import (
    cat,
    copy,
    detach,
    reshape,
    select,
    send_from_host,
    stack,
    to_device,
    transpose,
)
from perfmodel.workload.embedding_tables import (
    fused_tables,
    index_tensors,
    lookup,
    sparse_sgd,
    total_lookups,
    weights,
)
from perfmodel.workload.settings import implementation
from perfmodel.workload.step import Run
from perfmodel.workload.training import LABEL, LAST, backward_and_update


@implementation("pytorch", mixed_dims=False, fused_optimizers=False, int32_keys=False)
def pytorch(r: Recorder, run: Run) -> None:
    """One step of one rank."""
    workload = run.workload
    layers = dense_layers(r, workload)
    tables = weights(r, run)
    dense, labels, *indices = _load(r, run)
    dtype = COMPUTE[workload.implementation.precision]
    pooled = lookup(r, run, tables, indices)
    features = module(r, run, dense, layers.bottom, "relu", dtype)
    sparse = stack(r, pooled, 1) if run.ranks == 1 else exchange(r, run, pooled)
    joined = interact(r, workload, features, sparse, layers.crosses, dtype)
    output = module(r, run, joined, layers.top, LAST[workload.training.loss], dtype)
    if run.train:
        loss = LOSSES[workload.training.loss](r, output, labels)
        backward_and_update(
            r, run, loss, layers.modules, lambda gradients: sparse_sgd(r, run, tables, gradients)
        )


def _load(r: Recorder, run: Run) -> list[Tensor]:
    """Copy a batch into the buffers that the step reads: features, labels, indices."""
    buffers = [
        r.tensor((run.batch, run.workload.model.dense_features)),
        r.tensor((run.batch, 1)),
        *index_tensors(r, run),
    ]
    with r.during(INPUT):
        for buffer in buffers:
            source = r.tensor(buffer.shape, buffer.dtype, place="cpu")
            copy(r, buffer, source, non_blocking=True)
    return buffers


def module(
    r: Recorder, run: Run, x: Tensor, stack: Sequence[Layer], last: str, dtype: str
) -> Tensor:
    """An MLP, wrapped by DDP where there are several ranks."""
    if run.ranks == 1:
        return mlp(r, x, stack, last=last, dtype=dtype)
    with r.label(LABEL):
        return mlp(r, x, stack, last=last, dtype=dtype)


def exchange(r: Recorder, run: Run, pooled: Sequence[Tensor]) -> Tensor:
    """Pooled rows of own tables for the global batch -> of all tables for the own batch."""
    dim, ranks = run.workload.dim, run.ranks
    each = [reshape(r, rows, (ranks, run.batch, -1)) for rows in pooled]
    sent = stack(r, each, 1)
    width = run.batch * dim
    held = [len(shards) * width for shards in run.plan.shards]
    received = new_empty(r, sent, sum(held))
    mine = [len(pooled) * width] * ranks
    got = all_to_all(r, reshape(r, sent, (-1,)), received, mine, held)
    tables = reshape(r, got, (len(run.workload.tables), run.batch, -1))
    return transpose(r, tables, 0, 1)


@implementation("reference", mixed_dims=False, fused_optimizers=False, int32_keys=False)
def reference(r: Recorder, run: Run) -> None:
    """One step of one rank."""
    workload = run.workload
    layers = dense_layers(r, workload)
    tables = weights(r, run)
    with r.during(INPUT):
        dense = send_from_host(r, (run.batch, workload.model.dense_features), "fp32", pinned=False)
        indices = _indices(r, run)
    dtype = COMPUTE[workload.implementation.precision]
    features = module(r, run, dense, layers.bottom, "relu", dtype)
    pooled = [
        embedding_bag(r, weight, flat, offsets, about)
        for weight, (flat, offsets), about in zip(tables, indices, run.attributes, strict=True)
    ]
    sparse = _together(r, pooled) if run.ranks == 1 else exchange(r, run, pooled)
    places = pair_indices(r, workload, place="cpu")
    joined = interact(r, workload, features, sparse, layers.crosses, dtype, places)
    output = module(r, run, joined, layers.top, LAST[workload.training.loss], dtype)
    if run.train:
        labels = send_from_host(r, (run.batch, 1), "fp32", pinned=False)
        loss = LOSSES[workload.training.loss](r, output, labels)
        backward_and_update(
            r, run, loss, layers.modules, lambda gradients: sparse_sgd(r, run, tables, gradients)
        )


def _indices(r: Recorder, run: Run) -> list[tuple[Tensor, Tensor]]:
    """Flat indices and offsets of each table."""
    bags = run.global_batch
    return [
        (
            send_from_host(r, (table.lookups(bags),), "int64", pinned=False),
            send_from_host(r, (bags,), "int64", pinned=False),
        )
        for table in run.tables
    ]


def _together(r: Recorder, pooled: list[Tensor]) -> Tensor:
    batch, dim = pooled[0].shape
    return reshape(r, cat(r, pooled, 1), (batch, len(pooled), dim))


@implementation("fbgemm", mixed_dims=False, int32_keys=False, overheads="lin2022-v100")
def fbgemm(r: Recorder, run: Run) -> None:
    """One step of one rank."""
    workload = run.workload
    layers = dense_layers(r, workload)
    bags = run.global_batch
    tables = fused_tables(r, run, run.tables, bags, is_modern=False)
    with r.during(INPUT):
        indices = send_from_host(r, (total_lookups(run.tables, bags),), "int32", pinned=False)
        offsets = send_from_host(r, (len(run.tables) * bags + 1,), "int32", pinned=False)
        dense = send_from_host(r, (run.batch, workload.model.dense_features), "fp32", pinned=False)
    dtype = COMPUTE[workload.implementation.precision]
    features = module(r, run, dense, layers.bottom, "relu", dtype)
    pooled = look_up(r, tables, indices, offsets, bags)
    sparse = _exchange(r, run, pooled)
    if workload.interaction.kind == "dot":
        joined = _dot(r, run, features, sparse)
    else:
        joined = interact(r, workload, features, sparse, layers.crosses, dtype)
    output = module(r, run, joined, layers.top, LAST[workload.training.loss], dtype)
    if not run.train:
        return
    labels = send_from_host(r, (run.batch, 1), "fp32", pinned=False)
    loss = LOSSES[workload.training.loss](r, output, labels)
    to_device(r, detach(r, loss), "cpu")
    backward_and_update(r, run, loss, layers.modules)


def _exchange(r: Recorder, run: Run, pooled: Tensor) -> Tensor:
    """`[global batch, own dims]` -> `[batch, tables, dim]`."""
    workload = run.workload
    shape = (run.batch, len(workload.tables), workload.dim)
    if run.ranks == 1:
        return reshape(r, pooled, shape)
    width = run.batch * workload.dim
    held = [len(shards) * width for shards in run.plan.shards]
    received = new_empty(r, pooled, sum(held))
    mine = [len(run.tables) * width] * run.ranks
    got = all_to_all(r, reshape(r, pooled, (-1,)), received, mine, held)
    return transpose(r, reshape(r, got, (shape[1], shape[0], shape[2])), 0, 1)


def _dot(r: Recorder, run: Run, features: Tensor, sparse: Tensor) -> Tensor:
    """The dot interaction, its places made on the host and sent in each step."""
    batch, dim = features.shape
    joined = cat(r, [reshape(r, features, (batch, 1, dim)), sparse], 1)
    products = bmm(r, joined, transpose(r, joined, 1, 2))
    places = pair_indices(r, run.workload, place="cpu")
    vectors = joined.shape[1]
    r.leaf("aten::tril_indices", (vectors, vectors, -1, 4, None, "cpu", False), places)
    r.begin("aten::unbind", places, 0)
    rows, columns = (select(r, places, 0, number) for number in range(2))
    r.end((rows, columns))
    return cat(r, [features, index_pairs(r, full_slice(r, products), rows, columns)], 1)

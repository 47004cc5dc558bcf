"""NVIDIA's DLRM example in TensorFlow 2, with Merlin's distributed-embeddings, Horovod and XLA.

What it stands for: main.py and model.py of NVIDIA/DeepLearningExamples,
TensorFlow2/Recommendation/DLRM, with `--xla`, July 2022. Both MLPs are data-parallel; each rank's
loader brings the keys of its own tables for the global batch, so that only rows travel; the batch
is copied within the step. XLA makes one kernel of longer chains of what lies between products,
gathers and collectives; casts of parameters and gradients are kernels of their own, one for each.
Before an exchange the host waits for Horovod's cycle and for what it launched, the bottom MLP among
it; gradients of the top are summed beside the backward pass. With one rank all tables are gathered
at once. Rows are updated by a scatter that adds duplicates one by one. What the host spends per
cluster was measured; per operator it is taken to be as much as PyTorch's: assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfmodel.graph.ops import BACKWARD, INPUT, OPTIMIZER, Tensor
from perfmodel.workload.autograd.engine import backward
from perfmodel.workload.autograd.tape import Gradients, Node, rule
from perfmodel.workload.eager.batched import Batched, look_up
from perfmodel.workload.eager.creation import to_dtype
from perfmodel.workload.eager.optimizers import optimizer_step
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.parts.dense import dense_layers
from perfmodel.workload.parts.embeddings import stream
from perfmodel.workload.parts.exchange import all_reduce, all_to_all_call
from perfmodel.workload.parts.fused import fused_tables
from perfmodel.workload.parts.fused_layers import fused_dot, fused_loss
from perfmodel.workload.parts.horovod import allocated, negotiated, summed, when_all_are_there
from perfmodel.workload.parts.mlp import COMPUTE, parameters
from perfmodel.workload.parts.one_thread import called, cluster_called, scheduled
from perfmodel.workload.parts.pooled import dims_of
from perfmodel.workload.parts.tensorflow_cpu import step_on_cpu
from perfmodel.workload.parts.tensorflow_inputs import batch_arrived, batch_asked
from perfmodel.workload.parts.tensorflow_layers import tensorflow_mlp
from perfmodel.workload.run import IMPLEMENTATIONS, Run

PADDED_TO = 8
"""Dense features: zeros up to a multiple. Source: model.py, `_get_bottom_mlp_padding`."""


@IMPLEMENTATIONS.register("distributed_embeddings")
def distributed_embeddings(r: Recorder, run: Run) -> None:
    """One step of one rank."""
    if r.is_cpu:
        step_on_cpu(r, run)
        return
    r.is_bare = True
    workload = run.workload
    dtype = COMPUTE[workload.implementation.precision]
    width = -(-workload.model.dense_features // PADDED_TO) * PADDED_TO
    layers = dense_layers(r, workload.with_(model__dense_features=width), dtype)
    called(r)
    scheduled(r)
    with r.during(INPUT):
        asked = batch_asked(r, run)
    if dtype != "fp32":
        _cast_weights(r, layers.parameters)
    with r.during(INPUT):
        dense, labels = batch_arrived(r, run, asked)
    tables = fused_tables(r, run, run.tables, run.global_batch, is_modern=True)
    rows = _rows(r, run, tables)
    given, sparse = _given(r, run, rows, dtype)
    in_cluster = dtype != "fp32" and run.ranks == 1
    x = r.tensor((run.batch, width), dtype)
    stream(r, "pad", (dense,), x)
    features = tensorflow_mlp(r, x, layers.bottom, scaled_in_cluster=in_cluster)
    _exchange(r, run, given, sparse, features)
    joined = fused_dot(r, features, sparse, workload.top_width)
    output = tensorflow_mlp(r, joined, layers.top, scaled_in_cluster=in_cluster)
    if not run.train:
        return
    cluster_called(r)
    loss = fused_loss(r, output, labels)
    if run.ranks > 1:
        all_reduce(r, loss, run.ranks)
    cluster_called(r)
    sums: dict[int, Tensor] = {}

    def reduce(group: Sequence[Tensor], found: Mapping[int, Tensor]) -> None:
        names = [weight.tensor_id for weight in group]
        sums.update(zip(names, _in_fp32(r, run, [found[each] for each in names]), strict=True))

    found = backward(r, loss, when_all_are_there(parameters(layers.top), reduce))
    with r.during(BACKWARD):
        reduce(parameters(layers.bottom), found)
    with r.during(OPTIMIZER):
        _update(r, run, tables, found[rows.tensor_id])
        names = [weight.tensor_id for weight in layers.parameters]
        gradients = [_unscaled(r, sums[each], found[each]) for each in names]
        masters = [r.tensor(weight.shape) for weight in layers.parameters]
        optimizer_step(r, workload.training.dense_optimizer, "loop", masters, gradients)


def _rows(r: Recorder, run: Run, tables: Batched) -> Tensor:
    """Rows of the rank's tables, `[global batch, dims of its slices]`, as they are stored.

    One rank alone gathers from all tables at once; of several, each gathers table by table.
    """
    bags = run.global_batch * len(run.tables)
    keys = r.tensor((bags,), "int64")
    cluster_called(r)
    stream(r, "keys", (r.tensor((bags,), "int32"),), keys)
    together = [tables] if run.ranks == 1 else _apart(r, run)
    tape, r.tape = r.tape, None
    for own in together:
        own_bags = bags // len(together)
        offsets = r.tensor((own_bags + 1,), "int64")
        look_up(r, own, r.view(keys, (own_bags,), (1,)), offsets, run.global_batch)
    r.tape = tape
    found = r.tensor((run.global_batch, tables.total_dim))
    if tape is not None:
        tape.parameter(found)
    return found


def _apart(r: Recorder, run: Run) -> list[Batched]:
    return [
        fused_tables(r, run, (table,), run.global_batch, is_modern=True) for table in run.tables
    ]


def _given(r: Recorder, run: Run, rows: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
    """What the rank sends of its rows; and rows of all tables for the own samples, to come.

    Those are `[batch, tables, dim]`; both in the compute dtype.
    """
    arrived = r.tensor((run.batch, len(run.workload.tables), run.workload.dim), dtype)
    if r.tape is not None:
        r.tape.add("merlin::exchange", (rows,), (arrived,), (run,))
    return rows if run.ranks == 1 else _cast(r, rows, dtype), arrived


def _exchange(r: Recorder, run: Run, given: Tensor, arrived: Tensor, features: Tensor) -> None:
    """Fill `arrived`; what makes `features` was launched before."""
    if run.ranks > 1:
        given = _all_to_all(r, run, given, features, returns=False)
    cluster_called(r)
    stream(r, "cast" if run.ranks == 1 else "unsorted", (given,), arrived)


@rule("merlin::exchange", "merlin::exchange_backward")
def _exchange_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    """Gradients back to the ranks of their rows; scaled to what is added, in fp32."""
    (gradient,), (run,) = gradients, node.saved
    assert gradient is not None
    if run.ranks > 1:
        sorted_ = r.tensor((gradient.elements,), gradient.dtype)
        cluster_called(r)
        stream(r, "sorted", (gradient,), sorted_)
        gradient = _all_to_all(r, run, sorted_, sorted_, returns=True)
    out = r.tensor(node.inputs[0].shape)
    cluster_called(r)
    stream(r, "row_gradients", (gradient,), out)
    return [out]


def _in_fp32(r: Recorder, run: Run, gradients: Sequence[Tensor]) -> list[Tensor]:
    """Gradients of layers, summed over the ranks, with their loss scale."""
    found = [to_dtype(r, gradient, "fp32") for gradient in gradients]
    return summed(r, found, run.ranks) if run.ranks > 1 else found


def _unscaled(r: Recorder, gradient: Tensor, made: Tensor) -> Tensor:
    """A summed gradient without the loss scale, which it has where it was `made` in fp16."""
    if made.dtype == "fp32":
        return gradient
    out = r.tensor(gradient.shape)
    stream(r, "unscale", (gradient,), out)
    return out


def _all_to_all(r: Recorder, run: Run, given: Tensor, launched: Tensor, *, returns: bool) -> Tensor:
    """To each rank its samples' rows, from each those of its slices; or their gradients back.

    `launched` is what was launched last before.
    """
    theirs = [run.batch * dim for dim in dims_of(run)]
    own = [theirs[run.rank]] * run.ranks
    sizes = (theirs, own) if returns else (own, theirs)
    received = r.tensor((sum(sizes[1]),), given.dtype)
    negotiated(r)
    allocated(r, launched)
    all_to_all_call(r, given, received, *sizes, is_async=True)
    return received


def _cast(r: Recorder, x: Tensor, dtype: str) -> Tensor:
    """One kernel puts rows in the order of ranks and in the compute dtype."""
    out = r.tensor((x.elements,), dtype)
    cluster_called(r)
    stream(r, "cast", (x,), out)
    return out


def _cast_weights(r: Recorder, weights: Sequence[Tensor]) -> None:
    """Parameters of the layers, which are kept in fp32, to the dtype of the products."""
    for weight in weights:
        stream(r, "cast_weight", (r.tensor(weight.shape),), weight)


def _update(r: Recorder, run: Run, tables: Batched, gradient: Tensor) -> None:
    """Gradients of rows added to the tables one by one: duplicates are not summed up before."""
    vectors, dim = run.global_batch * len(run.tables), run.workload.dim
    dim = gradient.elements // vectors
    weights = r.view(tables.weights, (tables.weights.elements // dim, dim), (dim, 1))
    values = r.view(gradient, (vectors, dim), (dim, 1))
    r.leaf("aten::index_add_", (weights, 0, r.tensor((vectors,), "int64"), values, 1), weights)

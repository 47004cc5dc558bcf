"""NVIDIA's DLRM examples in PyTorch: the bottom MLP on one GPU, whole tables on the others.

What it stands for: dlrm/model/distributed.py and dlrm/scripts/main.py of
NVIDIA/DeepLearningExamples, PyTorch/Recommendation/DLRM. The first rank runs the bottom MLP for the
global batch (and has no tables where ranks are more than four); its features travel as one more
vector. Apex's MLPs (a kernel for bias and ReLU behind each product), one gather for all tables, a
fused interaction; forward and backward in one CUDA graph; rows updated by atomics, dense weights by
one kernel; the host waits for the device in each step.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import BACKWARD, INPUT, OPTIMIZER, Tensor
from perfmodel.workload.autograd.engine import backward
from perfmodel.workload.autograd.tape import Gradients, Node, rule
from perfmodel.workload.eager.batched import Batched, look_up
from perfmodel.workload.eager.creation import to_device, to_dtype
from perfmodel.workload.eager.optimizers import optimizer_step
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.parts.apex_layers import apex_mlp
from perfmodel.workload.parts.dense import dense_layers
from perfmodel.workload.parts.embeddings import stream
from perfmodel.workload.parts.exchange import all_reduce, even_all_to_all
from perfmodel.workload.parts.fused import fused_tables
from perfmodel.workload.parts.fused_layers import fused_dot, fused_loss
from perfmodel.workload.parts.gpu import sent
from perfmodel.workload.parts.jagged import PREFETCHED
from perfmodel.workload.parts.mlp import COMPUTE, parameters
from perfmodel.workload.run import IMPLEMENTATIONS, Run

GRAPH = {"cuda_graph": "step"}


@IMPLEMENTATIONS.register("nvidia")
def nvidia(r: Recorder, run: Run) -> None:
    """One step of one rank."""
    r.is_bare = True
    workload = run.workload
    dtype = COMPUTE[workload.implementation.precision]
    layers = dense_layers(r, workload, dtype)
    with r.during(INPUT), r.with_attributes(PREFETCHED):
        sent(r, (run.global_batch, workload.model.dense_features), "fp32", pinned=True)
        sent(r, (run.global_batch, max(len(run.tables), 1)), "int64", pinned=True)
    dense = r.tensor((run.global_batch, workload.model.dense_features))
    labels = r.tensor((run.batch, 1))
    with r.with_attributes(GRAPH):
        tables = _tables(r, run)
        mine = [] if tables is None else [_rows(r, run, tables, dtype)]
        if run.rank == 0:
            mine.insert(0, apex_mlp(r, to_dtype(r, dense, dtype), layers.bottom))
        own = _together(r, run, mine)
        joined = fused_dot(r, *own, workload.top_width)
        output = apex_mlp(r, joined, layers.top)
        if not run.train:
            return
        loss = fused_loss(r, output, labels)
        found = backward(r, loss)
        weights = [weight for weight in layers.parameters if weight.tensor_id in found]
        gradients = [found[weight.tensor_id] for weight in weights]
        with r.during(BACKWARD):
            if run.ranks > 1:
                top = sum(weight.elements for weight in parameters(layers.top))
                all_reduce(r, r.tensor((top,), dtype), run.ranks)
    with r.during(OPTIMIZER):
        masters = [r.tensor(weight.shape) for weight in weights]
        if workload.implementation.precision == "fp16":
            _unscaled(r, gradients)
        optimizer_step(r, workload.training.dense_optimizer, "fused", masters, gradients)
        if tables is not None:
            _update(r, run, tables, found[mine[-1].tensor_id])
        to_device(r, loss, "cpu")


def _tables(r: Recorder, run: Run) -> Batched | None:
    """The rank's tables, if it has any."""
    if not run.tables:
        return None
    return fused_tables(r, run, run.tables, run.global_batch, is_modern=True)


def _rows(r: Recorder, run: Run, tables: Batched, dtype: str) -> Tensor:
    """Rows of the rank's tables for the global batch, `[batch, tables * dim]`."""
    bags = run.global_batch * len(run.tables)
    tape, r.tape = r.tape, None
    keys = r.tensor((bags,), "int64"), r.tensor((bags + 1,), "int64")
    found = look_up(r, tables, *keys, run.global_batch, dtype)
    r.tape = tape
    if tape is not None:
        tape.parameter(found)
    return found


def _together(r: Recorder, run: Run, parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Features `[batch, dim]` and rows `[batch, tables, dim]` of the own samples."""
    dim, tables = run.workload.dim, len(run.workload.tables)
    mine = tuple(parts)
    out = r.tensor((run.batch, tables + 1, dim), mine[0].dtype)
    if run.ranks == 1:
        stream(r, "join", mine, out)
    else:
        given = r.tensor((sum(x.elements for x in mine),), out.dtype)
        stream(r, "join", mine, given)
        received = r.tensor(out.shape, out.dtype)
        even_all_to_all(r, given, received, run.ranks)
        stream(r, "order", (received,), out)
    own = r.view(out, (run.batch, dim), ((tables + 1) * dim, 1))
    sparse = r.view(out, (run.batch, tables, dim), ((tables + 1) * dim, dim, 1))
    if r.tape is not None:
        r.tape.add("nvidia::exchange", mine, (own, sparse), (run,))
    return own, sparse


@rule("nvidia::exchange", "nvidia::exchange_backward")
def _exchange_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    """Gradients in order of ranks, back to them."""
    (run,) = node.saved
    given = tuple(gradient for gradient in gradients if gradient is not None)
    apart = tuple(r.tensor(x.shape, x.dtype) for x in node.inputs)
    if run.ranks > 1:
        parted = r.tensor((sum(x.elements for x in given),), given[0].dtype)
        stream(r, "part", given, parted)
        given = (r.tensor((sum(x.elements for x in apart),), parted.dtype),)
        even_all_to_all(r, parted, given[0], run.ranks)
    stream(r, "split", given, *apart)
    return apart


def _unscaled(r: Recorder, gradients: Sequence[Tensor]) -> None:
    """The loss's scale taken from the gradients; the host asks whether all are finite."""
    found = r.tensor((1,))
    r.leaf("aten::_foreach_mul_", (tuple(gradients), 1.0))
    to_device(r, found, "cpu")


def _update(r: Recorder, run: Run, tables: Batched, gradient: Tensor) -> None:
    """Gradients of rows to fp32, their scale removed, and added to the tables by atomics."""
    vectors = run.global_batch * len(run.tables)
    dim = run.workload.dim
    values = r.tensor((vectors, dim))
    stream(r, "row_gradients", (gradient,), values)
    if run.workload.implementation.precision == "fp16":
        stream(r, "unscale", (values,), values)
    weights = r.view(tables.weights, (tables.weights.elements // dim, dim), (dim, 1))
    r.leaf("aten::index_add_", (weights, 0, r.tensor((vectors,), "int64"), values, 1), weights)

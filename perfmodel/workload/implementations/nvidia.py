"""NVIDIA's DLRM example in PyTorch: the bottom MLP on one GPU, whole tables on the others.

What it stands for: dlrm/scripts/main.py, dlrm/model/distributed.py, dlrm/nn, dlrm/cuda_ext and
dlrm/data/utils.py of NVIDIA/DeepLearningExamples, PyTorch/Recommendation/DLRM, on PyTorch 1.10. The
first rank runs the bottom MLP for the global batch (and has no tables where ranks are more than
four); its features travel as one more vector, and are cut out of what arrives, whose gradient is
therefore filled with zeros, copied into and added. Apex's MLPs and its `DistributedDataParallel`,
one gather for all tables (on one GPU straight to the compute type), an interaction in one kernel;
forward and backward in one CUDA graph. Behind it the host reads the flag of the gradient scaler,
launches both optimizers (rows are added by atomics), brings the batch after the next from pageable
memory, and waits for the device before the next step.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import BACKWARD, INPUT, OPTIMIZER, Tensor
from perfmodel.workload.autograd.engine import backward
from perfmodel.workload.autograd.tape import Gradients, Node, rule, track
from perfmodel.workload.eager.batched import Batched, look_up
from perfmodel.workload.eager.creation import copy, to_dtype
from perfmodel.workload.eager.joins import cat
from perfmodel.workload.eager.losses import binary_cross_entropy_with_logits
from perfmodel.workload.eager.optimizers import optimizer_step
from perfmodel.workload.eager.products import linear
from perfmodel.workload.eager.recorder import Recorder, Shape, product
from perfmodel.workload.eager.views import clone, narrow, reshape, select, squeeze
from perfmodel.workload.parts.apex_layers import apex_mlp
from perfmodel.workload.parts.apex_parallel import ApexReducer
from perfmodel.workload.parts.dense import Dense, dense_layers
from perfmodel.workload.parts.embeddings import stream
from perfmodel.workload.parts.exchange import all_to_all_call
from perfmodel.workload.parts.fused import fused_tables
from perfmodel.workload.parts.gpu import sent, synchronised
from perfmodel.workload.parts.grad_scaler import is_read, scaled, unscaled, updated
from perfmodel.workload.parts.jagged import PREFETCHED
from perfmodel.workload.parts.mlp import COMPUTE, Layer, cast, parameters
from perfmodel.workload.run import IMPLEMENTATIONS, Run
from perfmodel.workload.tables import lookups

GRAPH = {"cuda_graph": "step"}
SCALED = "fp16"
"""The precision that scales its loss."""
EXCHANGE, INTERACTION = "nvidia::bottom_to_top", "hugectr::interaction"


@IMPLEMENTATIONS.register("nvidia")
def nvidia(r: Recorder, run: Run) -> None:
    """One step of one rank, between two waits for the device."""
    r.is_bare = True
    dtype = COMPUTE[run.workload.implementation.precision]
    dense = dense_layers(r, run.workload)
    tables = None
    if run.tables:
        tables = fused_tables(r, run, run.tables, run.global_batch, is_modern=True)
    numbers, labels = _copied_inputs(r, run)
    with r.with_attributes(GRAPH):
        rows = None if tables is None else _rows(r, run, tables, dtype)
        features = _mlp(r, numbers, dense.bottom, dtype) if run.rank == 0 else None
        logits = _top(r, run, dense, features, _halved(r, rows, dtype), dtype)
        if run.train:
            found = _backward(r, run, dense, logits, labels)
            added = None if rows is None else _row_gradients(r, run, found[rows.tensor_id])
    if run.train:
        with r.during(OPTIMIZER):
            _updated(r, run, dense, found, tables, added)
    _next_batch(r, run)
    synchronised(r)


def _next_batch(r: Recorder, run: Run) -> None:
    """What the loader's thread has read, to the device: the host copies through the driver."""
    model = run.workload.model
    with r.during(INPUT), r.with_attributes(PREFETCHED):
        if run.rank == 0:
            sent(r, (run.global_batch, model.dense_features), "fp16", pinned=False)
        if run.tables:
            sent(r, (run.global_batch, len(run.tables)), "int64", pinned=False)
        sent(r, (run.global_batch,), "fp32", pinned=False)


def _copied_inputs(r: Recorder, run: Run) -> tuple[Tensor, Tensor]:
    """The batch into the tensors that the graph reads: dense features, labels of the own samples.

    Features become fp32 on the way, by the loader's stream.
    """
    numbers = r.tensor((run.global_batch, run.workload.model.dense_features))
    labels = r.tensor((run.global_batch,))
    with r.during(INPUT):
        if run.rank == 0:
            copy(r, numbers, r.tensor(numbers.shape, "fp16"))
        if run.tables:
            keys = (run.global_batch, len(run.tables))
            copy(r, r.tensor(keys, "int64"), r.tensor(keys, "int64"))
        copy(r, labels, r.tensor(labels.shape))
    return numbers, r.view(labels, (run.batch,), (1,))


def _rows(r: Recorder, run: Run, tables: Batched, dtype: str) -> Tensor:
    """Rows of the rank's tables for the global batch, `[batch, tables, dim]`.

    Several ranks gather them in fp32, one straight in `dtype`.
    """
    keys, dim = (run.global_batch, len(run.tables)), run.workload.dim
    bags = product(keys)
    tape, r.tape = r.tape, None
    if run.ranks > 1:
        _shifted(r, keys)
    output = dtype if run.ranks == 1 else "fp32"
    flat, offsets = r.tensor((bags,), "int64"), r.tensor((bags + 1,), "int64")
    found = look_up(r, tables, flat, offsets, run.global_batch, output)
    r.tape = tape
    rows = r.view(found, (*keys, dim), (keys[1] * dim, dim, 1))
    if tape is not None:
        tape.parameter(rows)
    return rows


def _shifted(r: Recorder, keys: Shape) -> None:
    """Keys `[batch, tables]` of tables that lie one behind the other in one."""
    made = r.tensor(keys, "int64")
    r.leaf("aten::add", (r.tensor(keys, "int64"), r.tensor(keys[1:], "int64"), 1), made)


def _halved(r: Recorder, rows: Tensor | None, dtype: str) -> Tensor | None:
    return rows if rows is None or rows.dtype == dtype else to_dtype(r, rows, dtype)


def _mlp(r: Recorder, x: Tensor, stack: Sequence[Layer], dtype: str) -> Tensor:
    """Apex's MLP on what autocast makes of its input, its weights and its biases."""
    x = cast(r, x, dtype)
    weights = [cast(r, layer.weight, dtype) for layer in stack]
    biases = [cast(r, layer.bias, dtype) for layer in stack]
    return apex_mlp(r, x, [Layer(*pair) for pair in zip(weights, biases, strict=True)])


def _top(
    r: Recorder,
    run: Run,
    dense: Dense,
    features: Tensor | None,
    rows: Tensor | None,
    dtype: str,
) -> Tensor:
    """Logits `[batch]` of the own samples, from the rank's features and rows of all samples."""
    parts = [] if rows is None else [rows]
    if features is not None:
        parts.insert(0, reshape(r, features, (run.global_batch, 1, run.workload.dim)))
    joined = cat(r, parts, 1) if len(parts) > 1 else parts[0]
    if run.ranks > 1:
        joined = _bottom_to_top(r, run, joined)
        features = select(r, joined, 1, 0)
        track(r, "aten::select", (joined,), features, 1, 0)
    assert features is not None
    *hidden, last = dense.top
    x = _mlp(r, _interacted(r, run, joined, features), hidden, dtype)
    found = linear(r, x, cast(r, last.weight, dtype), cast(r, last.bias, dtype))
    return squeeze(r, found, 1)


def _bottom_to_top(r: Recorder, run: Run, local: Tensor) -> Tensor:
    """`[global batch, own vectors, dim]` to `[batch, all vectors, dim]`."""
    dim, vectors = run.workload.dim, _vectors(run)
    received = r.tensor((run.batch * sum(vectors) * dim,), local.dtype)
    own = [run.batch * local.shape[1] * dim] * run.ranks
    theirs = [run.batch * count * dim for count in vectors]
    all_to_all_call(r, local, received, own, theirs, is_async=True)
    parts = [r.view(received, (run.batch, count * dim), (count * dim, 1)) for count in vectors]
    flat = cat(r, parts, 1, tracked=False)
    out = r.view(flat, (run.batch, sum(vectors), dim), (sum(vectors) * dim, dim, 1))
    track(r, EXCHANGE, (local,), out, run)
    return out


@rule(EXCHANGE, "nvidia::bottom_to_top_backward")
def _bottom_to_top_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    """A contiguous part per rank, and back to whom they belong."""
    (gradient,), (run,) = gradients, node.saved
    assert gradient is not None
    (local,), dim, vectors = node.inputs, run.workload.dim, _vectors(run)
    flat = r.view(gradient, (run.batch, sum(vectors) * dim), (sum(vectors) * dim, 1))
    start = 0
    for count in vectors:
        clone(r, narrow(r, flat, 1, start * dim, count * dim))
        start += count
    given, out = r.tensor((flat.elements,), flat.dtype), r.tensor(local.shape, flat.dtype)
    theirs = [run.batch * count * dim for count in vectors]
    own = [run.batch * local.shape[1] * dim] * run.ranks
    all_to_all_call(r, given, out, theirs, own, is_async=True)
    return [out]


def _vectors(run: Run) -> list[int]:
    """Per rank, how many vectors of each sample it has: its tables, and the features."""
    return [len(shards) + (rank == 0) for rank, shards in enumerate(run.plan.shards)]


def _interacted(r: Recorder, run: Run, joined: Tensor, features: Tensor) -> Tensor:
    """Dot products of all pairs behind the features, `[batch, width]`."""
    given = clone(r, features) if run.ranks > 1 else features
    out = r.tensor((run.batch, run.workload.top_width), joined.dtype)
    r.leaf(INTERACTION, (joined, given), out)
    track(r, "nvidia::interaction", (joined, features), out)
    return out


@rule("nvidia::interaction", "nvidia::interaction_backward")
def _interaction_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    made = tuple(r.tensor(x.shape, x.dtype) for x in node.inputs)
    r.leaf(f"{INTERACTION}_backward", (gradients[0], node.inputs[0]), *made)
    return made


def _backward(
    r: Recorder, run: Run, dense: Dense, logits: Tensor, labels: Tensor
) -> dict[int, Tensor]:
    """Gradients by the ids of what they are of; those of the top MLP are means over all ranks."""
    loss = binary_cross_entropy_with_logits(r, cast(r, logits, "fp32"), labels)
    if run.workload.implementation.precision == SCALED:
        loss = scaled(r, loss)
    reducer = ApexReducer(parameters(dense.top), run.ranks)
    found = backward(r, loss, reducer.arrived if run.ranks > 1 else None)
    with r.during(BACKWARD):
        reducer.finish(r)
    return found


def _row_gradients(r: Recorder, run: Run, gradient: Tensor) -> Tensor:
    """`[lookups, dim]` in fp32: on one GPU cut out of all vectors' and copied to the sparse tensor
    that it goes into, of several as it came."""
    shape = (run.global_batch * len(run.tables), run.workload.dim)
    with r.during(BACKWARD):
        if run.ranks == 1:
            _shifted(r, (run.global_batch, len(run.tables)))
            out = r.tensor(shape)
            stream(r, "row_gradients", (clone(r, gradient),), out)
            return out
    return r.view(gradient, shape, (shape[1], 1))


def _updated(
    r: Recorder,
    run: Run,
    dense: Dense,
    found: dict[int, Tensor],
    tables: Batched | None,
    added: Tensor | None,
) -> None:
    """Both MLPs once the host knows that no gradient overflowed, then the rows."""
    mlps = [parameters(dense.top)] + ([parameters(dense.bottom)] if run.rank == 0 else [])
    has_scale = run.workload.implementation.precision == SCALED
    flags = []
    if has_scale:
        flags.append(unscaled(r, [found[x.tensor_id] for own in mlps for x in own]))
        is_read(r, flags[0])
    for own in mlps:
        gradients = [found[x.tensor_id] for x in own]
        optimizer_step(r, run.workload.training.dense_optimizer, "fused", own, gradients)
    if tables is not None and added is not None:
        if has_scale:
            flags.append(unscaled(r, [added]))
        _added(r, run, tables, added)
    if has_scale:
        updated(r, flags)
    total = r.tensor((1,))
    r.leaf("aten::add_", (total, r.tensor(()), 1), total)


def _added(r: Recorder, run: Run, tables: Batched, values: Tensor) -> None:
    """Gradients to the rows of all tables as one, repeats and all."""
    dim = run.workload.dim
    weights = r.view(tables.weights, (tables.weights.elements // dim, dim), (dim, 1))
    keys = r.tensor((values.shape[0],), "int64")
    about = lookups(run.tables, run.global_batch).to_attributes()
    r.leaf("aten::index_add_", (weights, 0, keys, values, 1), weights, about=about)

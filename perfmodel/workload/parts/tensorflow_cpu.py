"""NVIDIA's TensorFlow 2 example on CPUs (`--cpu --dot_interaction tensorflow`), one process.

What TensorFlow shares among its threads is recorded as PyTorch's operators, or as one pass over all
operands. Places below the diagonal are kept by a boolean mask, made anew in each step; `Where` and
its gradient's `UnsortedSegmentSum` over single elements run on one thread: that kernel's cost model
takes elements over segments, here less than one, for nothing.

Source: TensorFlow2/Recommendation/DLRM/interaction.py of NVIDIA/DeepLearningExamples;
tensorflow/core/kernels/segment_reduction_ops_impl.h of TensorFlow; `traces/tensorflow_cpu`.
"""

from __future__ import annotations

from perfmodel.errors import WorkloadError
from perfmodel.graph.ops import Tensor
from perfmodel.workload.autograd.tape import Gradients, Node, rule, track
from perfmodel.workload.eager.joins import cat, stack
from perfmodel.workload.eager.losses import LOSSES
from perfmodel.workload.eager.products import bmm
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.views import transpose, unsqueeze
from perfmodel.workload.parts.dense import dense_layers
from perfmodel.workload.parts.embedding import index_tensors, lookup, weights
from perfmodel.workload.parts.embeddings import stream
from perfmodel.workload.parts.one_thread import called, one_thread
from perfmodel.workload.parts.tensorflow_layers import tensorflow_mlp
from perfmodel.workload.parts.training import learn
from perfmodel.workload.run import Run

WHERE_NS, SEGMENT_SUM_NS = 1.1, 26.0
"""Per element looked at, and per element added. Source: `traces/tensorflow_cpu/kernels.csv`,
2026-11-22, one thread."""
MASK = "tensorflow::boolean_mask"


def step_on_cpu(r: Recorder, run: Run) -> None:
    """One step. Raises `WorkloadError` for several ranks."""
    if run.ranks > 1:
        raise WorkloadError(
            f"distributed_embeddings: {run.ranks} ranks of CPUs: it trains on CPUs in one process"
        )
    workload = run.workload
    layers = dense_layers(r, workload)
    called(r)
    dense = r.tensor((run.batch, workload.model.dense_features))
    rows = _rows(r, run, weights(r, run))
    features = tensorflow_mlp(r, dense, layers.bottom, scaled_in_cluster=False)
    joined = _masked_dot(r, features, rows, workload.top_width)
    output = tensorflow_mlp(r, joined, layers.top, scaled_in_cluster=False)
    if run.train:
        loss = LOSSES[workload.training.loss](r, output, r.tensor((run.batch, 1)))
        learn(r, run, loss, layers.modules, lambda found: _update(r, found[rows.tensor_id]))


def _rows(r: Recorder, run: Run, tables: list[Tensor]) -> Tensor:
    """Rows of all tables, side by side: `[batch, tables, dim]`."""
    tape, r.tape = r.tape, None
    found = stack(r, lookup(r, run, tables, index_tensors(r, run)), 1)
    r.tape = tape
    if tape is not None:
        tape.parameter(found)
    return found


def _update(r: Recorder, gradient: Tensor) -> None:
    """Gradients cut out of both joins, negated, scaled, and added to their rows, all threads."""
    for name in ("slice", "slice", "negate", "scale"):
        gradient, given = r.tensor(gradient.shape), gradient
        stream(r, name, (given,), gradient)
    rows = r.tensor(gradient.shape)
    stream(r, "scatter_add", (gradient, rows), rows)


def _masked_dot(r: Recorder, features: Tensor, sparse: Tensor, width: int) -> Tensor:
    """Products of all pairs, those below the diagonal kept: `[batch, width]` with the features."""
    joined = cat(r, [unsqueeze(r, features, 1), sparse], 1)
    products = bmm(r, joined, transpose(r, joined, 1, 2))
    batch, fields = joined.shape[:2]
    ones, upper, mask = (r.tensor(products.shape) for _ in range(3))
    stream(r, "ones_like", (), ones)
    stream(r, "band_part", (ones,), upper)
    stream(r, "subtract", (ones, upper), mask)
    one_thread(r, products.elements * WHERE_NS * 1e-3)
    pairs = fields * (fields - 1) // 2
    kept = r.tensor((batch, pairs))
    stream(r, "gather", (kept, r.tensor((batch * pairs,), "int64")), kept)
    track(r, MASK, (products,), kept)
    padding = r.tensor((batch, width - pairs - features.shape[1]))
    return cat(r, [kept, features, padding], 1)


@rule(MASK, "tensorflow::boolean_mask_backward")
def _mask_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    (gradient,) = gradients
    assert gradient is not None
    one_thread(r, gradient.elements * SEGMENT_SUM_NS * 1e-3)
    return [r.tensor(node.inputs[0].shape)]

"""HugeCTR as in NVIDIA's MLPerf submissions: fused layers, mixed precision, one CUDA graph.

What it stands for: bias, ReLU and their gradients in the epilogues of the matrix products; while
rows are exchanged the bottom MLP runs, forward and backward; dense gradients and those of
replicated rows in one all-reduce, beside the update of the other rows; one kernel for all dense
weights; the next batch is brought beside the step. Tables are a `hybrid` embedding or a
collection. It is a model of that software, not a record of it: order and overlap are those of
HugeCTR/src/pybind/model_pipeline.cpp of NVIDIA-Merlin/HugeCTR, on one stream for kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import BACKWARD, INPUT, OPTIMIZER, Tensor
from perfmodel.workload.autograd.engine import backward
from perfmodel.workload.eager.creation import to_dtype
from perfmodel.workload.eager.optimizers import optimizer_step
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.parts.collection import Collection
from perfmodel.workload.parts.dense import Dense, dense_layers
from perfmodel.workload.parts.embeddings import Embeddings, stream
from perfmodel.workload.parts.exchange import all_reduce
from perfmodel.workload.parts.fused import total_lookups
from perfmodel.workload.parts.fused_layers import (
    fused_cross,
    fused_dot,
    fused_join,
    fused_loss,
    fused_mlp,
)
from perfmodel.workload.parts.gpu import sent
from perfmodel.workload.parts.hybrid import hybrid
from perfmodel.workload.parts.jagged import PREFETCHED
from perfmodel.workload.parts.mlp import COMPUTE
from perfmodel.workload.run import IMPLEMENTATIONS, Run

FP32_BYTES = 4
GRAPH = {"cuda_graph": "step"}
"""Attribute of what one graph launch runs."""


@IMPLEMENTATIONS.register("hugectr")
def hugectr(r: Recorder, run: Run) -> None:
    """One step of one rank."""
    software = run.workload.implementation
    r.is_bare = True
    dtype = COMPUTE[software.precision]
    layers = dense_layers(r, run.workload, dtype)
    kind = hybrid if software.sharding == "hybrid" and run.ranks > 1 else Collection
    embeddings: Embeddings = kind(r, run, software.exchange_precision)
    with r.during(INPUT), r.with_attributes(PREFETCHED if software.prefetch else {}):
        dense, labels = _input(r, run)
    if software.prefetch:
        dense, labels = (r.tensor(x.shape, x.dtype) for x in (dense, labels))
    with r.with_attributes(GRAPH if software.cuda_graphs else {}):
        weights = layers.parameters
        if run.workload.training.dense_optimizer != "sgd" and dtype != "fp32":
            copies = r.tensor((_elements(weights),), dtype)
            stream(r, "convert_weights", (r.tensor(copies.shape),), copies)
        sparse, output = _forward(r, run, layers, embeddings, dense)
        if run.train:
            loss = fused_loss(r, output, labels)
            _learn(r, run, loss, weights, sparse, embeddings)


def _input(r: Recorder, run: Run) -> tuple[Tensor, Tensor]:
    """Features, labels and keys of the own samples, from the host."""
    dense = sent(r, (run.batch, run.workload.model.dense_features), "fp32", pinned=True)
    labels = sent(r, (run.batch, 1), "fp32", pinned=True)
    sent(r, (total_lookups(run.workload.tables, run.batch),), "int32", pinned=True)
    return dense, labels


def _forward(
    r: Recorder, run: Run, layers: Dense, embeddings: Embeddings, dense: Tensor
) -> tuple[Tensor, Tensor]:
    """Pooled rows `[batch, tables, dim]`, and logits `[batch, 1]`, of the own samples."""
    workload = run.workload
    dtype = COMPUTE[workload.implementation.precision]
    embeddings.look_up(r)
    embeddings.local(r)
    features = fused_mlp(r, to_dtype(r, dense, dtype), layers.bottom, last="relu")
    sparse = embeddings.arrive(r)
    if r.tape is not None:
        r.tape.parameter(sparse)
    if workload.interaction.kind == "dot":
        joined = fused_dot(r, features, sparse, workload.top_width)
    else:
        joined = fused_cross(r, fused_join(r, features, sparse), layers.crosses)
    return sparse, fused_mlp(r, joined, layers.top, last="none")


def _learn(
    r: Recorder,
    run: Run,
    loss: Tensor,
    weights: Sequence[Tensor],
    sparse: Tensor,
    embeddings: Embeddings,
) -> None:
    """Backward, one all-reduce, the update of rows beside it and then of dense weights."""

    def arrived(r: Recorder, parameter: Tensor, gradient: Tensor) -> None:
        if parameter.tensor_id == sparse.tensor_id:
            embeddings.send_back(r, gradient)

    if run.workload.implementation.unmodelled_sample_bytes:
        count = run.workload.implementation.unmodelled_sample_bytes // FP32_BYTES
        moved = r.tensor((run.batch, count))
        stream(r, "unmodelled", (moved,), r.tensor(moved.shape))
    found = backward(r, loss, arrived)
    gradients = [found[weight.tensor_id] for weight in weights]
    with r.during(BACKWARD):
        sums = embeddings.replicated_gradient(r)
        if run.ranks > 1:
            count = _elements(gradients) + (0 if sums is None else sums.elements)
            reduced = r.tensor((count,), gradients[0].dtype)
            group = embeddings.reduce_group
            all_reduce(r, reduced, run.ranks, in_network=run.groups > 1, group=group)
            sums = None if sums is None else r.view(reduced, sums.shape, sums.strides)
    with r.during(OPTIMIZER):
        embeddings.learn(r, sums)
        if run.ranks > 1:
            gradients = [r.view(reduced, x.shape, x.strides) for x in gradients]
        masters = [r.tensor(weight.shape) for weight in weights]
        optimizer_step(r, run.workload.training.dense_optimizer, "fused", masters, gradients)


def _elements(tensors: Sequence[Tensor]) -> int:
    return sum(x.elements for x in tensors)

"""HugeCTR as in NVIDIA's MLPerf submissions: fused layers, mixed precision, one CUDA graph.

What it stands for: bias, ReLU and their gradients in the epilogues of the matrix products; one
lookup for all tables that a rank holds, in parts where a table is heavy, small tables replicated;
pooled rows and gradients exchanged in the precision of the layers; dense gradients in one
all-reduce; all dense weights updated by one kernel; keys of the next batch distributed beside the
step. The ops are PyTorch's where those do the same work; it is a model of that software, not a
record of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import BACKWARD, INPUT, OPTIMIZER, Tensor
from perfmodel.workload.autograd.engine import backward
from perfmodel.workload.eager.batched import Batched, look_up
from perfmodel.workload.eager.creation import to_dtype
from perfmodel.workload.eager.joins import cat
from perfmodel.workload.eager.optimizers import optimizer_step
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.views import reshape
from perfmodel.workload.parts.exchange import all_reduce
from perfmodel.workload.parts.fused import fused_tables, total_lookups
from perfmodel.workload.parts.fused_layers import (
    fused_cross,
    fused_dot,
    fused_exchange,
    fused_loss,
    fused_mlp,
)
from perfmodel.workload.parts.gpu import sent
from perfmodel.workload.parts.interaction import (
    Cross,
    cross_layers,
    cross_parameters,
    side_by_side,
)
from perfmodel.workload.parts.jagged import PREFETCHED, tables_of
from perfmodel.workload.parts.mlp import COMPUTE, Layer, layers, parameters
from perfmodel.workload.run import IMPLEMENTATIONS, Run

GRAPH = {"cuda_graph": "step"}
"""Attribute of what one graph launch runs."""


@IMPLEMENTATIONS.register("hugectr")
def hugectr(r: Recorder, run: Run) -> None:
    """One step of one rank."""
    software = run.workload.implementation
    r.is_bare = True
    dtype = COMPUTE[software.precision]
    bottom = layers(r, run.workload.bottom_widths, dtype)
    crosses = cross_layers(r, run.workload, dtype)
    top = layers(r, run.workload.top_widths, dtype)
    tables = fused_tables(r, run, tables_of(run), run.global_batch, is_modern=True)
    replicas = None
    if run.replicas:
        replicas = fused_tables(r, run, run.replicas, run.batch, is_modern=True)
    with r.during(INPUT), r.with_attributes(PREFETCHED if software.prefetch else {}):
        dense, labels, keys = _input(r, run)
    with r.with_attributes(GRAPH if software.cuda_graphs else {}):
        output = _forward(r, run, (bottom, crosses, top), (tables, replicas), dense, keys)
        if run.train:
            weights = [*parameters(bottom), *cross_parameters(crosses), *parameters(top)]
            _learn(r, run, fused_loss(r, output, labels), weights, replicas)


def _input(r: Recorder, run: Run) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Features and labels of the own samples; keys and offsets of the own tables and replicas."""
    dense = sent(r, (run.batch, run.workload.model.dense_features), "fp32", pinned=True)
    labels = sent(r, (run.batch, 1), "fp32", pinned=True)
    keys = []
    for tables, bags in ((tables_of(run), run.global_batch), (run.replicas, run.batch)):
        if tables:
            keys.append(sent(r, (total_lookups(tables, bags),), "int64", pinned=True))
            keys.append(sent(r, (len(tables) * bags + 1,), "int64", pinned=True))
    return dense, labels, keys


def _forward(
    r: Recorder,
    run: Run,
    model: tuple[Sequence[Layer], Sequence[Cross], Sequence[Layer]],
    embeddings: tuple[Batched, Batched | None],
    dense: Tensor,
    keys: Sequence[Tensor],
) -> Tensor:
    """Logits of the own samples `[batch, 1]`."""
    workload = run.workload
    bottom, crosses, top = model
    dtype = COMPUTE[workload.implementation.precision]
    pooled = _pooled(r, run, embeddings, keys, dtype)
    features = fused_mlp(r, to_dtype(r, dense, dtype), bottom, last="relu")
    if workload.interaction.kind == "dot":
        joined = fused_dot(r, features, pooled, workload.top_width)
    else:
        joined = fused_cross(r, side_by_side(r, features, pooled), crosses)
    return fused_mlp(r, joined, top, last="none")


def _pooled(
    r: Recorder,
    run: Run,
    embeddings: tuple[Batched, Batched | None],
    keys: Sequence[Tensor],
    dtype: str,
) -> Tensor:
    """Pooled rows of all tables for the own samples, `[batch, tables, dim]`."""
    dim = run.workload.dim
    tables, replicas = embeddings
    rows = look_up(r, tables, keys[0], keys[1], run.global_batch, dtype)
    if run.ranks > 1:
        out = fused_exchange(r, run, rows)
    else:
        out = reshape(r, rows, (-1, rows.shape[1] // dim, dim))
    if replicas is None:
        return out
    more = look_up(r, replicas, keys[2], keys[3], run.batch, dtype)
    return cat(r, [out, reshape(r, more, (-1, more.shape[1] // dim, dim))], 1)


def _learn(
    r: Recorder, run: Run, loss: Tensor, weights: Sequence[Tensor], replicas: Batched | None
) -> None:
    """Backward; one all-reduce of all dense gradients, and of replicated tables; one update."""
    found = backward(r, loss)
    gradients = [found[weight.tensor_id] for weight in weights]
    if run.ranks > 1:
        elements = sum(gradient.elements for gradient in gradients)
        with r.during(BACKWARD):
            all_reduce(r, r.tensor((elements,), gradients[0].dtype), run.ranks)
            if replicas is not None:
                all_reduce(r, r.tensor(replicas.weights.shape, "fp32"), run.ranks)
    with r.during(OPTIMIZER):
        masters = [r.tensor(weight.shape) for weight in weights]
        optimizer = run.workload.training.dense_optimizer
        optimizer_step(r, optimizer, "fused", masters, gradients)

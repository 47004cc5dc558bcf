"""HugeCTR as in NVIDIA's MLPerf submissions: its embedding collection, fused layers, one graph.

Pooled partial sums travel, also those of bags without a row in the part; where there are several
groups of linked ranks, they are added up within a group before they do. Sums of gradients are
written per distinct row, then applied.

Source: HugeCTR/embedding and HugeCTR/src/pybind/model_pipeline.cpp of NVIDIA-Merlin/HugeCTR.

What it stands for: bias, ReLU and their gradients in the epilogues of the matrix products; while
rows are exchanged the bottom MLP runs, forward and backward; dense gradients and those of
replicated rows in one all-reduce, beside the update of the other rows; one kernel for all dense
weights; the next batch is brought beside the step. Tables are a `hybrid` embedding or a
collection. It is a model of that software, not a record of it: order and overlap are those of
HugeCTR/src/pybind/model_pipeline.cpp of NVIDIA-Merlin/HugeCTR, on one stream for kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.ops.graph import BACKWARD, INPUT, OPTIMIZER, Tensor
from perfmodel.workload.autograd import backward
from perfmodel.workload.collectives import GROUP, all_reduce, even_all_to_all, linked_collective
from perfmodel.workload.dense import COMPUTE, Dense, dense_layers
from perfmodel.workload.eager.arithmetic import optimizer_step
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.table_batched import look_up, update
from perfmodel.workload.eager.tensors import send_from_host, to_dtype
from perfmodel.workload.embedding_tables import fused_tables, total_lookups
from perfmodel.workload.hugectr_parts import (
    Linked,
    Networked,
    brought_keys,
    fused_cross,
    fused_interaction,
    fused_loss,
    fused_mlp,
    streaming_kernel,
)
from perfmodel.workload.jagged import PREFETCHED
from perfmodel.workload.settings import implementation
from perfmodel.workload.step import Run
from perfmodel.workload.tables import Table


class Collection:
    """One rank's embedding collection in a step; its functions in the order in which they run."""

    reduce_group = GROUP
    """The process group of the all-reduce."""

    def __init__(self, r: Recorder, run: Run, dtype: str) -> None:
        self.run, self.dtype = run, dtype
        tables = run.tables or (Table(1, run.workload.dim, 1e-3),)  # a rank without takes part
        self.tables = fused_tables(r, run, tables, run.global_batch)
        self.replicas = fused_tables(r, run, run.replicas, run.batch) if run.replicas else None
        self.keys = brought_keys(
            r, total_lookups(tables, run.global_batch), run.global_batch * len(tables)
        )
        if self.replicas is not None:
            count = total_lookups(run.replicas, run.batch)
            self.own_keys = brought_keys(r, count, run.batch * len(run.replicas))
        places = run.plan.domains or run.plan.shards
        dims = [table.dim for table in run.workload.tables]
        self.widths = tuple(sum(dims[shard.table] for shard in own) for own in places)
        self.own = self.widths[run.rank // run.linked if run.plan.domains else run.rank]

    def look_up(self, r: Recorder) -> None:
        run = self.run
        rows = look_up(r, self.tables, *self.keys, run.global_batch, self.dtype)
        self.received = self._received(r)
        if run.ranks == 1:
            self.received = rows
        elif run.groups == 1:
            even_all_to_all(r, rows, self.received, run.ranks)
        else:
            summed = r.tensor((run.batch * run.groups, self.own), self.dtype)
            linked_collective(r, "reduce_scatter", rows, summed, run.linked)
            even_all_to_all(r, summed, self.received, run.groups, nodes=run.groups)

    def local(self, r: Recorder) -> None:
        if self.replicas is not None:
            look_up(r, self.replicas, *self.own_keys, self.run.batch, self.dtype)

    def arrive(self, r: Recorder) -> Tensor:
        workload = self.run.workload
        out = r.tensor((self.run.batch, len(workload.tables), workload.dim), self.dtype)
        streaming_kernel(r, "network_forward", (self.received,), self._share(r, out))
        return out

    def send_back(self, r: Recorder, gradient: Tensor) -> None:
        run = self.run
        self.gradient = gradient
        spread = self._received(r)
        streaming_kernel(r, "network_backward", (self._share(r, gradient),), spread)
        self.returned = r.tensor((run.global_batch, self.own), self.dtype)
        if run.ranks == 1:
            self.returned = spread
        elif run.groups == 1:
            even_all_to_all(r, spread, self.returned, run.ranks)
        else:
            summed = r.tensor((run.batch * run.groups, self.own), self.dtype)
            even_all_to_all(r, spread, summed, run.groups, nodes=run.groups)
            linked_collective(r, "all_gather", summed, self.returned, run.linked)

    def replicated_gradient(self, r: Recorder) -> Tensor | None:
        if self.replicas is None:
            return None
        replicas, x = self.run.replicas, self.gradient
        sums = r.tensor((sum(table.rows for table in replicas), x.shape[2]), self.dtype)
        own = r.view(x, (x.shape[0], len(replicas), x.shape[2]), x.strides)
        streaming_kernel(r, "local_reduce", (own, self.own_keys[0]), sums)
        return sums

    def learn(self, r: Recorder, reduced: Tensor | None) -> None:
        about = self.tables.attributes
        sums = r.tensor((round(float(about["unique_rows"])), self.run.workload.dim))
        update(r, self.tables, *self.keys, self.returned)
        streaming_kernel(r, "row_gradients", (sums,), sums)
        if reduced is not None:
            weights = r.tensor(reduced.shape)
            streaming_kernel(r, "update_replicas", (reduced, weights), weights)

    def _received(self, r: Recorder) -> Tensor:
        """Partial sums for the own samples, of all parts of tables."""
        width = self.own if self.run.ranks == 1 else sum(self.widths)
        return r.tensor((self.run.batch, width), self.dtype)

    def _share(self, r: Recorder, x: Tensor) -> Tensor:
        """Of `[batch, tables, dim]` the tables that are exchanged."""
        count = x.shape[1] - len(self.run.replicas)
        return r.view(x, (x.shape[0], count, x.shape[2]), x.strides)


FP32_BYTES = 4
Embeddings = Collection | Linked | Networked


@implementation(
    "hugectr", mixed_dims=False, layer_precisions=False, int32_keys=False, groups_by_node=True
)
def hugectr(r: Recorder, run: Run) -> None:
    """One step of one rank."""
    software = run.workload.implementation
    r.is_bare = True
    dtype = COMPUTE[software.precision]
    layers = dense_layers(r, run.workload, dtype)
    kind: type[Embeddings] = Collection
    if software.sharding == "hybrid" and run.ranks > 1:
        kind = Linked if run.groups == 1 else Networked
    embeddings = kind(r, run, software.exchange_precision)
    with r.during(INPUT), r.with_attributes(PREFETCHED if software.prefetch else {}):
        features = run.workload.model.dense_features
        dense = send_from_host(r, (run.batch, features), "fp32", pinned=True)
        labels = send_from_host(r, (run.batch, 1), "fp32", pinned=True)
        send_from_host(r, (total_lookups(run.workload.tables, run.batch),), "int32", pinned=True)
    if software.prefetch:
        dense, labels = r.like(dense), r.like(labels)
    weights = layers.parameters
    if run.workload.training.dense_optimizer != "sgd" and dtype != "fp32":
        copies = r.tensor((_elements(weights),), dtype)
        streaming_kernel(r, "convert_weights", (r.tensor(copies.shape),), copies)
    sparse, output = _forward(r, run, layers, embeddings, dense)
    if run.train:
        loss = fused_loss(r, output, labels)
        _learn(r, run, loss, weights, sparse, embeddings)


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
    r.parameter(sparse)
    is_dot = workload.interaction.kind == "dot"
    joined = fused_interaction(r, features, sparse, workload.top_width if is_dot else 0)
    if not is_dot:
        joined = fused_cross(r, joined, layers.crosses)
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
        streaming_kernel(r, "unmodelled", (moved,), r.tensor(moved.shape))
    by_tensor = backward(r, loss, arrived)
    gradients = [by_tensor[weight.tensor_id] for weight in weights]
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

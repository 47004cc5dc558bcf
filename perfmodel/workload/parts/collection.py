"""HugeCTR's embedding collection: tables in parts on the ranks, small ones replicated.

Pooled partial sums travel, also those of bags without a row in the part; where there are several
groups of linked ranks, they are added up within a group before they do. Sums of gradients are
written per distinct row, then applied.

Source: HugeCTR/embedding and HugeCTR/src/pybind/model_pipeline.cpp of NVIDIA-Merlin/HugeCTR.
"""

from __future__ import annotations

from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.batched import Batched, look_up, update
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.parts.embeddings import stream
from perfmodel.workload.parts.exchange import GROUP, among_linked, even_all_to_all
from perfmodel.workload.parts.fused import fused_embeddings, tables_of, total_lookups
from perfmodel.workload.run import Run


class Collection:
    """See `embeddings.Embeddings`."""

    reduce_group = GROUP

    def __init__(self, r: Recorder, run: Run, dtype: str) -> None:
        self.run, self.dtype = run, dtype
        self.tables, self.replicas = fused_embeddings(r, run)
        self.keys = _keys(r, total_lookups(tables_of(run), run.global_batch), self.tables)
        if self.replicas is not None:
            self.own_keys = _keys(r, total_lookups(run.replicas, run.batch), self.replicas)
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
            among_linked(r, "reduce_scatter", rows, summed, run.linked)
            even_all_to_all(r, summed, self.received, run.groups, nodes=run.groups)

    def local(self, r: Recorder) -> None:
        if self.replicas is not None:
            look_up(r, self.replicas, *self.own_keys, self.run.batch, self.dtype)

    def arrive(self, r: Recorder) -> Tensor:
        workload = self.run.workload
        out = r.tensor((self.run.batch, len(workload.tables), workload.dim), self.dtype)
        summed = self._share(r, out)
        stream(r, "network_forward", (self.received,), summed)
        return out

    def send_back(self, r: Recorder, gradient: Tensor) -> None:
        run = self.run
        self.gradient = gradient
        spread = self._received(r)
        stream(r, "network_backward", (self._share(r, gradient),), spread)
        self.returned = r.tensor((run.global_batch, self.own), self.dtype)
        if run.ranks == 1:
            self.returned = spread
        elif run.groups == 1:
            even_all_to_all(r, spread, self.returned, run.ranks)
        else:
            summed = r.tensor((run.batch * run.groups, self.own), self.dtype)
            even_all_to_all(r, spread, summed, run.groups, nodes=run.groups)
            among_linked(r, "all_gather", summed, self.returned, run.linked)

    def replicated_gradient(self, r: Recorder) -> Tensor | None:
        if self.replicas is None:
            return None
        rows = sum(table.rows for table in self.run.replicas)
        self.sums = r.tensor((rows, self.run.workload.dim), self.dtype)
        stream(r, "local_reduce", (self._others(r, self.gradient), self.own_keys[0]), self.sums)
        return self.sums

    def learn(self, r: Recorder, reduced: Tensor | None) -> None:
        about = self.tables.attributes
        sums = r.tensor((round(float(about["unique_rows"])), self.run.workload.dim))
        update(r, self.tables, *self.keys, self.returned)
        stream(r, "row_gradients", (sums,), sums)
        if reduced is not None:
            weights = r.tensor(reduced.shape)
            stream(r, "update_replicas", (reduced, weights), weights)

    def _received(self, r: Recorder) -> Tensor:
        """Partial sums for the own samples, of all parts of tables."""
        width = self.own if self.run.ranks == 1 else sum(self.widths)
        return r.tensor((self.run.batch, width), self.dtype)

    def _share(self, r: Recorder, x: Tensor) -> Tensor:
        """Of `[batch, tables, dim]` the tables that are exchanged."""
        count = x.shape[1] - len(self.run.replicas)
        return r.view(x, (x.shape[0], count, x.shape[2]), x.strides)

    def _others(self, r: Recorder, x: Tensor) -> Tensor:
        """Of `[batch, tables, dim]` the replicated tables."""
        return r.view(x, (x.shape[0], len(self.run.replicas), x.shape[2]), x.strides)


def _keys(r: Recorder, lookups: int, tables: Batched) -> tuple[Tensor, Tensor]:
    """Keys and offsets, which the step before has brought."""
    bags = int(float(tables.attributes["batch"])) * int(tables.attributes["tables"])
    return r.tensor((lookups,), "int64"), r.tensor((bags + 1,), "int64")

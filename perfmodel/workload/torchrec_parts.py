"""What TorchRec's step is made of: the model, its loss, pooled rows on their way between ranks.

Pooled rows go from the ranks with tables to those with samples. Whole tables and columns: an
all-to-all. Rows on all ranks: partial sums by a reduce-scatter, whose backward is an all-gather.
Rows on linked ranks: a reduce-scatter among these, then an all-to-all among the ranks of one place
in each group. Source: TorchRec's sharding types (TW/CW, RW, TWRW).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from perfmodel.ops.graph import Tensor
from perfmodel.workload.collectives import GROUP, linked_collective
from perfmodel.workload.dense import COMPUTE, Dense, interact, mlp
from perfmodel.workload.eager.arithmetic import LOSSES, scalar_in_place
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.tensors import cast, detach, reshape, squeeze, to_dtype, view
from perfmodel.workload.model import Workload
from perfmodel.workload.pooled_exchange import Link, exchanged_rows, features_of, sum_parts
from perfmodel.workload.step import Run
from perfmodel.workload.tiered.adapter_rows import sum_in_adapters
from perfmodel.workload.tiered.source import ADDED, POOLED, REDUCED, WITHIN, output_route
from perfmodel.workload.training import LAST


def forward(
    r: Recorder, run: Run, layers: Dense, dense: Tensor, look_up: Callable[[], Tensor]
) -> Tensor:
    """Logits, or probabilities, of the own samples `[batch]`; `look_up` gives their pooled rows
    `[batch, tables, dim]`, when the bottom MLP is done."""
    workload = run.workload
    dtype = COMPUTE[workload.implementation.precision]
    features = mlp(r, dense, layers.bottom, dtype=dtype)
    sparse = cast(r, look_up(), features.dtype)
    joined = interact(r, workload, features, sparse, layers.crosses, dtype)
    output = mlp(r, joined, layers.top, last=LAST[workload.training.loss], dtype=dtype)
    return squeeze(r, cast(r, output, "fp32"), -1)


def loss_of(r: Recorder, run: Run, output: Tensor, labels: Tensor) -> Tensor:
    """The loss of `output` against `labels` `[batch]`, all three detached for the caller."""
    loss = LOSSES[run.workload.training.loss](r, output, to_dtype(r, labels, output.dtype))
    for tensor in (loss, output, labels):
        detach(r, tensor)
    return loss


def sums_by_table(r: Recorder, workload: Workload, pooled: Tensor) -> Tensor:
    """One vector per table; partial sums of a table that is in parts are added up."""
    dim, tables = workload.dim, len(workload.tables)
    vectors = pooled.shape[1] // dim
    if len({table.dim for table in workload.tables}) > 1:
        return pooled
    out = reshape(r, pooled, (-1, vectors, dim))
    if vectors == tables:
        return out
    return sum_parts(r, out, tables)


REQUEST, WAIT = "ReduceScatter_Req", "ReduceScatter_Wait"


@dataclass
class _Sum:
    """A sum over ranks: how it travels, and the gradients that came back."""

    ranks: int
    wire: str
    group: str = GROUP
    returned: Tensor | None = None

    def track(self, r: Recorder, pooled: Tensor, out: Tensor) -> Tensor:
        """`out` made of `pooled` by a request and a wait for it; backward is an all-gather."""

        def started(gradient: Tensor) -> list[Tensor]:
            """The gradients of all ranks' samples start on their way to each."""
            samples, dim = gradient.shape
            sent = cast(r, gradient, self.wire)
            self.returned = r.tensor((samples * self.ranks, dim), self.wire)
            linked_collective(r, "all_gather", sent, self.returned, self.ranks, self.group)
            return [r.tensor((1,))]

        def arrived(_: Tensor) -> list[Tensor]:
            """Waits for them, and divides by the number of ranks."""
            assert self.returned is not None
            of_pooled = cast(r, self.returned, pooled.dtype)
            scalar_in_place(r, "aten::div_", of_pooled, self.ranks)
            return [of_pooled]

        token = r.track(f"{REQUEST}Backward", (pooled,), r.tensor((1,)), arrived)
        return r.track(f"{WAIT}Backward", (token,), out, started)


def output_routes(run: Run) -> list[str]:
    """The ways that any rank's pooled rows take, in the order in which all ranks call them."""
    assert run.placement is not None
    held = {shard.table for own in run.plan.shards for shard in own}
    routes = {output_route(run.placement.tables[number], run) for number in held}
    return [way for way in (POOLED, REDUCED, ADDED, WITHIN) if way in routes]


def distribute_pooled(r: Recorder, run: Run, pooled: Tensor, way: str) -> Tensor:
    """`[global batch, own dims]` of the shards that go this `way` -> `[batch, dims of all]`."""
    wire = run.workload.implementation.exchange_precision
    widths = _widths(run, way)
    if run.ranks == 1:
        return features_of(r, pooled, widths[0])
    if way == REDUCED:
        return features_of(r, _reduce_scattered(r, pooled, _Sum(run.ranks, wire)), widths[run.rank])
    if way == ADDED:
        out = sum_in_adapters(r, run, pooled)
        return features_of(r, _Sum(run.ranks, wire).track(r, pooled, out), widths[run.rank])
    if not widths[run.rank]:
        pooled = _empty_pooled(r, pooled.shape[0])
    if way == POOLED:
        dims = tuple(map(sum, widths))
        out = exchanged_rows(r, pooled, Link(run.batch, dims, run.rank, wire, adapters=run))
        return features_of(r, out, [width for own in widths for width in own])
    place = run.rank % run.linked
    alike = widths[place :: run.linked]
    if alike[run.rank // run.linked]:
        group = f"linked {run.rank // run.linked}"
        pooled = _reduce_scattered(r, pooled, _Sum(run.linked, wire, group))
    else:
        pooled = _empty_pooled(r, run.batch * run.groups)
    dims = tuple(map(sum, alike))
    group = f"place {place}"
    link = Link(run.batch, dims, run.rank // run.linked, wire, run.groups, group)
    out = exchanged_rows(r, pooled, link)
    return features_of(r, out, [width for own in alike for width in own])


def _empty_pooled(r: Recorder, samples: int) -> Tensor:
    """What a rank without tables sends, as a parameter, so that it takes part in backward too."""
    empty = r.tensor((samples, 0))
    r.parameter(empty)
    return empty


def _widths(run: Run, way: str) -> list[list[int]]:
    """Per rank the dims of its shards that go this way."""
    assert run.placement is not None
    goes = [run.ranks == 1 or output_route(each, run) == way for each in run.placement.tables]
    tables = run.workload.tables
    dim_of: dict[tuple[int, int], int] = {}
    rows = []
    for own in run.plan.shards:
        widths = []
        for shard in own:
            if goes[shard.table]:
                key = shard.table, shard.columns
                if key not in dim_of:
                    dim_of[key] = shard.of(tables).dim
                widths.append(dim_of[key])
        rows.append(widths)
    return rows


def _reduce_scattered(r: Recorder, pooled: Tensor, about: _Sum) -> Tensor:
    """`[samples, dim]` on each rank -> the sums of the own part of the samples."""
    r.begin(REQUEST, pooled)
    sent = cast(r, pooled, about.wire)
    out = r.tensor((pooled.shape[0] // about.ranks, pooled.shape[1]), about.wire)
    linked_collective(r, "reduce_scatter", sent, out, about.ranks, about.group)
    r.end()
    r.begin(WAIT, r.tensor((1,)))
    out = to_dtype(r, out, "fp32") if out.dtype != "fp32" else view(r, out, out.shape)
    r.end(out)
    return about.track(r, pooled, out)

"""Pooled rows on their way from the ranks with tables to those with samples.

Whole tables and columns: an all-to-all. Rows on all ranks: partial sums by a reduce-scatter, whose
backward is an all-gather. Rows on linked ranks: a reduce-scatter among these, then an all-to-all
among the ranks of one place in each group. Source: TorchRec's sharding types (TW/CW, RW, TWRW).
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.ops.graph import Tensor
from perfmodel.workload.collectives import GROUP, linked_collective
from perfmodel.workload.eager.arithmetic import scalar_in_place
from perfmodel.workload.eager.creation import to_dtype
from perfmodel.workload.eager.recorder import Gradients, Node, Recorder, rule, track
from perfmodel.workload.eager.views import view
from perfmodel.workload.pooled_exchange import Link, exchanged_rows, features_of
from perfmodel.workload.step import Run
from perfmodel.workload.tiered.adapter_rows import sum_in_adapters
from perfmodel.workload.tiered.source import ADDED, POOLED, REDUCED, WITHIN, output_route

REQUEST, WAIT = "ReduceScatter_Req", "ReduceScatter_Wait"


@dataclass
class _Sum:
    """What a request and its wait share: ranks that add up, and what came either way."""

    ranks: int
    wire: str
    group: str = GROUP
    received: Tensor | None = None
    returned: Tensor | None = None


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
        about, token = _Sum(run.ranks, wire), r.tensor((1,))
        track(r, REQUEST, (pooled,), token, about)
        track(r, WAIT, (token,), out, about)
        return features_of(r, out, widths[run.rank])
    if not widths[run.rank]:
        pooled = _empty_pooled(r, pooled.shape[0])
    if way == POOLED:
        dims = tuple(map(sum, widths))
        link = Link(run.batch, dims, run.rank, adapters=run)
        out = exchanged_rows(r, pooled, link, wire)
        return features_of(r, out, [width for own in widths for width in own])
    place = run.rank % run.linked
    alike = widths[place :: run.linked]
    if alike[run.rank // run.linked]:
        pooled = _reduce_scattered(
            r, pooled, _Sum(run.linked, wire, f"linked {run.rank // run.linked}")
        )
    else:
        pooled = _empty_pooled(r, run.batch * run.groups)
    dims = tuple(map(sum, alike))
    link = Link(
        run.batch,
        dims,
        run.rank // run.linked,
        nodes=run.groups,
        group=f"place {run.rank % run.linked}",
    )
    out = exchanged_rows(r, pooled, link, wire)
    return features_of(r, out, [width for own in alike for width in own])


def _empty_pooled(r: Recorder, samples: int) -> Tensor:
    """What a rank without tables sends, as a parameter, so that it takes part in backward too."""
    empty = r.tensor((samples, 0))
    if r.tape is not None:
        r.tape.parameter(empty)
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
    sent = to_dtype(r, pooled, about.wire) if pooled.dtype != about.wire else pooled
    about.received = r.tensor((pooled.shape[0] // about.ranks, pooled.shape[1]), about.wire)
    linked_collective(r, "reduce_scatter", sent, about.received, about.ranks, about.group)
    r.end()
    token = r.tensor((1,))
    track(r, REQUEST, (pooled,), token, about)
    r.begin(WAIT, token)
    out = about.received
    out = to_dtype(r, out, "fp32") if out.dtype != "fp32" else view(r, out, out.shape)
    r.end(out)
    track(r, WAIT, (token,), out, about)
    return out


@rule(WAIT, "ReduceScatter_WaitBackward")
def _wait_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    """The gradients of all ranks' samples start on their way to each."""
    (gradient,) = gradients
    assert gradient is not None
    (about,) = node.saved
    sent = to_dtype(r, gradient, about.wire) if gradient.dtype != about.wire else gradient
    samples, dim = gradient.shape
    about.returned = r.tensor((samples * about.ranks, dim), about.wire)
    linked_collective(r, "all_gather", sent, about.returned, about.ranks, about.group)
    return [r.tensor((1,))]


@rule(REQUEST, "ReduceScatter_ReqBackward")
def _request_backward(r: Recorder, node: Node, gradients: Gradients) -> Gradients:
    """Waits for them, and divides by the number of ranks."""
    (about,) = node.saved
    pooled, out = node.inputs[0], about.returned
    out = to_dtype(r, out, pooled.dtype) if out.dtype != pooled.dtype else out
    scalar_in_place(r, "aten::div_", out, about.ranks)
    return [out]

"""`op_graph`: a trace to the op graph of each of its ranks."""

from __future__ import annotations

from perfmodel.errors import TraceError
from perfmodel.ops.graph import OpGraph
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.link import Links
from perfmodel.trace.read import MIN_PAIRED_FRAC, Trace

Timed = dict[int, tuple[RankTrace, Links]]


def op_graph(trace: Trace) -> tuple[OpGraph, ...]:
    """One op graph per rank of `trace`, in order of rank.

    From a profile whose execution trace is beside it: shapes, types, ids and data dependencies of
    the execution trace on the profile's ops and steps. From a profile alone: its recorded shapes.
    From an execution trace alone: all but events. Raises `TraceError` for a rank without shapes.
    """
    timed = {rank.rank: (rank, links) for rank, links in zip(trace.ranks, trace.links, strict=True)}
    numbers = sorted({*timed, *trace.execution_traces})
    if not numbers:
        raise TraceError(f"{trace.source}: holds neither a profile nor an execution trace")
    world_size = max([len(numbers), *(rank.world_size or 1 for rank in trace.ranks)])
    return tuple(_of_rank(trace, number, timed, world_size) for number in numbers)


def _of_rank(trace: Trace, number: int, timed: Timed, world_size: int) -> OpGraph:
    execution_trace = trace.execution_traces.get(number)
    if number not in timed:
        from perfmodel.ops.read.execution_trace import of_execution_trace

        assert execution_trace is not None
        return of_execution_trace(execution_trace, number, world_size)
    from perfmodel.ops.read.profile import of_kineto

    rank, links = timed[number]
    pairing = trace.pairings.get(number)
    if execution_trace is None or pairing is None or pairing.matched_frac < MIN_PAIRED_FRAC:
        return of_kineto(rank, links, world_size)
    from perfmodel.ops.read.execution_trace import of_pair

    return of_pair(rank, links, execution_trace, pairing, world_size)

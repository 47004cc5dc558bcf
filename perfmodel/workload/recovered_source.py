"""The workload of a recording: of a trace or a folder of ranks, of a module's source; how popular
the rows of its tables are, from the ids that were looked up."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from perfmodel.base.arrays import Ints, Mask
from perfmodel.embedding.index_streams import read_stream, stream_alpha, traced_lookups
from perfmodel.embedding.popularity import population, reuse_histogram, zipf
from perfmodel.errors import TraceError, WorkloadError
from perfmodel.lowering import lower
from perfmodel.lowering.build import execution_graph
from perfmodel.lowering.host import Profile, load_profile
from perfmodel.lowering.host.measure import OP_WITHOUT_LAUNCH, T1, measure
from perfmodel.lowering.host.profile import EAGER
from perfmodel.lowering.observed import unexplained_waits
from perfmodel.ops.graph import OpGraph
from perfmodel.ops.read.module import Call, graph_of_program, program_of
from perfmodel.timeline.graph.build import build_rank
from perfmodel.timeline.graph.kinds import Scope
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.trace import Trace, read
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.link import Links
from perfmodel.trace.window import AUTOGRAD_THREAD, MAIN_THREAD
from perfmodel.workload.recorded_layers import traced_graphs
from perfmodel.workload.recovered import DEFAULT, RECORDED, Fact, Recovered, recovered
from perfmodel.workload.recovered_tables import SUMS, UNSEEN, HeldTable
from perfmodel.workload.step import BESIDE_MODEL, op_graph
from perfmodel.workload.tables import Table


def recovered_of(source: str | Path | Trace | OpGraph) -> Recovered:
    """The workload of a trace (its path, or itself), of the ops of a program, or of the class
    `FILE.py:CLASS`, whose file is executed.

    Raises `TraceError` for what cannot be read, and `WorkloadError` for what is no workload.
    """
    if isinstance(source, OpGraph):
        return recovered([source], source.source)
    program = program_of(str(source)) if isinstance(source, (str, Path)) else None
    if program is not None:
        graph = graph_of_program(program, Call(training=True))
        return recovered([graph], program.name, program.class_name)
    trace = source if isinstance(source, Trace) else read(source)
    try:
        graphs = traced_graphs(trace)
    except TraceError as problem:
        raise WorkloadError(f"{problem} (tables and layers are told by shapes)") from None
    found = recovered(graphs, trace.source)
    if trace.ranks and found.train and len(trace.links[0].device_rows):
        found = _beside_model(found, trace.ranks[0], trace.links[0])
    recordings = _saved_ids(Path(trace.source))
    return _with_saved_ids(found, recordings) if recordings else found


def _beside_model(found: Recovered, rank: RankTrace, links: Links) -> Recovered:
    """With what a recorded step has beside the model's: host time, in operators that launch
    nothing, and waits of the device for no reason that is recorded."""
    measured, steps = build_rank(rank, links), max(len(links.steps), 1)
    profile = Profile.from_samples(measure(rank, links)).completed(load_profile(EAGER))
    lowered = lower(op_graph(found.workload, ranks=found.ranks, rank=rank.rank), "cuda")
    own = execution_graph(lowered, np.zeros(len(lowered.pieces)), profile).graph
    each_us = profile.durations((T1, OP_WITHOUT_LAUNCH), [BESIDE_MODEL] * 2, [MAIN_THREAD] * 2)
    begun_us, over_us = measured.nodes_.start_us, links.steps.end_us.max(initial=0.0)
    is_inside = (links.steps.of_time(begun_us) >= 0) & (begun_us < over_us)
    left_us = _host_us(measured, is_inside) / steps - _host_us(own, True)
    waited_us = round(sum(unexplained_waits(measured).values()) / steps, 1)
    count = max(round(left_us / each_us.sum()), 0)
    changed = found.workload.with_(training__host_ops=count, training__waited_us=waited_us)
    why = "host time beside the model's operators, in such that launch nothing"
    found = replace(found, workload=changed).told(Fact("training.host_ops", count, RECORDED, why))
    why = "the device waits and the record does not tell why: as long on any machine"
    return found.told(Fact("training.waited_us", waited_us, DEFAULT, why)) if waited_us else found


def _host_us(graph: ExecutionGraph, kept: Mask | bool) -> float:
    """What the threads that train take in the nodes that are `kept`, without waiting."""
    nodes, threads = graph.nodes_, (f"/{MAIN_THREAD}", f"/{AUTOGRAD_THREAD}")
    places = [at for at, name in enumerate(graph.resources) if name.endswith(threads)]
    kept = np.isin(nodes.resource, places) & (nodes.scope == Scope.HOST) & kept
    return float(nodes.duration_us[kept].sum())


def _saved_ids(path: Path) -> list[Path]:
    """Execution traces at `path`, or in that folder, beside which PyTorch saved integer tensors."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    return [each for each in files if each.with_name(f"{each.stem}_resources").is_dir()]


def _with_saved_ids(found: Recovered, files: Sequence[Path]) -> Recovered:
    """With the skew of the ids that were saved: of tables of the same size, in order."""
    tables, left = list(found.workload.tables), list(range(len(found.held)))
    for file in files:
        for seen in traced_lookups(file):
            size = seen.table_rows, seen.dim
            at = next((n for n in left if (tables[n].rows, tables[n].dim) == size), None)
            if at is not None:
                left.remove(at)
                tables[at] = with_skew(tables[at], seen.rows, f"{file}: table {at}")
    return found.with_tables(tables, "ids saved beside the trace")


def with_ids(found: Recovered, path: str | Path) -> Recovered:
    """With the skew of the ids in the file at `path`, of which it holds a stream for each table
    (see `read_stream`): by number where their names end in numbers, else in order.

    Rows that are not told are as many as the ids need at least. Raises `WorkloadError` for streams
    of other tables, ids beyond the rows of a table, or of all tables of one call, and where
    exponents contradict one another.
    """
    streams, tables = read_stream(path), found.workload.tables
    names = list(streams)
    numbers = [re.search(r"\d+$", name) for name in names]
    if all(numbers):
        names.sort(key=lambda name: int(re.search(r"\d+$", name)[0]))  # type: ignore[index]
    if len(names) != len(tables):
        raise WorkloadError(f"{path}: ids of {len(names)} tables, the workload has {len(tables)}")
    held: Sequence[HeldTable | None] = found.held or [None] * len(tables)
    rows = _rows(found.held, [int(streams[name].max()) + 1 for name in names], str(path))
    made = []
    for number, (name, table, own) in enumerate(zip(names, tables, held, strict=True)):
        where = f"{path}: table {name or number}"
        table = replace(table, rows=rows.get(number, table.rows))
        skewed = with_skew(table, streams[name], where)
        is_known = own is not None and own.skew_told and not table.histogram
        if is_known and abs(skewed.alpha - table.alpha) > _FEW_OFF * max(table.alpha, 1.0):
            raise WorkloadError(
                f"{where}: its ids have alpha {skewed.alpha:.2f}, those that were recorded "
                f"{table.alpha:.2f}"
            )
        made.append(skewed)
    found = found.with_tables(made, f"ids in {path}")
    if not rows:
        return found
    why = f"not told one by one: as many as ids in {path} need, with even parts of the others"
    return replace(found, facts=(*found.facts, Fact("tables.rows", len(rows), DEFAULT, why)))


def _rows(held: Sequence[HeldTable], needed: Sequence[int], path: str) -> dict[int, int]:
    """Rows by number of those tables that are not told theirs, where the ids of some need more:
    what all need, and of the others of their call each an even part."""
    found, calls = dict[int, int](), defaultdict[tuple[int, ...], list[int]](list)
    for number, each in enumerate(held):
        if each.told == SUMS:
            calls[each.ranks].append(number)
        elif each.told == UNSEEN and needed[number] > each.table.rows:
            found[number] = needed[number]
    for own in calls.values():
        total, least = sum(held[n].table.rows for n in own), sum(needed[n] for n in own)
        if least > total:
            raise WorkloadError(
                f"{path}: ids of {len(own)} tables need {least:,} rows, and these have {total:,} "
                "in all"
            )
        if any(needed[n] > held[n].table.rows for n in own):
            found |= {n: needed[n] + (total - least) // len(own) for n in own}
    return found


_FEW_OFF = 0.05
"""By so much may the distinct rows that a Zipf distribution expects be off, for it to stand; and
two exponents of one table."""


def with_skew(table: Table, ids: Ints, where: str) -> Table:
    """`table`, its rows as popular as `ids` `[lookups]` look them up: by Zipf's law where that
    expects as many distinct rows, else by a histogram."""
    largest = int(ids.max())
    if largest >= table.rows:
        raise WorkloadError(f"{where}: row {largest}, of {table.rows:,} rows from 0")
    alpha, histogram = stream_alpha(ids, table.rows), reuse_histogram(ids, where)
    expected = float(zipf(table.rows, alpha, smooth=True).distinct_rows(len(ids)))
    plain = replace(table, alpha=round(alpha, 4), key_rows=0, histogram=())
    if abs(expected - histogram.distinct_rows) <= _FEW_OFF * histogram.distinct_rows:
        return plain
    found = population(histogram, table.rows)
    rows = np.append(found.rows, max(table.rows - found.total_rows, 0.0)) / table.rows
    shares = np.maximum(np.append(found.share, 0.0), _UNSEEN_SHARE)
    classes = zip(shares.tolist(), rows.tolist(), strict=True)
    return replace(plain, alpha=0.0, histogram=tuple(each for each in classes if each[1] > 0))


_UNSEEN_SHARE = 1e-15
"""Of lookups that go to rows of which a stream has none."""

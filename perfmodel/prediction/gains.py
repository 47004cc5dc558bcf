"""What would help most: what-ifs of a trace, each scheduled, by what its step would gain."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.arrays import Floats, Ints, distinct, has_code, median
from perfmodel.errors import UsageError
from perfmodel.ops.families import CLASS_OF_FAMILY, COMPUTE_BOUND, MEMORY_BOUND, family_of_kernel
from perfmodel.ops.graph import AUTOGRAD_NODE
from perfmodel.prediction.breakdown.completeness import lacks_work
from perfmodel.prediction.breakdown.hotspots import UNFIT
from perfmodel.prediction.what_if import PARTS, Scale, thread_of, what_if
from perfmodel.timeline.graph.kinds import IN_OPERATOR, SCOPES, Cause, NodeKind
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.period import Periods
from perfmodel.timeline.schedule import measured, ranks_of, steady_steps
from perfmodel.trace.columns import NONE

MOST = 5
MIN_FRAC = 0.01
"""Of the step: what gains less is not worth a line."""
MAX_NODES = 20_000
"""Of large traces gains are of as few steps as hold so many nodes, those closest to the median."""
_MAX_OPERATORS = 5


@dataclass(frozen=True)
class Gain:
    """What one step gains by a what-if, and the command that says so."""

    name: str
    command: str
    gain_us: float
    gain_frac: float
    """Of the step as it is replayed."""
    advice: str

    def to_dict(self) -> dict[str, Any]:
        rounded = {"gain_us": round(self.gain_us, 4), "gain_frac": round(self.gain_frac, 6)}
        return asdict(self) | rounded


@dataclass(frozen=True)
class _Candidate:
    """A what-if that may help, and how one would come near it (`gains.toml`)."""

    name: str
    what: str
    advice: str
    factor: float = 0.0
    of: str = "trace"
    """For what there is one each."""

    def named(self, each: str) -> _Candidate:
        quoted = re.escape(each).replace(r"\ ", " ")
        what = self.what.replace("{each}", each).replace("{quoted}", quoted)
        advice = _TABLES["advice_of_family"].get(what, self.advice)
        return replace(self, name=self.name.replace("{each}", each), what=what, advice=advice)

    @property
    def option(self) -> tuple[str, str]:
        """As `perfmodel predict` takes it."""
        if not self.factor:
            return "--remove", self.what
        return "--scale", f"{self.what}={self.factor:g}"

    @property
    def scale(self) -> Scale:
        return Scale.parse(f"{self.what}={self.factor:g}")


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_REGISTRY = [_Candidate(**row) for row in _TABLES["candidate"]]


def _names_on(graph: ExecutionGraph, on_path: Ints) -> dict[str, list[str]]:
    """For what candidates there may be one each, its names among the nodes `on_path`."""
    nodes = graph.nodes_
    resources = {graph.resources[at] for at in set(nodes.resource[on_path].tolist())}
    threads = sorted({thread_of(name) for name in resources if "/gpu" not in name})
    recorded = distinct(nodes.resource[has_code(nodes.cause, IN_OPERATOR)]).tolist()
    operating = {thread_of(graph.resources[at]) for at in recorded}
    launches_none = on_path[nodes.cause[on_path] == Cause.HOST_OP_WITHOUT_LAUNCH]
    total_us: defaultdict[str, float] = defaultdict(float)
    for row, us in zip(launches_none.tolist(), nodes.duration_us[launches_none], strict=True):
        total_us[graph.labels[row].removeprefix(AUTOGRAD_NODE)] += us
    labels = {graph.labels[node] for node in on_path[graph.on_device[on_path]].tolist()}
    families = sorted({family_of_kernel(label) for label in labels} - {*SCOPES})
    return {
        "trace": [""],
        "thread": threads,
        "thread with operators": [name for name in threads if name in operating],
        "operator": sorted(total_us, key=lambda name: (-total_us[name], name))[:_MAX_OPERATORS],
        "compute-bound family": [f for f in families if CLASS_OF_FAMILY[f] == COMPUTE_BOUND],
        "memory-bound family": [f for f in families if CLASS_OF_FAMILY[f] == MEMORY_BOUND],
    }


def predict_words(
    graph: ExecutionGraph,
    source: str | None,
    hardware: Sequence[str] = (),
    options: Sequence[str] = (),
) -> list[str]:
    """The words of `perfmodel predict` for a trace (None: the demo) with `options`, without
    what-ifs.

    `--keep-contention` stands where collectives may slow kernels down: what they cost one another
    takes far longer to work out anew than a schedule.
    """
    words = ["perfmodel", "predict", *([source] if source is not None else []), *options]
    for name in hardware:
        words += ["--hardware", name]
    if not hardware and (graph.nodes_.kind[graph.on_device] == NodeKind.COLLECTIVE).any():
        words.append("--keep-contention")
    return words


Helps = tuple[list[Gain], list[str]]
"""What would help most; or, in a line, why that is not known."""


def gains_or_why(
    graph: ExecutionGraph, duration_us: Floats, command: Sequence[str], **about: Any
) -> Helps:
    """As `gains`; an odd recording costs no other answer."""
    try:
        return gains(graph, duration_us, command, **about), []
    except UNFIT as error:
        return [], [f"what would help most could not be worked out: {error}"]


def gains(
    graph: ExecutionGraph,
    duration_us: Floats,
    command: Sequence[str],
    *,
    straggler: Mapping[str, Any] | None = None,
    steps: slice = slice(None),
    periods: Periods | None = None,
) -> list[Gain]:
    """The what-ifs that gain most, largest first, of a graph with `duration_us` per node.

    A gain is what the period of the slowest rank gets shorter by, in the median over its typical
    steps, contention unchanged. `command` predicts these durations; a gain's has the what-if behind
    it; without one, gains have none. `straggler` is the rank that others wait for
    (`RankWaiting.to_dict`), `steps` which steps count, `periods` those of the steady steps, if
    known. None where the work was not recorded.
    """
    if lacks_work(graph):
        return []
    truth = measured(graph)
    chosen = np.arange(len(graph.marks.name) // max(len(ranks_of(graph)), 1))[steps]
    steady = chosen[np.isin(chosen, steady_steps(truth))]
    steady = steady if len(steady) else chosen
    known = periods is not None and bool(np.isin(steady, periods.steps).all())
    every = periods.only(steady) if periods and known else Periods.of(graph, steady)
    every_us = every.step_us(duration_us).max(axis=0)
    near = np.argsort(np.abs(every_us - median(every_us)), kind="stable")
    typical = np.sort(steady[near[: max(MAX_NODES * len(steady) // len(graph), 1)]])
    few = every.only(typical)
    base_us = _typical_us(few, duration_us)

    def gain_us(scale: Scale, of: Periods) -> float:
        changed, taken_us = what_if(graph, duration_us, [scale])
        again = of if changed is graph else Periods.of(changed, of.steps)
        return _typical_us(of, duration_us) - _typical_us(again, taken_us)

    ranked: list[tuple[float, _Candidate]] = []
    for bound_us, candidate, scale in _bounded(few, duration_us, straggler):
        enough = sorted((us for us, _ in ranked), reverse=True)[:MOST][MOST - 1 :]
        if bound_us < max(MIN_FRAC * base_us, *enough, 0.0):
            break
        try:
            ranked.append((gain_us(scale, few), candidate))
        except UsageError:  # there is nothing of it
            continue
    ranked.sort(key=lambda row: (-row[0], row[1].name))
    if len(few.steps) < len(every.steps):
        ranked = [(gain_us(each.scale, every), each) for _, each in ranked[:MOST]]
        ranked.sort(key=lambda row: (-row[0], row[1].name))
    whole_us = _typical_us(every, duration_us)
    return [
        Gain(
            name=candidate.name,
            command=shlex.join([*command, *candidate.option]) if command else "",
            gain_us=us,
            gain_frac=us / whole_us,
            advice=candidate.advice,
        )
        for us, candidate in ranked[:MOST]
        if us >= MIN_FRAC * whole_us > 0
    ]


def _typical_us(periods: Periods, duration_us: Floats) -> float:
    """The slowest rank's median step, as `predict` tells it."""
    return max(map(median, periods.step_us(duration_us)))


def _bounded(
    periods: Periods, duration_us: Floats, straggler: Mapping[str, Any] | None
) -> list[tuple[float, _Candidate, Scale]]:
    """Candidates with what each can gain at most, largest first: no more than it takes off the
    cycle that decides the period of a typical step; what takes a wait out, all."""
    graph = periods.graph
    # What a node, and the edge that leads to it, takes of such a cycle, the most of any.
    node_us, way_us = np.zeros((2, len(graph)))
    reached = np.zeros(len(graph), np.bool_)  # by an edge of a cycle
    for step in periods.repeated:
        table = np.array(step.path(graph, duration_us)).reshape(-1, 5)
        node, taken_us = table[:, 0].astype(np.int64), table[:, 4] - table[:, 3]
        is_way = table[:, 1] != NONE
        reached[node[is_way]] = True
        for most_us, chosen in ((node_us, ~is_way), (way_us, is_way)):
            rows, of_row = np.unique(node[chosen], return_inverse=True)
            most_us[rows] = np.maximum(most_us[rows], np.bincount(of_row, taken_us[chosen]))
    if not periods.repeated:  # a window: all that it is made of
        node_us, way_us, reached = duration_us, np.full(len(graph), inf), np.ones_like(reached)
    on_path, bounded = np.flatnonzero(node_us), []
    names = _names_on(graph, on_path)
    candidates = (each.named(name) for each in _REGISTRY for name in names[each.of])
    for candidate in (*candidates, *_level(graph, straggler)):
        scale = candidate.scale
        ways = distinct(graph.edges_.target[scale.edges(graph)])
        taken_us = node_us[scale.among(graph, on_path)].sum() + way_us[ways].sum()
        waits = bool(PARTS[scale.scope].waits) and bool(reached[ways].any())
        bounded.append((inf if waits else float(taken_us) * (1 - scale.factor), candidate, scale))
    return sorted(bounded, key=lambda row: (-row[0], row[1].name))


def _level(graph: ExecutionGraph, straggler: Mapping[str, Any] | None) -> Iterator[_Candidate]:
    """The rank that the others wait for, with no more of what makes it late than their mean."""
    late = _TABLES["late"].get(straggler["cause"]) if straggler else None
    if straggler is None or late is None:
        return
    what, words, advice = late
    rank, ranks = int(straggler["rank"]), ranks_of(graph)
    nodes = graph.nodes_
    chosen = Scale.parse(f"{what}=1").among(graph, np.arange(len(graph)))
    own = {r: chosen[nodes.rank[chosen] == r] for r in ranks}
    total_us = {r: float(nodes.duration_us[rows].sum()) for r, rows in own.items()}
    others_us = float(np.mean([us for r, us in total_us.items() if r != rank]))
    if total_us[rank] > others_us:
        factor = round(others_us / total_us[rank], 3)
        yield _Candidate(
            f"rank {rank} with no more {words} than the others", f"{what}@{rank}", advice, factor
        )

"""What would help most: what-ifs of a trace, each scheduled, by what its step would gain."""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from typing import Any

import numpy as np

from perfmodel.arrays import Floats, Ints, Mask, distinct, has_code, median
from perfmodel.errors import UsageError
from perfmodel.graph.kinds import SCOPES, Cause
from perfmodel.graph.types import ExecutionGraph
from perfmodel.ops.families import CLASS_OF_FAMILY, COMPUTE_BOUND, MEMORY_BOUND, family_of_kernel
from perfmodel.prediction.breakdown.completeness import IN_OPERATOR, lacks_work
from perfmodel.prediction.breakdown.straggler import COPIES, DATA_LOADING, HOST, KERNELS, LOOKUPS
from perfmodel.prediction.what_if import IN_DEVICE, PARTS, Scale, thread_of, what_if
from perfmodel.timeline.period import Periods
from perfmodel.timeline.schedule import measured
from perfmodel.timeline.steps import ranks_of, steady_steps

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
    """A what-if that may help, and how one would come near it.

    `{each}` in its texts stands for every thread, family or operator of the trace in turn.
    """

    name: str
    what: str
    factor: float
    advice: str

    def of(self, each: str) -> _Candidate:
        quoted = re.escape(each).replace(r"\ ", " ")
        what = self.what.replace("{each}", each).replace("{quoted}", quoted)
        advice = _ADVICE_OF_FAMILY.get(what, self.advice)
        return replace(self, name=self.name.replace("{each}", each), what=what, advice=advice)

    @property
    def option(self) -> tuple[str, str]:
        """As `perfmodel predict` takes it."""
        if not self.factor:
            return "--remove", self.what
        return "--scale", f"{self.what}={self.factor:g}"

    @property
    def scale(self) -> Scale:
        name, text = self.option
        return Scale.parse(text) if name == "--scale" else Scale.parse_removal(text)


def _threads(graph: ExecutionGraph, on_path: Ints) -> list[str]:
    names = {graph.resources[at] for at in set(graph.nodes_.resource[on_path].tolist())}
    return sorted({thread_of(name) for name in names if "/gpu" not in name})


def _operating_threads(graph: ExecutionGraph, on_path: Ints) -> list[str]:
    """Those that recorded an operator: what another one does between its calls nobody knows."""
    recorded = graph.nodes_.resource[has_code(graph.nodes_.cause, IN_OPERATOR)]
    known = {thread_of(graph.resources[at]) for at in distinct(recorded).tolist()}
    return [name for name in _threads(graph, on_path) if name in known]


def _families(of_class: str, graph: ExecutionGraph, on_path: Ints) -> list[str]:
    labels = {graph.labels[node] for node in on_path[graph.on_device[on_path]].tolist()}
    names = sorted({family_of_kernel(label) for label in labels})
    return [name for name in names if name not in SCOPES and CLASS_OF_FAMILY[name] == of_class]


def _operators(graph: ExecutionGraph, on_path: Ints) -> list[str]:
    """Those that take most of the path without launching anything, but for autograd's wrappers."""
    nodes = graph.nodes_
    rows = on_path[nodes.cause[on_path] == Cause.HOST_OP_WITHOUT_LAUNCH]
    total: defaultdict[str, float] = defaultdict(float)
    for row, us in zip(rows.tolist(), nodes.duration_us[rows].tolist(), strict=True):
        total[graph.labels[row].rpartition(": ")[2]] += us
    return sorted(total, key=lambda name: (-total[name], name))[:_MAX_OPERATORS]


_COLLECTIVES = {
    "all-reduces": "all_?reduce",
    "all-to-alls": "all_?to_?all|send_?recv",
    "all-gathers": "all_?gather",
    "reduce-scatters": "reduce_?scatter",
    "broadcasts": "broadcast",
    "collectives whose names do not tell which": (
        "^(?!.*(all_?reduce|all_?to_?all|send_?recv|gather|scatter|broadcast))"
    ),
}
_OVERLAP = "overlap with compute (buckets, prefetch), or fewer bytes (--codec)"
_OF_TRACE = (
    ("data loading gone", "data_loading", 0.0, "more workers, or prefetch"),
    ("waiting for input gone", "input", 0.0, "more load, or requests queued ahead"),
    ("copies from and to the host gone", "memcpy_host", 0.0, "data kept on the device"),
    ("copies within the device gone", IN_DEVICE, 0.0, "fused kernels, views in place of clones"),
    (
        "blocking copies do not block",
        "blocking_call:(?i)memcpy",
        0.0,
        "pinned memory and non_blocking=True",
    ),
    (
        "synchronising calls gone",
        "blocking_call:(?i)synchronize|wait",
        0.0,
        "no .item(), .cpu() or print of a tensor within the step",
    ),
    ("hidden synchronisation gone", "hidden_sync", 0.0, "read timing events later"),
    (
        "allocator calls gone",
        "allocator",
        0.0,
        "a warm caching allocator: equal shapes, expandable_segments",
    ),
    ("launch latency halved", "launch_latency", 0.5, "CUDA graphs"),
    *((f"{name} gone", f"comm:(?i){text}", 0.0, _OVERLAP) for name, text in _COLLECTIVES.items()),
)
_OF_THREADS = (
    (
        "gaps between operators of {each} gone",
        "host_t1/{each}",
        0.0,
        "less Python between operators: torch.compile",
    ),
    (
        "operators of {each} halved (host)",
        "operators/{each}",
        0.5,
        "fewer and larger operators: torch.compile, foreach and fused variants",
    ),
)
_OF_OPERATOR = (
    "{each} halved (host)",
    r"host_op_without_launch: {quoted}( in |$)",
    0.5,
    "a faster or fused variant, fewer calls, more threads",
)
_FEWER_FLOP = "a lower precision (tensor cores), or fewer FLOP"
_FEWER_BYTES = "fused kernels (torch.compile), or a narrower type"
_Row = tuple[str, str, float, str]
_REGISTRY: tuple[tuple[tuple[_Row, ...], Callable[[ExecutionGraph, Ints], list[str]]], ...] = (
    (_OF_TRACE, lambda graph, on_path: [""]),
    ((("launches of {each} gone", "host_t4/{each}", 0.0, "CUDA graphs"),), _threads),
    (_OF_THREADS, _operating_threads),
    ((_OF_OPERATOR,), _operators),
    ((("{each} kernels halved", "{each}", 0.5, _FEWER_FLOP),), partial(_families, COMPUTE_BOUND)),
    ((("{each} kernels halved", "{each}", 0.5, _FEWER_BYTES),), partial(_families, MEMORY_BOUND)),
)
"""Candidates, and for what of the critical path there is one each. Another cause is another row."""
_ADVICE_OF_FAMILY = {
    "attention": "a fused attention kernel (scaled_dot_product_attention)",
    "convolution": "channels_last, a lower precision, cudnn.benchmark",
    "embedding": "table-batched lookups, a cache of hot rows, narrower rows",
    "optimizer": "a fused optimizer (fused=True)",
}
"""In the place of what helps kernels of their class."""
_LATE = {
    HOST: ("host", "host work", "move work to other ranks; look at what its thread does"),
    DATA_LOADING: ("data_loading", "data loading", "more workers, or prefetch"),
    LOOKUPS: ("embedding", "lookups", "another sharding of the tables (perfmodel plan)"),
    KERNELS: ("compute", "kernels", "balance the work; look at the device's clock"),
    COPIES: ("memcpy", "copies", "balance the work; look at the device's link"),
}
"""Why the others wait for a rank (`timeline.straggler`): scope, words, advice."""


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
    it. `straggler` is the rank that others wait for (`RankWaiting.to_dict`), `steps` which steps
    count, `periods` those of the steady steps, if known. None where the work was not recorded.
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
    deciding, base_us = _deciding(few, duration_us), _typical_us(few, duration_us)

    def gain_us(scale: Scale, of: Periods) -> float:
        """What the median of these steps gains."""
        changed, taken_us = what_if(graph, duration_us, [scale])
        again = of if changed is graph else Periods.of(changed, of.steps)
        return _typical_us(of, duration_us) - _typical_us(again, taken_us)

    ranked: list[tuple[float, _Candidate]] = []
    for bound_us, candidate, scale in _bounded(graph, deciding, straggler):
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
            command=shlex.join([*command, *candidate.option]),
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


_Deciding = tuple[Floats, Floats, Mask]
"""Per node what it, and the edge that leads to it, takes of the cycle that decides the period of a
typical step, the most of any; and whether an edge of a cycle leads to it. A what-if gains no more
than it takes off that cycle."""


def _deciding(periods: Periods, duration_us: Floats) -> _Deciding:
    node_us, way_us = np.zeros((2, len(periods.graph)))
    reached = np.zeros(len(periods.graph), np.bool_)
    for step in periods.repeated:
        found = step.on_cycle(duration_us)
        reached[found.then] = True
        for most_us, at, us in (
            (node_us, found.node, found.node_us),
            (way_us, found.then, found.way_us),
        ):
            rows, of_row = np.unique(at, return_inverse=True)
            most_us[rows] = np.maximum(most_us[rows], np.bincount(of_row, us))
    if not periods.repeated:  # a window: all that it is made of
        return duration_us, np.full(len(duration_us), inf), np.ones_like(reached)
    return node_us, way_us, reached


def _bounded(
    graph: ExecutionGraph, deciding: _Deciding, straggler: Mapping[str, Any] | None
) -> list[tuple[float, _Candidate, Scale]]:
    """Candidates with what each can gain at most, largest first: what takes a wait out of the
    cycle, all."""
    node_us, way_us, reached = deciding
    on_path = np.flatnonzero(node_us)
    bounded = []
    for candidate in (*_candidates(graph, on_path), *_level(graph, straggler)):
        scale = candidate.scale
        ways = distinct(graph.edges_.target[scale.edges(graph)])
        taken_us = node_us[scale.among(graph, on_path)].sum() + way_us[ways].sum()
        waits = bool(PARTS[scale.scope].waits) and bool(reached[ways].any())
        bounded.append((inf if waits else float(taken_us) * (1 - scale.factor), candidate, scale))
    return sorted(bounded, key=lambda row: (-row[0], row[1].name))


def _candidates(graph: ExecutionGraph, on_path: Ints) -> Iterator[_Candidate]:
    for rows, each_of in _REGISTRY:
        for each in each_of(graph, on_path):
            yield from (_Candidate(*row).of(each) for row in rows)


def _level(graph: ExecutionGraph, straggler: Mapping[str, Any] | None) -> Iterator[_Candidate]:
    """The rank that the others wait for, with no more of what makes it late than their mean."""
    if straggler is None or straggler["cause"] not in _LATE:
        return
    what, words, advice = _LATE[straggler["cause"]]
    rank, ranks = int(straggler["rank"]), ranks_of(graph)
    nodes = graph.nodes_
    chosen = Scale.parse(f"{what}=1").among(graph, np.arange(len(graph)))
    own = {r: chosen[nodes.rank[chosen] == r] for r in ranks}
    total_us = {r: float(nodes.duration_us[rows].sum()) for r, rows in own.items()}
    others_us = float(np.mean([us for r, us in total_us.items() if r != rank]))
    if total_us[rank] > others_us:
        factor = round(others_us / total_us[rank], 3)
        yield _Candidate(
            f"rank {rank} with no more {words} than the others", f"{what}@{rank}", factor, advice
        )

"""Kernels of CUDA and HIP graphs laid back onto the operators of an eager run that they repeat.

A launch of a graph says nothing of its kernels but their names and order. Where the calls that were
captured are in the file, one per kernel, those tell; else the kernels of an eager step do, in the
file or in another one: the longest runs of equal names on both sides (`difflib`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.prediction.breakdown.hotspots import Hotspots, Nesting, row_of
from perfmodel.prediction.breakdown.tables import NamedSums, once, summed
from perfmodel.trace.categories import GRAPH_LAUNCH_CALL, Category
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import Links, equal_runs

LEAST_FRAC = 0.5
"""assumed: where fewer of a launch are laid back, the eager run is of other work."""
LEAST_KERNELS = 10
"""assumed: names of fewer occur in any program."""
_BEGIN_CAPTURE, _END_CAPTURE = re.compile("StreamBeginCapture"), re.compile("StreamEndCapture")


def in_graphs(rank: RankTrace, links: Links) -> Mask:
    """Which device rows of the links a graph launched."""
    launch = links.device_launch
    is_graph: Mask = rank.name_matches(GRAPH_LAUNCH_CALL)[launch] & (launch >= 0)
    return is_graph


@dataclass(frozen=True)
class LaidBack:
    """Which operations of a rank's graphs repeat which launch calls of an eager run."""

    eager: Hotspots
    source: str
    """The eager run's file; empty where it is in the trace itself."""
    rows: Ints
    """Indices into the device rows of the links."""
    calls: Ints
    """For each, the row of the launch call in the eager rank."""
    frac: float
    """Share of the time of what graphs launched."""

    @classmethod
    def of(cls, hot: Hotspots, eager: Hotspots, source: str = "") -> LaidBack | None:
        """The graphs of `hot` on `eager` (itself, or of a second trace); None where none fits."""
        rank, links = hot.rank, hot.links
        is_graph = in_graphs(rank, links)
        if not is_graph.any():
            return None
        captures, steps = list(_captures(eager)), list(_eager_steps(eager))
        known: dict[tuple[str, ...], Ints] = {}
        rows, calls = [], []
        order = np.flatnonzero(is_graph)
        order = order[np.argsort(links.device_launch[order], kind="stable")]
        for low, high in equal_runs(links.device_launch[order]):
            found = order[low:high]
            names = tuple(rank.text(row) for row in links.device_rows[found])
            if names not in known:
                by_name = _calls_by_name(names, steps)
                same = (each for each in captures if len(each) == len(names))
                known[names] = next(same, by_name)
            is_known = known[names] >= 0
            if is_known.mean() >= LEAST_FRAC:
                rows.append(found[is_known])
                calls.append(known[names][is_known])
        if not rows:
            return None
        laid = np.concatenate(rows)
        us = rank.duration_us[links.device_rows]
        frac = float(us[laid].sum() / max(us[is_graph].sum(), 1e-9))
        return cls(eager, source, laid, np.concatenate(calls), frac)

    def operators(self, hot: Hotspots) -> NamedSums:
        """`hot.operators`, with what its graphs ran as time of the eager run's operators; an
        operator around the launch of a graph keeps it in its totals alone."""
        eager, us = self.eager, hot.device_us[self.rows]
        own = eager.ops.innermost(self.calls)
        texts = eager.rank.strings.texts
        chain = [row_of(eager.rank.name, ops) for ops in eager.ops.chain(own)]
        columns = {
            "count": self._count(hot, own, eager.rank.name, len(texts)),
            "device_us": once(chain[:1], [], us, len(texts)),
            "device_total_us": once(chain, [], us, len(texts)),
        }
        around = hot.launched_by[self.rows]
        moved = once([row_of(hot.rank.name, around)], [], us, len(hot.rank.strings))
        return _joined(
            hot.operators, (hot.rank.strings.texts, {"device_us": -moved}), (texts, columns)
        )

    def ranges(self, hot: Hotspots) -> NamedSums:
        """`hot.ranges`, with what its graphs ran in those of the eager run; each name once."""
        eager, us, sums = self.eager, hot.device_us[self.rows], hot.ranges
        launch = hot.links.device_launch[self.rows]
        for theirs, mine in zip(eager.range_rows, hot.range_rows, strict=True):
            names, key = eager.range_names(theirs)
            at = {name: number for number, name in enumerate(names)}
            around, forward = eager.keys_around(Nesting(eager.rank, theirs), key, self.calls)
            own_names, own_key = hot.range_names(mine)
            same = np.array([*(at.get(name, NONE) for name in own_names), NONE], np.int64)
            own, _ = hot.keys_around(Nesting(hot.rank, mine), own_key, launch)
            own = [same[keys] for keys in own]
            columns = {
                "device_us": once(around, own, us, len(names)),
                "backward_device_us": once(forward, [*around, *own], us, len(names)),
            }
            sums = _joined(sums, (names, columns))
        return sums

    def _count(self, hot: Hotspots, ops: Ints, key: Ints, count: int) -> Floats:
        """Per key how often launches of graphs repeat a call of it."""
        ran = (ops >= 0) & (hot.device_us[self.rows] > 0)
        launch = hot.links.device_launch[self.rows]
        _launch, once_each = np.unique(np.stack([launch[ran], ops[ran]]), axis=1)
        return summed(key[once_each], None, count)


def _joined(sums: NamedSums, *more: tuple[Sequence[str], dict[str, Floats]]) -> NamedSums:
    """Sums, and further ones of some of their columns by name."""
    parts = [NamedSums(tuple(names), columns, 0, 0.0, 0.0) for names, columns in more]
    return NamedSums.over([sums, *parts])


def _calls_by_name(names: tuple[str, ...], steps: Sequence[tuple[list[str], Ints]]) -> Ints:
    """Per kernel of a graph the launch call that it repeats, of the eager step most like it."""
    result = np.full(len(names), NONE, np.int64)
    if not steps or len(names) < LEAST_KERNELS:
        return result
    wanted = Counter(names)
    shared = [(wanted & Counter(theirs)).total() for theirs, _ in steps]
    theirs, calls = steps[int(np.argmax(shared))]
    for block in SequenceMatcher(None, names, theirs, autojunk=False).get_matching_blocks():
        result[block.a : block.a + block.size] = calls[block.b : block.b + block.size]
    return result


def _captures(eager: Hotspots) -> Iterator[Ints]:
    """Of each capture of a stream in the file, the launch calls between its begin and end, in
    order of time: they ran nothing, and graphs that repeat them have an operation for each."""
    rank, links = eager.rank, eager.links
    runtime = rank.of(Category.RUNTIME)
    begins = runtime[rank.name_contains(_BEGIN_CAPTURE)[runtime]]
    ends = runtime[rank.name_contains(_END_CAPTURE)[runtime]]
    ran = np.isin(links.launches, links.device_launch)
    captured = np.sort(links.launches[~ran])  # rows are in order of time
    for begin in begins.tolist():
        after = ends[ends > begin]
        if len(after):
            yield captured[(captured > begin) & (captured < after[0])]


def _eager_steps(eager: Hotspots) -> Iterator[tuple[list[str], Ints]]:
    """Names and launch calls of what each step launched without a graph, in order of launch."""
    rank, links = eager.rank, eager.links
    is_eager = (eager.launched_by >= 0) & ~in_graphs(rank, links)
    order = np.flatnonzero(is_eager)
    order = order[np.argsort(links.device_launch[order], kind="stable")]
    calls = links.device_launch[order]
    step = np.searchsorted(links.steps.start_us, rank.start_us[calls], side="right")
    for number in np.unique(step).tolist():
        here = step == number
        names = [rank.text(row) for row in links.device_rows[order[here]]]
        yield names, calls[here]

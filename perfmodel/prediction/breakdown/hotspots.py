"""Which kernels, operators and annotated ranges take the time of a rank's steps.

Sums over steps as columns, so that those of several ranks add up; everything is clipped to the
steps that count. Device time is a sum over operations, so that overlapping ones count each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from perfmodel.arrays import Floats, Ints, Mask
from perfmodel.prediction.breakdown.named_sums import MODULE_NAME, NamedSums, once, summed
from perfmodel.timeline.idle import interval_union
from perfmodel.trace.categories import Category
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import Links, by_thread, containing_index, differentiated_ops, outermost
from perfmodel.trace.window import AUTOGRAD_THREAD, MAIN_THREAD, NUMBERED_MARK

_WRAPPER_MODULE = re.compile(
    r"OptimizedModule|CheckpointWrapper|(Distributed)?DataParallel"
    r"|FullyShardedDataParallel|DistributedModelParallel"
)
_NUMBER_OF_MODULE = re.compile(r"_\d+$")


class StepClock:
    """The steps of a rank that count: how much of an interval lies in them."""

    def __init__(self, links: Links, steps: Sequence[int]) -> None:
        chosen = list(steps)
        self.count = len(chosen)
        start, end = interval_union(links.steps.start_us[chosen], links.steps.end_us[chosen])
        self.total_us = float((end - start).sum())
        self._at_us = np.stack([start, end], axis=1).reshape(-1)
        length = np.stack([np.zeros(len(start)), end - start], axis=1).reshape(-1)
        self._passed_us = np.cumsum(length)

    def within_us(self, start_us: Floats, end_us: Floats) -> Floats:
        """Of each interval, how much of it lies in the steps."""
        if not len(self._at_us):
            return np.zeros(len(start_us))
        passed = np.interp(np.concatenate([start_us, end_us]), self._at_us, self._passed_us)
        result: Floats = passed[len(start_us) :] - passed[: len(start_us)]
        return result


class Nesting:
    """Host events of one kind by how deep they stand on their threads, outermost first."""

    def __init__(self, rank: RankTrace, rows: Ints) -> None:
        self.rank = rank
        self.levels: list[Ints] = []
        """Rows by thread, then time; those of one level do not enclose one another."""
        left = rows
        while len(left):
            level = outermost(rank, left)
            self.levels.append(level)
            taken = np.zeros(len(rank), np.bool_)
            taken[level] = True
            left = left[~taken[left]]

    def parents(self) -> Ints:
        """Per row of the rank: the event around it, one level above, or -1."""
        result = np.full(len(self.rank), NONE, np.int64)
        for above, level in zip(self.levels[:-1], self.levels[1:], strict=True):
            result[level] = row_of(above, containing_index(self.rank, level, above))
        return result

    def around(self, rows: Ints) -> list[Ints]:
        """Per level, for each of `rows` (in any order) the event that it lies in, or -1."""
        order = by_thread(self.rank, rows[np.argsort(self.rank.start_us[rows], kind="stable")])
        place = np.empty(len(self.rank), np.int64)
        place[order] = np.arange(len(order))
        return [
            row_of(level, containing_index(self.rank, order, level))[place[rows]]
            for level in self.levels
        ]


def row_of(rows: Ints, index: Ints) -> Ints:
    return np.append(rows, NONE)[index]


@dataclass(frozen=True)
class Hotspots:
    """The time of one rank's steps by kernel, operator and range; each found when asked for."""

    rank: RankTrace
    links: Links
    steps: tuple[int, ...]
    """Indices of the steps that count."""

    @cached_property
    def clock(self) -> StepClock:
        return StepClock(self.links, self.steps)

    @cached_property
    def device_us(self) -> Floats:
        """Per device row of the links: its time within the steps."""
        rows = self.links.device_rows
        return self.clock.within_us(self.rank.start_us[rows], self.rank.end_us[rows])

    @cached_property
    def ops(self) -> Nesting:
        return Nesting(self.rank, self.rank.of(Category.CPU_OP))

    @cached_property
    def op_parents(self) -> Ints:
        """Per row of the rank: the operator that called it, or -1."""
        return self.ops.parents()

    @cached_property
    def launched_by(self) -> Ints:
        """Per device row: the innermost operator around its launch call, or -1."""
        return self.innermost_op(self.links.device_launch)

    def innermost_op(self, calls: Ints) -> Ints:
        """Per launch call (its row, or -1): the innermost operator around it, or -1."""
        known, back = np.unique(calls, return_inverse=True)
        is_call = known >= 0
        innermost = np.full(len(known), NONE, np.int64)
        for level in self.ops.around(known[is_call]):
            innermost[is_call] = np.where(level >= 0, level, innermost[is_call])
        return innermost[back]

    def op_chain(self, ops: Ints) -> Iterator[Ints]:
        """These operators (-1 is none), then those that called them, until none is left."""
        while (ops >= 0).any():
            yield ops
            ops = row_of(self.op_parents, ops)

    def _forward_op(self, ops: Ints) -> Ints:
        """Per operator (or -1): the one whose derivative it computes, or -1.

        That of the outermost operator around it that has one, so that what a backward pass
        computes anew is of the operator that asked for it.
        """
        differentiates, result = differentiated_ops(self.rank), np.full(len(ops), NONE, np.int64)
        for at in self.op_chain(ops):
            here = row_of(differentiates, at)
            result = np.where(here >= 0, here, result)
        return result

    @cached_property
    def kernels(self) -> NamedSums:
        """By kernel, copy and memset: how often it ran and how long."""
        rows, us = self.links.device_rows, self.device_us
        ran = us > 0
        return self._by_name(rows[ran], {"device_us": us[ran]})

    @cached_property
    def operators(self) -> NamedSums:
        """By operator: calls, host time and time of the device operations that it launched.

        `device_us` and `host_us` are its own, `device_total_us` and `host_total_us` with those
        that it calls; a call within one of the same name adds nothing to the totals. Waiting of
        the host in a call is its time too.
        """
        rank, rows = self.rank, self.rank.of(Category.CPU_OP)
        total = np.zeros(len(rank))
        total[rows] = self.clock.within_us(rank.start_us[rows], rank.end_us[rows])
        parent = self.op_parents
        called = rows[parent[rows] >= 0]
        self_us = total - np.bincount(parent[called], total[called], minlength=len(rank))
        owned = self.launched_by >= 0
        device = summed(self.launched_by[owned], self.device_us[owned], len(rank))
        device_total = device.copy()
        for level in reversed(self.ops.levels[1:]):
            device_total += np.bincount(parent[level], device_total[level], minlength=len(rank))
        counts = rows[total[rows] > 0]
        is_outer = self._is_outer(rows)[counts]
        columns = {
            "device_us": device[counts],
            "device_total_us": np.where(is_outer, device_total[counts], 0.0),
            "host_us": self_us[counts].clip(0.0),
            "host_total_us": np.where(is_outer, total[counts], 0.0),
        }
        return self._by_name(counts, columns)

    @cached_property
    def ranges(self) -> NamedSums:
        """By annotation (`record_function`, the profiler's own) and class of module.

        Times are those of the ranges; `device_us` that of what was launched in them, on their own
        thread or, for those of the main thread, by the autograd threads meanwhile;
        `backward_device_us` that of what differentiates the operators in them, as far as it is not
        among that. Modules count by class (`nn.Module: BertLayer` for `nn.Module: BertLayer_3`); a
        range within one of its name adds nothing.
        """
        both = NamedSums.over([self._of_ranges(rows) for rows in self.range_rows])
        return self._sums(both.names, both.columns)

    @cached_property
    def range_rows(self) -> tuple[Ints, Ints]:
        """Annotations but the marks of steps, and modules."""
        rank = self.rank
        notes = rank.of(Category.ANNOTATION)
        modules = rank.of(Category.PYTHON)
        return (
            notes[~rank.name_matches(NUMBERED_MARK)[notes]],
            modules[rank.name_matches(MODULE_NAME)[modules]],
        )

    def range_names(self, rows: Ints) -> tuple[tuple[str, ...], Ints]:
        """The names of ranges, modules by class, and per row of the rank which it has, or -1."""
        codes, of_row = np.unique(self.rank.name[rows], return_inverse=True)
        names = [
            _NUMBER_OF_MODULE.sub("", text) if MODULE_NAME.match(text) else text
            for text in self._texts(codes)
        ]
        known = {name: at for at, name in enumerate(dict.fromkeys(names))}
        key = np.full(len(self.rank), NONE, np.int64)
        key[rows] = np.array([known[name] for name in names], np.int64)[of_row]
        return tuple(known), key

    @cached_property
    def modules(self) -> NamedSums:
        """As `ranges`, modules by their place in the tree: `Bert/Encoder/Layer#3/Linear`, where
        `#n` counts the modules of a class within their parent, from 0, which is left out. What
        wraps a model to compile or distribute it is no place."""
        rows, rank = self.range_rows[1], self.rank
        nesting = Nesting(rank, rows)
        parents, places = nesting.parents(), {NONE: ""}
        known: dict[tuple[str, str], dict[str, int]] = {}
        for level in nesting.levels:
            for row, parent in zip(level.tolist(), parents[level].tolist(), strict=True):
                module = rank.text(row).partition(": ")[2]
                kind, above = _NUMBER_OF_MODULE.sub("", module), places[parent]
                if _WRAPPER_MODULE.fullmatch(kind):
                    places[row] = above
                    continue
                others = known.setdefault((above, kind), {})
                number = others.setdefault(module, len(others))
                places[row] = f"{above}/{kind}" + f"#{number}" * bool(number)
        names = [name for name in dict.fromkeys(places.values()) if name]
        index = {name: at for at, name in enumerate(names)}
        key = np.full(len(rank), NONE, np.int64)
        key[rows] = [index.get(places[row], NONE) for row in rows.tolist()]
        return self._of_ranges(rows, (names, key))

    def _of_ranges(self, rows: Ints, named: tuple[Sequence[str], Ints] | None = None) -> NamedSums:
        rank = self.rank
        names, key = named or self.range_names(rows)
        us = np.zeros(len(rank))
        us[rows] = self.clock.within_us(rank.start_us[rows], rank.end_us[rows])
        nesting = Nesting(rank, rows)
        counts = rows[(us[rows] > 0) & (key[rows] >= 0)]
        outer = counts[self._is_outer(rows, nesting, key)[counts]]
        launch = self.links.device_launch
        around, forward = (
            [row_of(key, level) for level in levels]
            for levels in (
                self.ranges_around(nesting, launch),
                self.forward_ranges(nesting, launch),
            )
        )
        columns = {
            "count": summed(key[counts], None, len(names)),
            "host_us": summed(key[outer], us[outer], len(names)),
            "device_us": once(around, [], self.device_us, len(names)),
            "backward_device_us": once(forward, around, self.device_us, len(names)),
        }
        return self._sums(names, columns)

    def ranges_around(self, nesting: Nesting, launch: Ints) -> list[Ints]:
        """Per level, for each launch call (its row, or -1) the range around it, or -1."""
        calls, back = np.unique(launch, return_inverse=True)
        is_call = calls >= 0
        calls = calls[is_call]
        roles = self.links.roles
        main = [thread for thread, role in roles.items() if role == MAIN_THREAD]
        autograd = [thread for thread, role in roles.items() if role == AUTOGRAD_THREAD]
        meanwhile = np.isin(self.rank.thread[calls], autograd)
        result = []
        for level, own in zip(nesting.levels, nesting.around(calls), strict=True):
            of_main = level[np.isin(self.rank.thread[level], main)]
            row = own.copy()
            if meanwhile.any() and len(of_main):
                start_us, begun_us = self.rank.start_us[of_main], self.rank.start_us[calls]
                running = of_main[np.searchsorted(start_us, begun_us, side="right") - 1]
                lasts = (start_us[0] <= begun_us) & (begun_us < self.rank.end_us[running])
                row = np.where(meanwhile & (own < 0), np.where(lasts, running, NONE), own)
            per_call = np.full(len(is_call), NONE, np.int64)
            per_call[is_call] = row
            result.append(per_call[back])
        return result

    def forward_ranges(self, nesting: Nesting, launch: Ints) -> list[Ints]:
        """Per level, for each launch call (its row, or -1) the range of the operator whose
        derivative it launches, or -1."""
        forward = self._forward_op(self.innermost_op(launch))
        known = np.flatnonzero(forward >= 0)
        result = []
        for level in nesting.around(forward[known]):
            per_call = np.full(len(launch), NONE, np.int64)
            per_call[known] = level
            result.append(per_call)
        return result

    def _is_outer(
        self, rows: Ints, nesting: Nesting | None = None, key: Ints | None = None
    ) -> Mask:
        """Per row of the rank: whether no event of its key (its name) is around it."""
        nesting = nesting or self.ops
        of = self.rank.name if key is None else key
        parent = self.op_parents if nesting is self.ops else nesting.parents()
        result = np.zeros(len(self.rank), np.bool_)
        result[rows] = True
        above = parent[rows]
        while (above >= 0).any():
            result[rows] &= (above < 0) | (of[above] != of[rows])
            above = np.where(above >= 0, parent[above], NONE)
        return result

    def _by_name(self, rows: Ints, columns: dict[str, Floats]) -> NamedSums:
        """Columns of these rows summed by name, and how many rows have it."""
        name = self.rank.name[rows].astype(np.int64)
        count = summed(name, None, 0)
        codes = np.flatnonzero(count)
        sums = {key: summed(name, values, 0)[codes] for key, values in columns.items()}
        return self._sums(self._texts(codes), {"count": count[codes], **sums})

    def _texts(self, codes: Ints) -> tuple[str, ...]:
        return tuple(self.rank.strings.texts[code] for code in codes.tolist())

    def _sums(self, names: Iterable[str], columns: dict[str, Floats]) -> NamedSums:
        clock = self.clock
        device_us = float(self.device_us.sum())
        return NamedSums(tuple(names), columns, clock.count, clock.total_us, device_us)

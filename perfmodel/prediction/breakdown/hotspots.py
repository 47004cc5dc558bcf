"""Which kernels, operators and annotated ranges take the time of a rank's steps.

Sums over steps as columns, so that those of several ranks add up; everything is clipped to the
steps that count. Device time is a sum over operations, so that overlapping ones count each.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from perfmodel.base.arrays import Floats, Ints
from perfmodel.errors import PerfmodelError
from perfmodel.timeline.critical_path import interval_union
from perfmodel.trace.categories import Category
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import Links, Nesting, differentiated_ops
from perfmodel.trace.window import AUTOGRAD_THREAD, MAIN_THREAD, NUMBERED_MARK

_WRAPPER_MODULE = re.compile(
    r"OptimizedModule|CheckpointWrapper|(Distributed)?DataParallel"
    r"|FullyShardedDataParallel|DistributedModelParallel"
)
_NUMBER_OF_MODULE = re.compile(r"_\d+$")

MODULE_NAME = re.compile(r"nn\.Module: ")
UNFIT = (PerfmodelError, ArithmeticError, LookupError, TypeError, ValueError)
"""What lowering raises of arguments that no rule expects: what rests on them is left out."""
_NS_DIGITS = 3
"""Totals that are the same nanoseconds tie, in whatever order they were added up."""
Records = list[dict[str, Any]]


@dataclass(frozen=True)
class NamedSums:
    """Per name, columns that add up over steps and ranks, and what they are shares of."""

    names: tuple[str, ...]
    columns: dict[str, Floats]
    """`count`, and times that end in `_us`."""
    step_count: int
    """Steps of all ranks behind it; the rows that people see are per one of them."""
    step_us: float
    device_us: float
    device: str = ""
    """Of rates: the catalogue's name; '' where the trace's device is not in it."""
    note: str = ""
    """Of rates: why there are none, or no shares of the roofline; '' where nothing is missing."""

    def rows(self, by: Sequence[str], most: int | None = None) -> Records:
        """A mapping per name: figures per step and shares, the largest of the columns `by` first.

        `step_frac` is the share of the step, of host time where there is any; `device_frac` the
        share of the summed time of all device operations. Names in order where figures tie.
        """
        if not self.names:
            return []
        key = [self.columns[name] for name in reversed(by)]
        place = np.argsort(np.argsort(np.array(self.names, dtype=object), kind="stable"))
        order = np.lexsort([place, *(-np.round(column, _NS_DIGITS) for column in key)])
        order = order[np.any([column[order] > 0 for column in key], axis=0)][:most]
        steps = max(self.step_count, 1)
        result = []
        for at in order.tolist():
            figures = {name: float(column[at]) / steps for name, column in self.columns.items()}
            device_us = float(self.columns["device_us"][at])
            own_us = float(self.columns.get("host_us", self.columns["device_us"])[at])
            shares = {
                "step_frac": own_us / self.step_us if self.step_us else 0.0,
                "device_frac": device_us / self.device_us if self.device_us else 0.0,
            }
            result.append({"name": self.names[at], **figures, **shares})
        return result

    @property
    def named_frac(self) -> float:
        """Share of the time of all device operations that has a name."""
        named_us = float(self.columns.get("device_us", np.zeros(1)).sum())
        return named_us / self.device_us if named_us else 0.0

    @staticmethod
    def none(note: str = "") -> NamedSums:
        return NamedSums((), {}, 0, 0.0, 0.0, note=note)

    @classmethod
    def over(cls, parts: Sequence[NamedSums]) -> NamedSums:
        """The sums of several ranks as one."""
        index: dict[str, int] = {}
        places = [[index.setdefault(name, len(index)) for name in part.names] for part in parts]
        columns = {name: np.zeros(len(index)) for part in parts for name in part.columns}
        for part, at in zip(parts, places, strict=True):
            for name, column in part.columns.items():
                columns[name][at] += column
        return cls(
            tuple(index),
            columns,
            sum(part.step_count for part in parts),
            sum(part.step_us for part in parts),
            sum(part.device_us for part in parts),
            parts[0].device,
            "; ".join(dict.fromkeys(part.note for part in parts if part.note)),
        )


def summed(key: Ints, values: Floats | None, count: int) -> Floats:
    """Per key the sum of its values; how many there are without values."""
    return np.bincount(key, values, minlength=count).astype(np.float64)


def once(levels: Sequence[Ints], before: Sequence[Ints], us: Floats, count: int) -> Floats:
    """Per key the sum of `us` over the rows that have it on a level, each once; not those that
    have it in `before`. -1 is no key."""
    result = np.zeros(count)
    for depth, level in enumerate(levels):
        is_new = level >= 0
        for above in (*levels[:depth], *before):
            is_new &= above != level
        result += summed(level[is_new], us[is_new], count)
    return result


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
        return self._within_us(self.links.device_rows)

    def _within_us(self, rows: Ints) -> Floats:
        return self.clock.within_us(self.rank.start_us[rows], self.rank.end_us[rows])

    @cached_property
    def ops(self) -> Nesting:
        return Nesting(self.rank, self.rank.of(Category.CPU_OP))

    @cached_property
    def launched_by(self) -> Ints:
        """Per device row: the innermost operator around its launch call, or -1."""
        return self.ops.innermost(self.links.device_launch)

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
        rank, rows = self.rank, self.ops.rows
        host_total = np.zeros(len(rank))
        host_total[rows] = self._within_us(rows)
        parent = self.ops.parent[rows]
        host = host_total.copy()
        np.subtract.at(host, parent[parent >= 0], host_total[rows[parent >= 0]])
        sums = [
            summed(ops[ops >= 0], self.device_us[ops >= 0], len(rank))
            for ops in self.ops.chain(self.launched_by)
        ]
        device, device_total = (sums[0], np.sum(sums, axis=0)) if sums else np.zeros((2, len(rank)))
        counts = np.sort(rows[host_total[rows] > 0])
        is_outer = self.ops.is_outer(rank.name)[counts]
        columns = {
            "device_us": device[counts],
            "device_total_us": np.where(is_outer, device_total[counts], 0.0),
            "host_us": host[counts].clip(0.0),
            "host_total_us": np.where(is_outer, host_total[counts], 0.0),
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
        notes = self.rank.of(Category.ANNOTATION)
        notes = notes[~self.rank.name_matches(NUMBERED_MARK)[notes]]  # marks of steps
        both = [self._of_ranges(rows, *self._classes(rows)) for rows in (notes, self._module_rows)]
        sums = NamedSums.over(both)
        return self._sums(sums.names, sums.columns)

    @cached_property
    def _module_rows(self) -> Ints:
        rows = self.rank.of(Category.PYTHON)
        return rows[self.rank.name_matches(MODULE_NAME)[rows]]

    def _classes(self, rows: Ints) -> tuple[tuple[str, ...], Ints]:
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
        rank = self.rank
        nesting = Nesting(rank, self._module_rows)
        places, known = {NONE: ""}, defaultdict[tuple[str, str], dict[str, int]](dict)
        for row in nesting.rows.tolist():
            module = rank.text(row).partition(": ")[2]
            kind, above = _NUMBER_OF_MODULE.sub("", module), places[int(nesting.parent[row])]
            if _WRAPPER_MODULE.fullmatch(kind):
                places[row] = above
                continue
            others = known[above, kind]
            number = others.setdefault(module, len(others))
            places[row] = f"{above}/{kind}" + f"#{number}" * bool(number)
        names = [name for name in dict.fromkeys(places.values()) if name]
        index = {name: at for at, name in enumerate(names)}
        key = np.full(len(rank), NONE, np.int64)
        key[nesting.rows] = [index.get(places[row], NONE) for row in nesting.rows.tolist()]
        return self._of_ranges(self._module_rows, names, key)

    def _of_ranges(self, rows: Ints, names: Sequence[str], key: Ints) -> NamedSums:
        us = np.zeros(len(self.rank))
        us[rows] = self._within_us(rows)
        nesting = Nesting(self.rank, rows)
        counts = rows[(us[rows] > 0) & (key[rows] >= 0)]
        outer = counts[nesting.is_outer(key)[counts]]
        around, of_forward = self._keys_around(nesting, np.append(key, NONE))
        columns = {
            "count": summed(key[counts], None, len(names)),
            "host_us": summed(key[outer], us[outer], len(names)),
            "device_us": once(around, [], self.device_us, len(names)),
            "backward_device_us": once(of_forward, around, self.device_us, len(names)),
        }
        return self._sums(names, columns)

    def _keys_around(self, nesting: Nesting, key: Ints) -> tuple[list[Ints], list[Ints]]:
        """Keys of the ranges around the launch call of each device row, one after the other, or
        around what the main thread did meanwhile; and of those around the operator whose derivative
        it launches."""
        rank, launch = self.rank, self.links.device_launch
        main_threads, autograd_threads = (
            [thread for thread, its in self.links.roles.items() if its == role]
            for role in (MAIN_THREAD, AUTOGRAD_THREAD)
        )
        of_main = nesting.rows[np.isin(rank.thread[nesting.rows], main_threads)]
        meanwhile = np.flatnonzero((launch >= 0) & np.isin(rank.thread[launch], autograd_threads))
        running = np.full(len(launch), NONE, np.int64)
        called = launch[meanwhile]
        main = np.repeat(np.array(main_threads, np.int64), len(called))
        running[meanwhile] = Nesting(rank, of_main).around(main, rank.start_us[called])
        differentiates = np.append(differentiated_ops(rank), NONE)
        forward = np.full(len(launch), NONE, np.int64)
        # That of the outermost operator that has one: what a backward pass computes anew is of
        # the operator that asked for it.
        for ops in self.ops.chain(self.launched_by):
            forward = np.where(differentiates[ops] >= 0, differentiates[ops], forward)
        around_launch = [*nesting.chain(nesting.innermost(launch)), *nesting.chain(running)]
        around_forward = nesting.chain(nesting.innermost(forward))
        return [key[at] for at in around_launch], [key[at] for at in around_forward]

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

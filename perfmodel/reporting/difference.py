"""Two traces, predictions or stored answers side by side: what became slower, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from perfmodel.base.units import human_us
from perfmodel.errors import UsageError
from perfmodel.prediction.breakdown.completeness import completeness_line
from perfmodel.reporting.measured_ranks import SHARED_FRAC, work_ratio
from perfmodel.reporting.sides import ALIKE, GROUPS, MODULE, PIECE, PLACE, STEP, Figures, Side
from perfmodel.reporting.verdict import (
    MEMORY,
    Held,
    Outcome,
    markdown,
    verdict,
)

if TYPE_CHECKING:
    import pandas as pd


SCHEMA = "perfmodel.diff/1"
_SAME_INPUT = "same input as far as they say"
"""Of what-ifs and settings of a workload they do not."""
MAX_SHOWN = 12
"""Changes of each group, for people."""
MAX_MOVED = 5
"""Changes that a comment names."""
_OF_PARTS = GROUPS[1:]


@dataclass(frozen=True)
class Change:
    """One figure on both sides, in microseconds per step; 0 where a side has none."""

    group: str
    name: str
    a_us: float
    b_us: float
    scatter_frac: float | None = None
    """By which share the steps scatter, the larger of both sides; of figures of the step."""

    @property
    def change_us(self) -> float:
        return self.b_us - self.a_us


@dataclass(frozen=True)
class Difference:
    """Every figure that differs, the largest change first within its group."""

    a: Side
    b: Side
    changes: list[Change]
    pairs: list[tuple[int, int]]
    """The ranks that were compared; the first is the one that `changes` are of."""
    work_ratio: float = 1.0
    """How many times the work of A a window of B held; figures of B are for as much as A's. Steps
    that are marked are the unit themselves, whatever they hold."""
    notes: list[str] = field(default_factory=list)
    """What was compared with what, where it is not plain."""
    held: list[Held] = field(default_factory=list)
    """What has a limit, by rank."""

    @property
    def failed(self) -> bool:
        """Whether something crossed its limit."""
        return any(each.outcome is Outcome.OVER for each in self.held)

    @property
    def verdict(self) -> str:
        """Slower, faster or neither, in one line, and what crossed its limit."""
        return verdict(self._step, self.held)

    @property
    def completeness_line(self) -> str:
        """What the recordings cannot tell, in one line; empty of whole ones."""
        lines = {name: completeness_line(side.gaps) for name, side in self._sides}
        return "; ".join(f"{name.upper()} is {line}" for name, line in lines.items() if line)

    @property
    def _sides(self) -> tuple[tuple[str, Side], ...]:
        return ("a", self.a), ("b", self.b)

    @property
    def _step(self) -> Held | None:
        """The step of the first pair."""
        row = next((each for each in self.of(STEP) if each.name == STEP), None)
        if row is None:
            return None
        return Held(STEP, self.pairs[0][0], row.a_us, row.b_us, row.scatter_frac, None)

    def to_markdown(self) -> str:
        """A comment for a pull request; its first line is the verdict."""
        moved = [
            (f"{row.group}, {row.name}", f"{human_us(row.a_us)} to {human_us(row.b_us)}")
            for row in sorted(self.changes, key=lambda row: -abs(row.change_us))
            if row.group in _OF_PARTS and row.group != PIECE and abs(row.change_us) > self._floor_us
        ][:MAX_MOVED]
        notes = [*filter(None, (self.completeness_line, *self.notes, self.remark))]
        return markdown(self.verdict, self.held, moved, notes)

    @property
    def _floor_us(self) -> float:
        """Below it, a change is not worth a line: what the step changed by scatter alone."""
        step = self._step
        return 0.0 if step is None else max(step.scatter_frac or 0.0, 0.01) * (step.a or 0.0)

    def of(self, group: str) -> list[Change]:
        """The changes of one group."""
        return [change for change in self.changes if change.group == group]

    @property
    def same_input(self) -> bool | None:
        """Whether two stored answers are of one input, as far as they say; else None."""
        known = self.a.about is not None and self.b.about is not None
        return self.a.about == self.b.about if known else None

    @property
    def tool_changed(self) -> list[str] | None:
        """What of the tool differs between two stored answers; None where one does not say."""
        a, b = self.a.made_by, self.b.made_by
        if a is None or b is None:
            return None
        return [key for key in dict.fromkeys([*a, *b]) if a.get(key) != b.get(key)]

    @property
    def remark(self) -> str | None:
        """Whether the input or the tool moved what differs; None unless both are stored answers."""
        if self.same_input is None:
            return None
        of_input = _SAME_INPUT if self.same_input else "the inputs differ"
        if self.tool_changed is None:
            silent = next(side.source for side in (self.a, self.b) if side.made_by is None)
            return f"{of_input}; {silent} does not say what made it: it is of an older release"
        if not self.tool_changed:
            is_moved = self.same_input and any(change.change_us for change in self.changes)
            return f"{of_input}, same tool" + (": what differs was asked otherwise" * is_moved)
        before, after = (side.made_by or {} for side in (self.a, self.b))
        changes = [
            f"{key.replace('_', ' ')} {before.get(key, 'none')} to {after.get(key, 'none')}"
            for key in self.tool_changed
        ]
        moved = (
            ": what differs is the tool's doing, or was asked otherwise"
            if self.same_input
            else ", and so does the tool"
        )
        return f"{of_input}{moved} ({', '.join(changes)})"

    def __repr__(self) -> str:
        steps = ", ".join(
            f"{human_us(change.a_us)} to {human_us(change.b_us)}"
            for change in self.of(STEP)
            if change.name == STEP
        )
        return f"Difference({self.a.source!r}, {self.b.source!r}: step {steps})"

    def _repr_html_(self) -> str:
        """The largest changes of each group."""
        from perfmodel.plot import table_html

        columns = ["group", "name", "a_us", "b_us", "change_us"]
        rows = [
            [change.group, change.name, change.a_us, change.b_us, change.change_us]
            for group in GROUPS
            for change in self.of(group)[:MAX_SHOWN]
            if change.a_us or change.b_us
        ]
        return table_html(rows, columns, f"{self.a.source} against {self.b.source}")

    def to_dict(self) -> dict[str, Any]:
        """The answer as `docs/schemas/diff.json` describes it."""
        return {
            "schema": SCHEMA,
            **{
                key: {name: getattr(side, name) for name in ("source", "hardware", "made_by")}
                for key, side in self._sides
            },
            "completeness": [
                {"side": key} | gap.to_dict() for key, side in self._sides for gap in side.gaps
            ],
            "same_input": self.same_input,
            "tool_changed": self.tool_changed,
            "remark": self.remark,
            "verdict": self.verdict,
            "failed": self.failed,
            "held": [each.to_dict() for each in self.held],
            "pairs": [{"a": a, "b": b} for a, b in self.pairs],
            "work_ratio": round(self.work_ratio, 6),
            "notes": self.notes,
            "changes": [
                {key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()}
                for row in self._rows()
            ],
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per figure."""
        import pandas as pd

        columns = ["group", "name", "a_us", "b_us", "change_us", "scatter_frac"]
        return pd.DataFrame(self._rows(), columns=columns)

    def _rows(self) -> list[dict[str, Any]]:
        return [asdict(change) | {"change_us": change.change_us} for change in self.changes]


def difference(a: Side, b: Side, limits: Mapping[str, float] | None = None) -> Difference:
    """What differs between `a` and `b`, rank with like rank, and what crosses `limits`: shares by
    which figures may grow.

    Raises `UsageError` where they have no figure in common, or not one that has a limit.
    """
    if a.kind != b.kind and not {a.kind, b.kind} <= set(ALIKE):
        raise UsageError(
            f"{a.source} is a {a.kind}, {b.source} a {b.kind}: they have no figures in common"
        )
    pairs, notes = _like_ranks(a, b)
    measured = [side.measured for side in (a, b) if side.measured is not None]
    held_work = dict.fromkeys(pairs, 1.0)
    if len(measured) == 2:
        held_work = {
            pair: work_ratio(*(each.work(rank) for each, rank in zip(measured, pair, strict=True)))
            for pair in pairs
        }
    first = pairs[0]
    is_window = any(each.is_window for each in measured)
    ratios = held_work if is_window else dict.fromkeys(pairs, 1.0)
    if held_work[first] != 1:
        unit = "figures of B are for as much work as A's" if is_window else "figures are per step"
        which = "" if is_window else "A step of "
        notes.append(
            f"{which}B holds {held_work[first]:.3g} times the work of A, by the counts of what "
            f"both ran: {unit}"
        )
    limits = limits or {}
    known = dict.fromkeys([*a.ranks[first[0]].medians_us, *b.ranks[first[1]].medians_us, MEMORY])
    for name in limits:
        if name not in known:
            raise UsageError(f"--fail-over {name}: no such figure; one of {', '.join(known)}")
    held = [each for pair in pairs for each in _held(a, b, pair, ratios[pair], limits)]
    unknown = dict.fromkeys(h.figure for h in held if h.outcome is Outcome.UNKNOWN)
    notes += [
        f"{name} was not recorded on both sides: its limit was not checked" for name in unknown
    ]
    before, after = _modules_aligned(a.figures_of(first[0]), b.figures_of(first[1]))
    has_modules = all(any(group == MODULE for group, _ in each) for each in (before, after))
    spread = _spread(a, b, first)
    changes = [
        Change(
            group,
            name,
            before.get((group, name), 0.0),
            after.get((group, name), 0.0) / ratios[first],
            spread.get(name) if group == STEP else None,
        )
        for group, name in dict.fromkeys([*before, *after])
        if group != MODULE or has_modules
    ]
    changes.sort(key=lambda change: (GROUPS.index(change.group), -abs(change.change_us)))
    return Difference(a, b, changes, pairs, ratios[first], notes, held)


def _modules_aligned(*sides: Figures) -> list[Figures]:
    """Both sides with modules by place where half of the time of each has its like, else by class.

    Modules that hold others count again, on both sides.
    """
    places = [{name: us for (group, name), us in each.items() if group == PLACE} for each in sides]
    shared = places[0].keys() & places[1].keys()
    least = [SHARED_FRAC * sum(each.values()) for each in places]
    alike = [sum(each[name] for name in shared) for each in places]
    dropped = MODULE if all(a >= b > 0 for a, b in zip(alike, least, strict=True)) else PLACE
    return [
        {
            (MODULE if group == PLACE else group, name): us
            for (group, name), us in each.items()
            if group != dropped
        }
        for each in sides
    ]


def _like_ranks(a: Side, b: Side) -> tuple[list[tuple[int, int]], list[str]]:
    """Pairs of ranks, that which stands for the job first, and what is to be said of them.

    That is A's slowest; of an answer that holds the path of one rank, that one. Where no number is
    on both sides, ranks are paired in order.
    """
    common = [rank for rank in a.ranks if rank in b.ranks]
    pairs = [(rank, rank) for rank in common] or list(zip(a.ranks, b.ranks, strict=False))
    chosen = b.rank if a.measured and not b.measured and b.rank in common else a.rank
    pairs.sort(key=lambda pair: pair[0] != chosen)
    first, notes = pairs[0], []
    if len(a.ranks) > 1 or len(b.ranks) > 1 or first[0] != first[1]:
        notes.append(f"rank {first[0]} of A with rank {first[1]} of B")
    if b.rank != first[1]:
        notes.append(f"the slowest of B is rank {b.rank}")
    for side, other, name in ((0, b, "A"), (1, a, "B")):
        every = (a, b)[side].ranks
        alone = [str(rank) for rank in every if rank not in {pair[side] for pair in pairs}]
        if alone and other.ranks:
            notes.append(f"rank{'s' * (len(alone) > 1)} {', '.join(alone)} of {name} alone")
    return pairs, notes


def _spread(a: Side, b: Side, pair: tuple[int, int]) -> dict[str, float]:
    """By which share each figure of the step scatters, the larger of both sides."""
    sides = a.ranks[pair[0]].scatter_frac, b.ranks[pair[1]].scatter_frac
    names = dict.fromkeys([*sides[0], *sides[1]])
    return {name: max(side.get(name, 0.0) for side in sides) for name in names}


def _held(
    a: Side, b: Side, pair: tuple[int, int], ratio: float, limits: Mapping[str, float]
) -> Iterator[Held]:
    """The figures of a pair of ranks that have a limit."""
    before, after = a.ranks[pair[0]], b.ranks[pair[1]]
    spread = _spread(a, b, pair)
    for name, limit in limits.items():
        values: tuple[float | None, float | None]
        if name == MEMORY:
            values = before.memory_bytes, after.memory_bytes
        else:
            us = after.medians_us.get(name)
            values = before.medians_us.get(name), None if us is None else us / ratio
        yield Held(name, pair[0], *values, spread.get(name), limit)

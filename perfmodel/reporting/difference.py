"""Two traces or predictions side by side: what became slower, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pandas as pd

from perfmodel.base.units import BYTES_PER_GB, human_us
from perfmodel.errors import UsageError
from perfmodel.prediction.breakdown.completeness import incomplete
from perfmodel.reporting.sides import GROUPS, MEMORY, PIECE, STEP, RankSteps, Side
from perfmodel.reporting.tables import one_line

SCHEMA = "perfmodel.diff/2"
COLUMNS = ("group", "name", "a_us", "b_us", "change_us", "scatter_frac")
MAX_SHOWN, MAX_MOVED = 12, 5
"""Changes of each group for people, and changes that a comment names."""
MAX_OVER, MAX_ROWS = 4, 12
"""Figures over their limit that a verdict names, and rows of a comment."""
_LIMIT = re.compile(r"\s*(\w[\w ./+-]*?)\s*=\s*(\d+(?:\.\d+)?)\s*%\s*")
ROUNDING_FRAC = 5e-4
"""What is shown as 0.0 %."""


def parse_limits(text: str) -> dict[str, float]:
    """`step=5%,comm=10%` as shares by figure. Raises `UsageError` for anything else."""
    limits: dict[str, float] = {}
    for part in text.split(",") if text else ():
        found = _LIMIT.fullmatch(part)
        if found is None or found[1] in limits:
            why = "twice" if found else "expected FIGURE=PERCENT%, such as step=5%,comm=10%"
            raise UsageError(f"--fail-over {part.strip()[:60]!r}: {why}")
        limits[found[1]] = float(found[2]) / 100
    return limits


class Outcome(StrEnum):
    """What became of a figure that has a limit, or of the step: over it and more than steps
    scatter, more, within the steps' own scatter, less."""

    OVER = "over"
    GREW = "grew"
    SAME = "unchanged"
    BETTER = "better"
    UNKNOWN = "not recorded"


@dataclass(frozen=True)
class Held:
    """One figure of a pair of ranks against its limit: microseconds per step, or bytes."""

    figure: str
    rank: int
    a: float | None
    b: float | None
    scatter_frac: float | None
    """By which share steps scatter around their median, the larger of both sides."""
    limit_frac: float | None

    @property
    def change_frac(self) -> float | None:
        """Of A; None where one is not known, or A has none of it."""
        return self.b / self.a - 1 if self.a and self.b is not None else None

    @property
    def outcome(self) -> Outcome:
        if self.a is None or self.b is None:
            return Outcome.UNKNOWN
        change = self.b - self.a
        if abs(change) <= max(self.scatter_frac or 0.0, ROUNDING_FRAC) * self.a:
            return Outcome.SAME
        if change < 0:
            return Outcome.BETTER
        is_over = self.limit_frac is not None and change > self.limit_frac * self.a
        return Outcome.OVER if is_over else Outcome.GREW

    @property
    def change_text(self) -> str:
        """`+13.0 %`."""
        if self.a == self.b == 0 or self.outcome is Outcome.UNKNOWN:
            return "-"
        return "from nothing" if self.change_frac is None else f"{100 * self.change_frac:+.1f} %"

    @property
    def size_texts(self) -> list[str]:
        sizes = (self.a, self.b)
        if self.figure == MEMORY:
            return ["-" if size is None else f"{size / BYTES_PER_GB:,.2f} GB" for size in sizes]
        return ["-" if us is None else human_us(us) for us in sizes]

    def to_dict(self) -> dict[str, Any]:
        answer = vars(self) | {"change_frac": self.change_frac, "outcome": self.outcome.value}
        digits = {"a": 4, "b": 4, "change_frac": 6, "scatter_frac": 6}
        values = ((key, answer[key], places) for key, places in digits.items())
        return answer | {k: None if v is None else round(v, places) for k, v, places in values}


def step_text(step: Held) -> str:
    """What became of the step, with its scatter."""
    sizes = f"step {' to '.join(step.size_texts)}"
    if step.change_frac is None:
        return sizes
    scatter = None if step.scatter_frac is None else f"{100 * step.scatter_frac:.1f} %"
    if step.outcome is Outcome.SAME:
        within = f" is within the steps' own {scatter}" if scatter else ""
        return f"no change: {sizes}, {step.change_text}{within}"
    word = "faster" if step.outcome is Outcome.BETTER else "slower"
    own = f" (steps scatter by {scatter})" if scatter else ""
    return f"{100 * abs(step.change_frac):.1f} % {word}: {sizes}{own}"


@dataclass(frozen=True)
class Difference:
    """Every figure of both sides."""

    a: Side
    b: Side
    changes: pd.DataFrame
    """Microseconds per step, 0 where a side has none of it: `group`, `name`, `a_us`, `b_us`,
    `change_us`, `scatter_frac` (by which share steps scatter, the larger of both sides; of figures
    of the step), the largest change first within its group."""
    pairs: list[tuple[int, int]]
    """The ranks that were compared; the first is the one that `changes` are of."""
    step: Held
    """Of that one."""
    notes: list[str] = field(default_factory=list)
    """What was compared with what, where it is not plain."""
    held: list[Held] = field(default_factory=list)
    """What has a limit, by rank."""

    @property
    def failed(self) -> bool:
        return any(each.outcome is Outcome.OVER for each in self.held)

    @property
    def verdict(self) -> str:
        """Slower, faster or neither, in one line, and what crossed its limit."""
        parts = [step_text(self.step)]
        over = [each for each in self.held if each.outcome is Outcome.OVER]
        several = len({each.rank for each in self.held}) > 1
        named = [
            f"{each.figure}{f' of rank {each.rank}' if several else ''} {each.change_text} "
            f"(limit {100 * (each.limit_frac or 0):g} %)"
            for each in over[:MAX_OVER]
        ]
        named += [f"{len(over) - MAX_OVER} more"] * (len(over) > MAX_OVER)
        if named:
            parts.append(f"over the limit: {', '.join(named)}")
        elif self.held:
            parts.append("no limit crossed")
        if unknown := dict.fromkeys(h.figure for h in self.held if h.outcome is Outcome.UNKNOWN):
            parts.append(f"not recorded, so not checked: {', '.join(unknown)}")
        return "; ".join(parts)

    @property
    def incomplete(self) -> list[str]:
        """What each recording cannot tell, in a line."""
        named = self._sides
        return [f"{name.upper()}: {x}" for name, side in named for x in incomplete(side.gaps)]

    @property
    def _sides(self) -> tuple[tuple[str, Side], ...]:
        return ("a", self.a), ("b", self.b)

    def to_markdown(self) -> str:
        """A comment for a pull request: the verdict, limits, what moved most, and notes."""
        lines = [f"**{one_line(self.verdict)}**", ""]
        first = self.pairs[0][0]
        shown = [each for each in self.held if each.rank == first or each.outcome is Outcome.OVER]
        if shown:
            lines += ["| figure | rank | A | B | change | scatter | limit | |", "|---" * 8 + "|"]
            for each in shown[:MAX_ROWS]:
                shares = (
                    "-" if share is None else f"{100 * share:.3g} %"
                    for share in (each.scatter_frac, each.limit_frac)
                )
                cells = [each.figure, str(each.rank), *each.size_texts, each.change_text, *shares]
                lines.append(f"| {' | '.join([*cells, each.outcome.value])} |")
            lines.append("")
        lines += [f"- {one_line(text)}" for text in (*self.moved, *self.incomplete, *self.notes)]
        return "\n".join(lines).rstrip() + "\n"

    @property
    def moved(self) -> list[str]:
        """What changed most, but for what changed less than the step scatters."""
        floor_us = max(self.step.scatter_frac or 0.0, 0.01) * (self.step.a or 0.0)
        rows = self.changes.sort_values("change_us", key=lambda us: -abs(us)).itertuples()
        return [
            f"{row.group}, {row.name}: {human_us(row.a_us)} to {human_us(row.b_us)}"
            for row in rows
            if row.group not in (STEP, PIECE) and abs(row.change_us) > floor_us
        ][:MAX_MOVED]

    def of(self, group: str) -> pd.DataFrame:
        return self.changes[self.changes.group == group]

    def __repr__(self) -> str:
        said = f"step {' to '.join(self.step.size_texts)}"
        return f"Difference({self.a.source!r}, {self.b.source!r}: {said})"

    def _repr_html_(self) -> str:
        from perfmodel.plot import table_html

        frame = self.changes.drop(columns="scatter_frac")
        shown = frame[(frame.a_us != 0) | (frame.b_us != 0)].groupby("group").head(MAX_SHOWN)
        title = f"{self.a.source} against {self.b.source}"
        return table_html(shown.to_numpy().tolist(), list(shown), title)

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
            "verdict": self.verdict,
            "failed": self.failed,
            "held": [each.to_dict() for each in self.held],
            "pairs": [{"a": a, "b": b} for a, b in self.pairs],
            "notes": self.notes,
            "changes": [
                {key: None if value != value else value for key, value in row.items()}
                for row in self.changes.round(4).to_dict("records")
            ],
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per figure."""
        return self.changes.copy()


def difference(a: Side, b: Side, limits: Mapping[str, float] | None = None) -> Difference:
    """What differs between `a` and `b`, rank with like rank, and what crosses `limits`: shares by
    which figures may grow.

    Raises `UsageError` where they have not a figure that has a limit.
    """
    limits, pairs = limits or {}, _like_ranks(a, b)
    ranks = [(a.ranks[one], b.ranks[other]) for one, other in pairs]
    known = dict.fromkeys([*ranks[0][0].figures, *ranks[0][1].figures, MEMORY])
    for name in limits:
        if name not in known:
            raise UsageError(f"--fail-over {name}: no such figure; one of {', '.join(known)}")
    held = [
        Held(
            name, at, one.figures.get(name), two.figures.get(name), _spread(name, (one, two)), each
        )
        for (at, _), (one, two) in zip(pairs, ranks, strict=True)
        for name, each in limits.items()
    ]
    notes = [*_notes(a, b, pairs)]
    before, after = a.figures_of(pairs[0][0]), b.figures_of(pairs[0][1])
    rows = []
    for group in GROUPS:
        one, other = (each.get(group, {}) for each in (before, after))
        names = [*{**one, **other}] if one and other else []  # nothing of a group of one side alone
        if group == STEP:
            names = [name for name in one if name in other]
        moved = [(name, one.get(name, 0.0), other.get(name, 0.0)) for name in names]
        for name, a_us, b_us in sorted(moved, key=lambda row: -abs(row[2] - row[1])):
            scatter_frac = _spread(name, ranks[0]) if group == STEP else None
            rows.append((group, name, a_us, b_us, b_us - a_us, scatter_frac))
    changes = pd.DataFrame(rows, columns=COLUMNS).astype({"scatter_frac": float})
    sizes = before[STEP][STEP], after[STEP][STEP]
    step = Held(STEP, pairs[0][0], *sizes, _spread(STEP, ranks[0]), None)
    return Difference(a, b, changes, pairs, step, notes, held)


def _like_ranks(a: Side, b: Side) -> list[tuple[int, int]]:
    """Pairs of ranks, that which stands for the job first: A's slowest; beside a prediction, which
    holds the path of one rank, that one. Where no number is on both sides, in order."""
    common = [rank for rank in a.ranks if rank in b.ranks]
    pairs = [(rank, rank) for rank in common] or list(zip(a.ranks, b.ranks, strict=False))
    chosen = b.rank if a.is_trace and not b.is_trace and b.rank in common else a.rank
    return sorted(pairs, key=lambda pair: pair[0] != chosen)


def _notes(a: Side, b: Side, pairs: list[tuple[int, int]]) -> Iterator[str]:
    """What is to be said of ranks, of recordings without steps, and of who made predictions."""
    first = pairs[0]
    if len(a.ranks) > 1 or len(b.ranks) > 1 or first[0] != first[1]:
        yield f"rank {first[0]} of A with rank {first[1]} of B"
    if b.rank != first[1]:
        yield f"the slowest of B is rank {b.rank}"
    for side, paired, name in zip((a, b), zip(*pairs, strict=True), "AB", strict=True):
        alone = [str(rank) for rank in side.ranks if rank not in paired]
        if alone:
            yield f"rank{'s' * (len(alone) > 1)} {', '.join(alone)} of {name} alone"
        if side.is_window:
            yield f"nothing marks steps in {name}: its figures are of all that was recorded"
    for key in (key for key in a.asked if key in b.asked):
        if a.asked[key] != b.asked[key]:
            yield f"another question: {key} {a.asked[key]} in A, {b.asked[key]} in B"
    made = [side.made_by for side in (a, b) if side.made_by is not None]
    if len(made) == 2 and made[0] != made[1]:
        changed = [
            f"{key.replace('_', ' ')} {made[0].get(key, 'none')} to {made[1].get(key, 'none')}"
            for key in dict.fromkeys([*made[0], *made[1]])
            if made[0].get(key) != made[1].get(key)
        ]
        yield f"two versions of the tool made them: {', '.join(changed)}"


def _spread(name: str, sides: Sequence[RankSteps]) -> float | None:
    """By which share a figure of the step scatters, the larger of both sides."""
    known = [side.scatter_frac[name] for side in sides if name in side.scatter_frac]
    return max(known, default=None)

"""Two traces or predictions side by side: what became slower, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from perfmodel.base.units import human_us
from perfmodel.errors import UsageError
from perfmodel.prediction.breakdown.completeness import completeness_line
from perfmodel.prediction.breakdown.tables import NamedSums
from perfmodel.reporting.sides import (
    GROUPS,
    MODULE,
    PIECE,
    STEP,
    Figures,
    RankSteps,
    Side,
)
from perfmodel.reporting.verdict import MEMORY, Held, Outcome, step_text

SCHEMA = "perfmodel.diff/2"
MAX_SHOWN, MAX_MOVED = 12, 5
"""Changes of each group for people, and changes that a comment names."""
MAX_OVER, MAX_ROWS = 4, 12
"""Figures over their limit that a verdict names, and rows of a comment."""
SHARED_FRAC, ALIKE_FRAC, AGREE_FRAC = 1 / 2, 0.1, 2 / 3
"""assumed: work is alike where names of half the time are on both sides, and one is more of it
where the counts of two thirds of that grew by one factor, to a tenth."""
SAME_FRAC = 0.02
"""Closer to 1 the amounts are the same."""


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
        parts = [] if self._step is None else [step_text(self._step)]
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
        return "; ".join(parts)

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
        for row in self.of(STEP).itertuples():
            if row.name == STEP:
                scatter = None if np.isnan(row.scatter_frac) else row.scatter_frac
                return Held(STEP, self.pairs[0][0], row.a_us, row.b_us, scatter, None)
        return None

    def to_markdown(self) -> str:
        """A comment for a pull request: the verdict, limits, what moved most, and notes."""
        lines = [f"**{_plain(self.verdict)}**", ""]
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
                lines.append(f"| {' | '.join(map(_plain, [*cells, each.outcome.value]))} |")
            lines.append("")
        step = self._step  # what changed less than the step scatters is not worth a line
        floor_us = 0.0 if step is None else max(step.scatter_frac or 0.0, 0.01) * (step.a or 0.0)
        moved = [
            f"- {_plain(f'{row.group}, {row.name}')}: {human_us(row.a_us)} to {human_us(row.b_us)}"
            for row in self.changes.sort_values("change_us", key=lambda us: -abs(us)).itertuples()
            if row.group not in (STEP, PIECE) and abs(row.change_us) > floor_us
        ]
        notes = filter(None, (self.completeness_line, *self.notes))
        lines += moved[:MAX_MOVED] + [f"- {_plain(text)}" for text in notes]
        return "\n".join(lines).rstrip() + "\n"

    def of(self, group: str) -> pd.DataFrame:
        """The changes of one group."""
        return self.changes[self.changes.group == group]

    def __repr__(self) -> str:
        step = self._step
        said = f"step {' to '.join(step.size_texts)}" if step else "no step"
        return f"Difference({self.a.source!r}, {self.b.source!r}: {said})"

    def _repr_html_(self) -> str:
        """The largest changes of each group."""
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
            "work_ratio": round(self.work_ratio, 6),
            "notes": self.notes,
            "changes": [
                {key: None if value != value else value for key, value in row.items()}
                for row in self.changes.round(4).to_dict("records")
            ],
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per figure."""
        return self.changes.copy()


def _plain(text: str) -> str:
    """Nothing that a name in a trace could break a table or a line with."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("|", "\\|")


def difference(a: Side, b: Side, limits: Mapping[str, float] | None = None) -> Difference:
    """What differs between `a` and `b`, rank with like rank, and what crosses `limits`: shares by
    which figures may grow.

    Raises `UsageError` where they have not a figure that has a limit.
    """
    pairs, notes = _like_ranks(a, b)
    if a.made_by is not None and b.made_by is not None and a.made_by != b.made_by:
        changed = [
            f"{key.replace('_', ' ')} {a.made_by.get(key, 'none')} to {b.made_by.get(key, 'none')}"
            for key in dict.fromkeys([*a.made_by, *b.made_by])
            if a.made_by.get(key) != b.made_by.get(key)
        ]
        notes.append(f"two versions of the tool made them: {', '.join(changed)}")
    first, limits, is_window = pairs[0], limits or {}, a.is_window or b.is_window
    work = dict.fromkeys(pairs, 1.0)
    if a.work_of is not None and b.work_of is not None:
        work = {pair: _work_ratio(a.work_of(pair[0]), b.work_of(pair[1])) for pair in pairs}
    if work[first] != 1:
        unit = "figures of B are for as much work as A's" if is_window else "figures are per step"
        which = "" if is_window else "A step of "
        more = f"{which}B holds {work[first]:.3g} times the work of A, by the counts of what"
        notes.append(f"{more} both ran: {unit}")
    ratios = work if is_window else dict.fromkeys(pairs, 1.0)
    known = dict.fromkeys([*a.ranks[first[0]].medians_us, *b.ranks[first[1]].medians_us, MEMORY])
    for name in limits:
        if name not in known:
            raise UsageError(f"--fail-over {name}: no such figure; one of {', '.join(known)}")
    ranks = {pair: (a.ranks[pair[0]], b.ranks[pair[1]]) for pair in pairs}
    held = [each for pair in pairs for each in _held(pair[0], *ranks[pair], ratios[pair], limits)]
    unknown = dict.fromkeys(h.figure for h in held if h.outcome is Outcome.UNKNOWN)
    notes += [
        f"{name} was not recorded on both sides: its limit was not checked" for name in unknown
    ]
    sides = _with_like_modules(a.figures_of(first[0]), b.figures_of(first[1]))
    return Difference(
        a, b, _joined(sides, ratios[first], *ranks[first]), pairs, ratios[first], notes, held
    )


def _joined(sides: Sequence[Figures], ratio: float, a: RankSteps, b: RankSteps) -> pd.DataFrame:
    """The figures of both sides."""
    names = list(dict.fromkeys(key for each in sides for key in each))
    rows = pd.DataFrame(names, columns=["group", "name"])
    for column, each, unit in zip(("a_us", "b_us"), sides, (1.0, ratio), strict=True):
        rows[column] = [each.get(key, 0.0) / unit for key in names]
    spread = rows.name.map(_spread(a, b)).astype(float).where(rows.group == STEP)
    rows = rows.assign(change_us=rows.b_us - rows.a_us, scatter_frac=spread)
    order = {"group": rows.group.map(GROUPS.index), "size": -rows.change_us.abs()}
    return rows.loc[pd.DataFrame(order).sort_values(["group", "size"]).index].reset_index(drop=True)


def _like_ranks(a: Side, b: Side) -> tuple[list[tuple[int, int]], list[str]]:
    """Pairs of ranks, that which stands for the job first, and what is to be said of them.

    That is A's slowest; of an answer that holds the path of one rank, that one. Where no number is
    on both sides, ranks are paired in order.
    """
    common = [rank for rank in a.ranks if rank in b.ranks]
    pairs = [(rank, rank) for rank in common] or list(zip(a.ranks, b.ranks, strict=False))
    chosen = b.rank if a.work_of and not b.work_of and b.rank in common else a.rank
    pairs.sort(key=lambda pair: pair[0] != chosen)
    first, notes = pairs[0], []
    if len(a.ranks) > 1 or len(b.ranks) > 1 or first[0] != first[1]:
        notes.append(f"rank {first[0]} of A with rank {first[1]} of B")
    if b.rank != first[1]:
        notes.append(f"the slowest of B is rank {b.rank}")
    for side, paired, name in zip((a, b), zip(*pairs, strict=True), "AB", strict=True):
        alone = [str(rank) for rank in side.ranks if rank not in paired]
        if alone:
            notes.append(f"rank{'s' * (len(alone) > 1)} {', '.join(alone)} of {name} alone")
    return pairs, notes


def _spread(*sides: RankSteps) -> dict[str, float]:
    """By which share each figure of the step scatters, the larger of both sides."""
    names = dict.fromkeys(name for side in sides for name in side.scatter_frac)
    return {name: max(side.scatter_frac.get(name, 0.0) for side in sides) for name in names}


def _held(
    rank: int, before: RankSteps, after: RankSteps, ratio: float, limits: Mapping[str, float]
) -> Iterator[Held]:
    """The figures of a pair of ranks that have a limit."""
    spread = _spread(before, after)
    for name, limit in limits.items():
        values: tuple[float | None, float | None] = before.memory_bytes, after.memory_bytes
        if name != MEMORY:
            us = after.medians_us.get(name)
            values = before.medians_us.get(name), None if us is None else us / ratio
        yield Held(name, rank, *values, spread.get(name), limit)


def _with_like_modules(*sides: Figures) -> Sequence[Figures]:
    """Both sides, with modules where half of the time of each is at a place that both have.

    Modules that hold others count again, on both sides.
    """
    places = [{key: us for key, us in each.items() if key[0] == MODULE} for each in sides]
    shared = places[0].keys() & places[1].keys()
    like_us = [sum(each[key] for key in shared) for each in places]
    if all(us >= SHARED_FRAC * sum(p.values()) > 0 for us, p in zip(like_us, places, strict=True)):
        return sides
    return [{key: us for key, us in each.items() if key[0] != MODULE} for each in sides]


def _work_ratio(a: NamedSums, b: NamedSums) -> float:
    """How many times the work of `a` a step of `b` holds, by counts of what both ran; 1 where the
    two run other work."""
    by = "host_us" if "host_us" in a.columns and "host_us" in b.columns else "device_us"
    _, mine, other = np.intersect1d(a.names, b.names, return_indices=True)
    if not len(mine) or not (a.step_count and b.step_count):
        return 1.0
    weights = [side.columns[by] / side.step_count for side in (a, b)]
    weight = weights[0][mine] + weights[1][other]
    least = SHARED_FRAC * sum(float(each.sum()) for each in weights)
    if not weight.sum() or weight.sum() < least:
        return 1.0
    ratios = b.columns["count"][other] / b.step_count / (a.columns["count"][mine] / a.step_count)
    order = np.argsort(ratios, kind="stable")
    passed = np.cumsum(weight[order])
    ratio = float(ratios[order[np.searchsorted(passed, passed[-1] / 2)]])
    agrees = weight[np.abs(ratios / ratio - 1) <= ALIKE_FRAC].sum() / weight.sum()
    is_same = agrees < AGREE_FRAC or abs(ratio - 1) <= SAME_FRAC
    return 1.0 if is_same else ratio

"""One look for all tables: plain, right-aligned numbers, one unit per table; the median step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.cli.console import Column, Console, Table
from perfmodel.cli.failures import one_line
from perfmodel.errors import Note
from perfmodel.units import US_PER_MS, human_us

if TYPE_CHECKING:
    from perfmodel.timeline.rank import StepBreakdown


NOTHING = "-"


class Times:
    """Microseconds as numbers of one unit, chosen after the largest."""

    def __init__(self, values_us: Iterable[float | None]):
        largest = max((abs(value) for value in values_us if value is not None), default=0.0)
        self.unit = "ms" if largest >= US_PER_MS else "us"
        self._per_unit, self._decimals = (US_PER_MS, 3) if self.unit == "ms" else (1.0, 1)

    def __call__(self, value_us: float | None) -> str:
        if value_us is None:
            return NOTHING
        return f"{value_us / self._per_unit:,.{self._decimals}f}"


def percent(part: float, whole: float) -> str:
    """`part` of `whole`, as in `12.3 %`."""
    return f"{100 * part / whole:.1f} %" if whole else NOTHING


def shown(value: float | None, form: str, none: str = NOTHING) -> str:
    """A number in its form; `none` where there is none."""
    return none if value is None else format(value, form)


def signed_pct(value: float | None) -> str:
    """A difference in percent, as in `+0.12 %`."""
    return NOTHING if value is None else f"{value:+.2f} %"


def filled(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1
) -> Table:
    """A table; its first `texts` columns are texts, the others numbers. Cells may hold anything
    that a trace says; those behind the last are empty."""
    made = [
        Column(head, "left", no_wrap=False, overflow="ellipsis")
        if at < texts
        else Column(head, "right", no_wrap=True, overflow="ellipsis")
        for at, head in enumerate(columns)
    ]
    cells = [(*map(one_line, row), *[""] * (len(made) - len(row))) for row in rows]
    return Table(title, made, cells)


def fitted(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    name: int = 0,
    whole: bool = False,
) -> Table:
    """A table of whose texts in the column `name` a narrow page shows both ends.

    With `whole`, texts take several lines instead, broken at `-`, `_`, `.` and `/`.
    """
    table = filled(title, columns, rows)
    shown = table.columns[name]
    shown.justify, shown.no_wrap, shown.keep = "left", False, True
    if whole:
        shown.overflow = "fold"
    return table


def say(console: Console, text: str) -> None:
    """A line of text above or below a table."""
    console.print(one_line(text), soft_wrap=True)


def counted(number: int, thing: str) -> str:
    """`1 rank`, `4,087 events`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def source_text(source: str) -> str:
    """What was read, in words."""
    return "standard input" if source == "-" else source


MAX_WARNINGS = 4
"""Lines of warnings below a table, where not all are asked for."""


def show_cautions(console: Console, cautions: Sequence[str]) -> None:
    """What makes the answer below doubtful."""
    if cautions:
        console.print()
    for line in cautions:
        console.print(f"warning: {one_line(line)}", style="yellow", soft_wrap=True)


def show_warnings(console: Console, lines: Sequence[str], *, every: bool) -> None:
    """What may be wrong: dropped, repaired or guessed; and in a line how much else there is.

    `every` line, also those that only inform.
    """
    notes = [line for line in lines if isinstance(line, Note)]
    warnings = [line for line in lines if not isinstance(line, Note)]
    shown = warnings if every else warnings[:MAX_WARNINGS]
    more, hidden = len(warnings) - len(shown), 0 if every else len(notes)
    show_cautions(console, shown)
    if every and notes:
        console.print()
        for note in notes:
            console.print(f"note: {one_line(note)}", soft_wrap=True)
    parts = [counted(n, what) for n, what in ((more, "more warning"), (hidden, "note")) if n]
    if parts:
        if not shown:
            console.print()
        say(console, f"{' and '.join(parts)}: -v shows them")


MEANINGS = {
    "T1": "between operators",
    "T2": "before first launch",
    "T3": "after last launch",
    "T4": "launch call",
    "T5": "between launches",
}
"""The host overheads of an operator."""


def named(name: str) -> str:
    """A part of the time in words: `T2 before first launch`, `host_t2 (before first launch)`."""
    kind = name.removeprefix("host_").upper()
    if kind not in MEANINGS:
        return name
    return f"{name} {MEANINGS[kind]}" if name == kind else f"{name} ({MEANINGS[kind]})"


STEADY, INCOMPLETE = "steady", "incomplete"


def median_step(steps: Sequence[StepBreakdown]) -> StepBreakdown:
    """The step whose duration is closest to the median of the steady ones; the first of equals."""
    steady = [step for step in steps if step.role == STEADY] or steps
    middle = _median(step.accounting.step_us for step in steady)
    return min(steady, key=lambda step: abs(step.accounting.step_us - middle))


def _median(values: Iterable[float]) -> float:
    import numpy as np

    from perfmodel.arrays import median

    return median(np.array([*values]))


def with_role(name: str, role: str) -> str:
    """A step's name in a table: what it is where it is not steady."""
    return name if role == STEADY else f"{name} ({role}, not in medians)"


def say_excluded_steps(console: Console, steps: Sequence[tuple[str, str, float]]) -> None:
    """What medians leave out of the name, role and duration of each step; nothing where nothing."""
    steady_us = [step_us for _, role, step_us in steps if role == STEADY]
    if not steady_us or len(steady_us) == len(steps):
        return
    middle_us = _median(steady_us)
    left_out = ", ".join(
        f"{name} ({role})"
        if role == INCOMPLETE
        else f"{name} ({role}, {step_us / middle_us:.1f} times the median)"
        for name, role, step_us in steps
        if role != STEADY
    )
    count = f"{len(steady_us)} of {counted(len(steps), 'step')}"
    say(console, f"Medians are of {count}: left out {left_out}.")


def say_straggler(console: Console, prediction: Mapping[str, Any] | None) -> None:
    """Who it is, for how long, and why (`RankWaiting.to_dict()`); nothing where none waits."""
    if not prediction or not prediction["held_up_us"]:
        return
    cause = prediction["cause"]
    say(
        console,
        f"The others wait for rank {prediction['rank']} most, "
        f"{human_us(prediction['held_up_us'])} per step together: {cause.replace('_', ' ')}, "
        f"{human_us(prediction['late_us'].get(cause, 0.0))} more than theirs.",
    )

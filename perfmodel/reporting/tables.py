"""Tables as data: a title, columns and records. Terminals, pipes and pages show the same ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple
from unicodedata import east_asian_width

from perfmodel.plot.names import shortened
from perfmodel.units import US_PER_MS, human_us

if TYPE_CHECKING:
    from perfmodel.prediction.breakdown.rank import StepBreakdown


NOTHING = "-"
STEADY, INCOMPLETE = "steady", "incomplete"
"""Roles of steps."""
MAX_NAME = 64
"""Characters of a name in a table; of a longer one, both ends are shown."""
TIME, HUMAN, SHARE, COUNT, NAME = "us", "human", "share", "count", "name"
"""Forms of cells besides Python's: microseconds in the one unit of the table, or each in its own;
a share as percent; a mean count; a name that is typed, and so never cut."""
_T_MEANINGS = {
    "T1": "between operators",
    "T2": "before first launch",
    "T3": "after last launch",
    "T4": "launch call",
    "T5": "between launches",
}


class Column(NamedTuple):
    """What a column shows of each record."""

    key: str
    """Of a mapping, or an attribute."""
    head: str
    form: str = ""
    """One of those above, or as of `format`; of texts none."""
    keep: bool = False
    """Stays on a page however narrow; others are left out from the right."""

    @property
    def is_text(self) -> bool:
        return self.form in ("", NAME)


def columns(text: str) -> list[Column]:
    """Columns from `KEY[=HEAD][:FORM][!]`, separated by semicolons; `!` is `keep`, `|` in a head a
    line end. Without HEAD, the key is the head."""
    found = []
    for each in text.split(";"):
        words, is_kept = each.strip().removesuffix("!"), each.endswith("!")
        name, _, form = words.partition(":")
        key, equals, head = name.partition("=")
        found.append(Column(key, head.replace("|", "\n") if equals else key, form, is_kept))
    return found


class Table:
    """Records, of which a page shows the columns that it has room for, those on the left first.

    A title ends in the unit of its times.
    """

    def __init__(
        self,
        title: str,
        columns: Sequence[Column],
        records: Iterable[Any],
        *,
        full_names: bool = False,
    ) -> None:
        self.columns = list(columns)
        self.values = [[_value(record, each.key) for each in columns] for record in records]
        at = [place for place, each in enumerate(self.columns) if each.form == TIME]
        self._times = Times(row[place] for row in self.values for place in at)
        self._full_names = full_names
        self.title = f"{title} ({self._times.unit})" if at else title

    def text(self, value: Any, form: str) -> str:
        """A value as its column shows it; texts in place of numbers stay as they are."""
        if value is None:
            return NOTHING
        if isinstance(value, str):
            is_name = form == NAME or self._full_names
            return value if is_name else shortened(value, MAX_NAME)
        if form == TIME:
            return self._times(value)
        if form == HUMAN:
            return human_us(value)
        if form == SHARE:
            return percent(value, 1)
        if form == COUNT:
            return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"
        return format(value, form)

    def rows(self) -> list[list[str]]:
        """The cells as text."""
        forms = [each.form for each in self.columns]
        return [
            [one_line(self.text(*each)) for each in zip(row, forms, strict=True)]
            for row in self.values
        ]

    def lines(self) -> Iterator[str]:
        """The whole table as plain text, heads of several lines ending on one."""
        heads = zip_longest(*(each.head.split("\n")[::-1] for each in self.columns), fillvalue="")
        above, rows = [list(line) for line in heads][::-1], self.rows()
        widths = [max(map(width_of, cells)) for cells in zip(*above, *rows, strict=True)]
        if self.title:
            yield self.title
        for number, row in enumerate((*above, *rows)):
            if number == len(above):
                yield "─" * (sum(widths) + 2 * (len(widths) - 1))
            cells = [
                cell + " " * (width - width_of(cell))
                if column.is_text
                else " " * (width - width_of(cell)) + cell
                for cell, column, width in zip(row, self.columns, widths, strict=True)
            ]
            yield "  ".join(cells).rstrip()


def _value(record: Any, key: str) -> Any:
    return record.get(key) if isinstance(record, Mapping) else getattr(record, key)


def width_of(text: str) -> int:
    """Columns that a text takes on a screen."""
    if text.isascii():
        return len(text)
    return sum(1 + (east_asian_width(character) in "WF") for character in text)


class Times:
    """Microseconds as numbers of one unit, chosen after the largest."""

    def __init__(self, values_us: Iterable[Any]):
        largest = max((abs(us) for us in values_us if isinstance(us, int | float)), default=0.0)
        self.unit = "ms" if largest >= US_PER_MS else "us"
        self._per_unit, self._decimals = (US_PER_MS, 3) if self.unit == "ms" else (1.0, 1)

    def __call__(self, value_us: float) -> str:
        return f"{value_us / self._per_unit:,.{self._decimals}f}"


def one_line(text: str) -> str:
    """`text` without line ends, terminal escapes and halves of characters."""
    joined = " ".join(text.split())
    shown = "".join(c if c.isprintable() else "?" for c in joined)
    return shown.encode("utf-8", "replace").decode()


def percent(part: float, whole: float) -> str:
    """`part` of `whole`, as in `12.3 %`."""
    return f"{100 * part / whole:.1f} %" if whole else NOTHING


def shown(value: float | None, form: str, none: str = NOTHING) -> str:
    """A number in its form; `none` where there is none."""
    return none if value is None else format(value, form)


def interval(low_us: float | None, high_us: float | None) -> str | None:
    """`12.3 us to 14.5 us`."""
    if low_us is None or high_us is None:
        return None
    return f"{human_us(low_us)} to {human_us(high_us)}"


def counted(number: int, thing: str) -> str:
    """`1 rank`, `4,087 events`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def source_text(source: str) -> str:
    """What was read, in words."""
    return "standard input" if source == "-" else source


def named(name: str) -> str:
    """A part of the time in words: `T2 before first launch`, `host_t2 (before first launch)`."""
    kind = name.removeprefix("host_").upper()
    if kind not in _T_MEANINGS:
        return name
    return f"{name} {_T_MEANINGS[kind]}" if name == kind else f"{name} ({_T_MEANINGS[kind]})"


def parts_table(title: str, time_us: Mapping[str, float], share: str, most: int = 12) -> Table:
    """Parts of a time by size; those after the first `most` are one row."""
    total = sum(time_us.values())
    ordered = sorted(time_us.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(us for _, us in ordered[most:])
    listed = ordered[:most] + ([("others", rest)] if rest else [])
    records = [
        {"part": named(name), "us": us, "frac": us / total if total else None}
        for name, us in listed
    ]
    return Table(title, columns(f"part=;us=time:us;frac={share}:share"), records)


def median_step(steps: Sequence[StepBreakdown]) -> StepBreakdown:
    """The step whose duration is closest to the median of the steady ones; the first of equals."""
    steady = [step for step in steps if step.role == STEADY] or steps
    middle_us = _median(step.accounting.step_us for step in steady)
    return min(steady, key=lambda step: abs(step.accounting.step_us - middle_us))


def _median(values: Iterable[float]) -> float:
    import numpy as np

    from perfmodel.arrays import median

    return median(np.array([*values]))


def step_name(name: str, role: str) -> str:
    """A step's name in a table: what it is where it is not steady."""
    return name if role == STEADY else f"{name} ({role}, not in medians)"


def excluded_steps(steps: Collection[tuple[str, str, float]]) -> str:
    """What medians leave out of the name, role and duration of each step; empty where nothing."""
    steady_us = [step_us for _, role, step_us in steps if role == STEADY]
    if not steady_us or len(steady_us) == len(steps):
        return ""
    middle_us = _median(steady_us)
    left_out = ", ".join(
        f"{name} ({role})"
        if role == INCOMPLETE
        else f"{name} ({role}, {step_us / middle_us:.1f} times the median)"
        for name, role, step_us in steps
        if role != STEADY
    )
    return f"Medians are of {len(steady_us)} of {counted(len(steps), 'step')}: left out {left_out}."


def straggler_text(straggler: Mapping[str, Any] | None) -> str:
    """Who it is, for how long, and why (`RankWaiting.to_dict()`); empty where none waits."""
    if not straggler or not straggler["held_up_us"]:
        return ""
    cause = straggler["cause"]
    return (
        f"Straggler: rank {straggler['rank']}. The others lose "
        f"{human_us(straggler['held_up_us'])} per step in sum, mostly because its "
        f"{cause.replace('_', ' ')} is {human_us(straggler['late_us'].get(cause, 0.0))} longer."
    )

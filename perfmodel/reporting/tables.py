"""Tables as data: a title, columns and records. Terminals, pipes and pages show the same ones."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from statistics import median
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from perfmodel.base.units import BYTES_PER_GB, US_PER_MS, counted, human_us
from perfmodel.plot.names import named, shortened_apart

if TYPE_CHECKING:
    from perfmodel.prediction.breakdown.job import StepBreakdown


Record = Mapping[str, Any]
"""A part of an answer in JSON."""

NOTHING = "-"
STEADY, INCOMPLETE = "steady", "incomplete"
"""Roles of steps."""
MAX_SHOWN = 10
"""Rows of a table for people."""
MAX_NAME = 64
"""Characters of a name in a table; of a longer one, both ends are shown."""
TIME, HUMAN, SHARE, GB = "us", "human", "share", "gb"
COUNT, SIZE, NAME = "count", "size", "name"
"""Forms of cells besides Python's: microseconds in the one unit of the table, or each in its own;
a share as percent; bytes in GB; a mean count; three digits without an exponent; a name that is
typed, and so never cut."""
_FORMS = {"_us": (TIME, ""), "_frac": (SHARE, ""), "_bytes": (GB, " GB"), "_pct": (",.3g", " %")}
"""By how a key of JSON ends."""
HOST = "host time"
OF_HOST = ("host_", "launch_latency", "blocking_call", "hidden_sync", "allocator")
"""How kinds of a critical path begin that a device spends waiting for its host."""
_MIN_US, _MAX_PARTS = 1e-3, 12
"""Parts below it are what is left of sums of floats; and how many have rows of their own."""
_BEFORE_UNIT, _HELD = re.compile(r"(?<=\d) (?=(?:%|us|ms|s|GB)\b|%)"), "\N{NO-BREAK SPACE}"
GAP, MIN_NAME = 2, 12
"""Blanks between columns, and the columns that a folded name keeps."""


class Heading(str):
    """A line of text that stands out."""


class Verdict(Heading):
    """The answer in one sentence; what makes it doubtful stands right below it."""


class Command(str):
    """A line of text that is typed: it stays whole."""


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
    """Records, of which a page shows the columns that it has room for, those on the left first, and
    none that has nothing to say. A title ends in the unit of its times."""

    def __init__(
        self,
        title: str,
        heads: Sequence[Column] | str,
        records: Iterable[Any],
        *,
        full_names: bool = False,
        most: int | None = None,
    ) -> None:
        listed = columns(heads) if isinstance(heads, str) else list(heads)
        records = list(records)
        self.left_out = len(records) - len(records[:most])
        """Records beyond the `most` that are shown."""
        records = records[:most]
        values = [
            [each.get(c.key) if isinstance(each, Mapping) else getattr(each, c.key) for c in listed]
            for each in records
        ]
        said = [any(cell is not None for cell in cells) for cells in zip(*values, strict=True)]
        kept = [at for at in range(len(listed)) if not values or not at or said[at]]
        self.columns = [listed[at] for at in kept]
        self.values = [[row[at] for at in kept] for row in values]
        at = [place for place, each in enumerate(self.columns) if each.form == TIME]
        self._times = Times(row[place] for row in self.values for place in at)
        self._full_names = full_names
        self.names = [each.get("name") if isinstance(each, Mapping) else None for each in records]
        """What rows are of, in full: as a timeline has it."""
        self.title = f"{title} ({self._times.unit})" if at else title

    def text(self, value: Any, form: str) -> str:
        """A value as its column shows it; texts in place of numbers stay as they are, and what is
        rounded to zero has no minus."""
        if value is None:
            return NOTHING
        if isinstance(value, str):
            return value
        own = _TEXTS.get(form)
        text = own(value) if own else self._times(value) if form == TIME else format(value, form)
        is_zero = text.startswith("-") and not text.strip("-0., %")
        return text.replace("-", "+" if "+" in form else "") if is_zero else text

    def rows(self, widths: Sequence[int] = ()) -> list[list[str]]:
        """Cells as texts. Names longer than `MAX_NAME`, and words wider than their column of
        `widths`, lose their middle unless they are typed or wanted in full."""
        columns = []
        for at, column in enumerate(self.columns):
            texts = [one_line(self.text(row[at], column.form)) for row in self.values]
            if not column.form and not self._full_names:
                most = min([MAX_NAME, *widths[at : at + 1]])
                long = [text for text in texts if len(text) > MAX_NAME]
                cut = dict(zip(long, shortened_apart(long, most), strict=True))
                words = [cut.get(text, text).split(" ") for text in texts]
                wide = [word for each in words for word in each if len(word) > most]
                cut = dict(zip(wide, shortened_apart(wide, most), strict=True))
                texts = [" ".join(cut.get(word, word) for word in each) for each in words]
            columns.append(texts)
        return [list(row) for row in zip(*columns, strict=True)]

    def lines(self, width: int | None = None) -> Iterator[str]:
        """The table below its title as plain text, heads of several lines ending on one; where
        there are `width` columns texts are narrowed, then columns left out, empty ones first."""
        heads, rows = [each.head.split("\n") for each in self.columns], self.rows()
        cells = zip(heads, *([[cell] for cell in row] for row in rows), strict=True)
        widths = [max(len(line) for cell in column for line in cell) for column in cells]
        kept = self._fitted(widths, width)
        rows = self.rows(widths)
        tallest = max(map(len, heads))
        above = ([""] * (tallest - len(head)) + head for head in heads)
        pads = [str.ljust if self.columns[at].is_text else str.rjust for at in kept]
        sizes = [widths[at] for at in kept]
        for number, row in enumerate([*zip(*above, strict=True), *rows]):
            if number == tallest:
                yield "─" * (sum(size + GAP for size in sizes) - GAP)
            folds = (folded(row[at], widths[at], cut=True) for at in kept)
            for parts in zip_longest(*folds, fillvalue=""):
                cells_of = zip(pads, parts, sizes, strict=True)
                padded = (pad(text, size) for pad, text, size in cells_of)
                yield "  ".join(padded).rstrip()
        if width is not None and len(kept) < len(widths):
            dropped = [each.head for at, each in enumerate(self.columns) if at not in kept]
            yield from folded(f"(no room for: {', '.join(map(one_line, dropped))})", width)

    def _fitted(self, widths: list[int], width: int | None) -> list[int]:
        """The columns that a page of `width` has room for; narrows `widths` where names fold."""
        kept = list(range(len(widths)))
        if width is None:
            return kept
        texts = [at for at in kept if not self.columns[at].form]
        least = [min(each, MIN_NAME) if at in texts else each for at, each in enumerate(widths)]
        while sum(least[at] + GAP for at in kept) - GAP > width:
            rest = [at for at in kept[1:] if not self.columns[at].keep]
            if not rest:
                break
            empty = [at for at in rest if not any(row[at] for row in self.values)]
            kept.remove((empty or rest)[-1])
        while sum(widths[at] + GAP for at in kept) - GAP > width:
            wide = [at for at in kept if widths[at] > least[at]]
            if not wide:
                break
            widths[max(wide, key=widths.__getitem__)] -= 1
        return kept


Block: TypeAlias = str | Table
"""What a page consists of; a text that begins with a line end has one above it."""


def folded(text: str, width: int, *, cut: bool = False) -> list[str]:
    """`text` as lines of at most `width` characters, broken between words, and not between a number
    and its unit; a longer word, such as a path, is broken with `cut` alone."""
    if len(text) <= width:
        return [text]
    lines = wrap(_BEFORE_UNIT.sub(_HELD, text), width, break_on_hyphens=False, break_long_words=cut)
    return [line.replace(_HELD, " ") for line in lines]


class Times:
    """Microseconds as numbers of one unit, chosen after the largest."""

    def __init__(self, values_us: Iterable[Any]):
        largest = max((abs(us) for us in values_us if isinstance(us, int | float)), default=0.0)
        self.unit = "ms" if largest >= US_PER_MS else "us"
        self._per_unit, self._decimals = (US_PER_MS, 3) if self.unit == "ms" else (1.0, 1)

    def __call__(self, value_us: float) -> str:
        return f"{value_us / self._per_unit:,.{self._decimals}f}"


def three_digits(value: float) -> str:
    """A number of three digits at least, without an exponent: `12,345`, `1.23`, `0.000123`."""
    if not abs(value) < 100:  # nor NaN
        return f"{value:,.0f}"
    digits = 2 - math.floor(math.log10(abs(value))) if value and value == value else 0
    return f"{value:.{digits}f}"


def form_of(key: str) -> tuple[str, str, str]:
    """What a key holds in words, the form of its numbers, and the unit that these leave out:
    `total`, `gb` and ` GB` of `total_bytes`; no form where the key names no unit."""
    suffix = next(filter(key.endswith, _FORMS), "")
    return key.removesuffix(suffix).replace("_", " "), *_FORMS.get(suffix, ("", ""))


def figure_text(key: str, value: float) -> str:
    """`step 16.31 ms` of `step_us`, `share 8.1 %` of `share_frac`."""
    words, form, unit = form_of(key)
    if form in (TIME, SHARE):
        return f"{words} {human_us(value) if form == TIME else percent(value, 1)}"
    size = value / BYTES_PER_GB if form == GB else value
    is_short = abs(size) < 1000 and size != int(size)
    return f"{words} {format(size, '.3g' if is_short else ',.0f')}{unit}"


_TEXTS: Mapping[str, Callable[[Any], str]] = {
    HUMAN: human_us,
    SHARE: lambda frac: percent(frac, 1),
    GB: lambda size_bytes: f"{size_bytes / BYTES_PER_GB:,.3f}",
    SIZE: three_digits,
    COUNT: lambda value: f"{value:,.0f}" if value == round(value) else f"{value:,.1f}",
}
"""Forms of cells that are no formats of Python's."""


def per_samples(values: Iterable[float | None]) -> tuple[float, str]:
    """What figures of a million samples are multiplied with so that they read well, and of how many
    they then are: a billion where one is below a hundredth."""
    least = min((value for value in values if value is not None), default=1.0)
    return (1e3, "billion") if least < 0.01 else (1.0, "million")


def one_line(text: str) -> str:
    """`text` without line ends, terminal escapes and halves of characters."""
    joined = " ".join(text.split())
    shown = "".join(c if c.isprintable() else "?" for c in joined)
    return shown.encode("utf-8", "replace").decode()


def percent(part: float, whole: float) -> str:
    """`part` of `whole`, as in `12.3 %`."""
    return f"{100 * part / whole:z.1f} %" if whole else NOTHING


def interval(low_us: float | None, high_us: float | None) -> str | None:
    """`12.3 us to 14.5 us`."""
    if low_us is None or high_us is None:
        return None
    return f"{human_us(low_us)} to {human_us(high_us)}"


def source_text(source: str) -> str:
    return {"-": "standard input", "demo:": "bundled demo"}.get(source, source)


def parts_table(
    title: str, parts: Sequence[tuple[str, Mapping[str, float]]], share: str = "share"
) -> Table:
    """Parts of the time of each by its name, largest first and beyond so many in one row; of one
    alone with their shares."""
    largest: dict[str, float] = {}
    for _, time_us in parts:
        for name, us in time_us.items():
            largest[name] = max(largest.get(name, 0.0), us)
    ordered = sorted((k for k in largest if largest[k] >= _MIN_US), key=lambda k: -largest[k])
    rest, is_alone = ordered[_MAX_PARTS:], len(parts) == 1
    records: list[dict[str, Any]] = [
        {"part": named(name)} | {f"at{at}": us.get(name) for at, (_, us) in enumerate(parts)}
        for name in ordered[:_MAX_PARTS]
    ]
    if rest:
        sums = (sum(us.get(name, 0.0) for name in rest) for _, us in parts)
        records.append({"part": "others"} | {f"at{at}": us for at, us in enumerate(sums)})
    heads = [Column("part", "")]
    heads += [
        Column(f"at{at}", "time" if is_alone else name, TIME) for at, (name, _) in enumerate(parts)
    ]
    if is_alone:
        whole_us = sum(parts[0][1].values())
        records = [each | {"frac": each["at0"] / whole_us} for each in records]
        heads.append(Column("frac", share, SHARE))
    return Table(title, heads, records)


def steady_of(steps: Sequence[StepBreakdown]) -> Sequence[StepBreakdown]:
    """Those that medians are of."""
    return [step for step in steps if step.role == STEADY] or steps


def median_us(steps: Sequence[StepBreakdown]) -> float:
    return median([step.accounting.step_us for step in steady_of(steps)])


def median_step(steps: Sequence[StepBreakdown]) -> StepBreakdown:
    """The step whose duration is closest to the median of the steady ones; the first of equals."""
    middle_us = median_us(steps)
    return min(steady_of(steps), key=lambda step: abs(step.accounting.step_us - middle_us))


def step_name(name: str, role: str) -> str:
    """A step's name in a table: what it is where it is not steady."""
    return name if role == STEADY else f"{name} ({role}, not in medians)"


def excluded_steps(steps: Collection[tuple[str, str, float]]) -> str:
    """What medians leave out of the name, role and duration of each step; empty where nothing."""
    steady_us = [step_us for _, role, step_us in steps if role == STEADY]
    if not steady_us or len(steady_us) == len(steps):
        return ""
    middle_us = median(steady_us)
    left_out = ", ".join(
        f"{name} ({role})"
        if role == INCOMPLETE
        else f"{name} ({role}, {step_us / middle_us:.1f} times the median)"
        for name, role, step_us in steps
        if role != STEADY
    )
    return f"Medians are of {len(steady_us)} of {counted(len(steps), 'step')}: left out {left_out}."


def path_text(path_us: Mapping[str, float], *, has_device: bool) -> str:
    """What most of a critical path is, by kind; empty of none."""
    if not path_us:
        return ""
    host = {kind: us for kind, us in path_us.items() if has_device and kind.startswith(OF_HOST)}
    parts = {named(kind): us for kind, us in path_us.items() if kind not in host}
    parts[HOST] = sum(host.values())
    part = max(parts, key=parts.__getitem__)
    most = f", above all {named(max(host, key=host.__getitem__))}" if part == HOST else ""
    share = percent(parts[part], sum(path_us.values()))
    return f": {share} of the critical path is {part}{most}"


def straggler_text(straggler: Mapping[str, Any] | None) -> str:
    """Who it is, for how long, and why (`RankWaiting.to_dict()`); empty where none waits."""
    if not straggler or not straggler["held_up_us"]:
        return ""
    cause = straggler["cause"]
    late = human_us(straggler["late_us"].get(cause, 0.0))
    takes = "take" if cause.endswith("s") else "takes"
    because = f"its {cause.replace('_', ' ')} {takes} {late} longer"
    if cause == "starts_late":
        because = f"it starts {late} late"
    return (
        f"Straggler: rank {straggler['rank']}. The others lose "
        f"{human_us(straggler['held_up_us'])} per step in total, mostly because {because}."
    )


def number_text(value: Any) -> str:
    """A figure in full: of a table how many values it has."""
    if isinstance(value, str) or value is None:
        return value or ""
    if not isinstance(value, int | float):
        return f"{len(value)} values"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,g}" if value < 1e6 else f"{value:,.0f}"

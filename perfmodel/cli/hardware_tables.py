"""Tables of hardware: the catalogue, one kernel on a device, figures an answer follows from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfmodel.cli.console import Console
from perfmodel.cli.failures import one_line
from perfmodel.cli.output import SHOWN
from perfmodel.cli.tables import NOTHING, Times, filled, say
from perfmodel.hardware import KINDS, Figure, Part, figures, kind_of
from perfmodel.hardware.parts import parts_of, texts_of
from perfmodel.hardware.reads import ASSUMED, RECALLED

FIGURE_COLUMNS = ("part", "figure", "value", "unit", "source")
_MAX_NAMED = 6
SOURCES_HINT = "sources: perfmodel hardware NAME, or --format json"


def say_assumed_figures(console: Console, name: str, figures: Iterable[Mapping[str, Any]]) -> None:
    """Of `figures` (`Read.to_dict`) those that are assumed, with their values, or recalled; with
    their parts where several have a figure of that name."""
    listed = list(figures)
    count = Counter(each["figure"] for each in listed)
    named: dict[str, list[str]] = {ASSUMED: [], RECALLED: []}
    for each in listed:
        if each["grounds"] in named:
            part = f"{each['part']} " if count[each["figure"]] > 1 else ""
            named[each["grounds"]].append(f"{part}{each['figure']} {_text(each['value'])}")
    every = {grounds: texts for grounds, texts in named.items() if texts}
    if not every:
        return
    if SHOWN.get().sources:
        parts = [f"{grounds}: {', '.join(texts)}" for grounds, texts in every.items()]
        console.print(one_line(f"{name}: figures {'; '.join(parts)} ({SOURCES_HINT})"))
    else:
        counts = " and ".join(f"{len(texts)} {grounds}" for grounds, texts in every.items())
        noun = "figure" if sum(map(len, every.values())) == 1 else "figures"
        say(console, f"{name} rests on {counts} {noun} (--sources)")


def show_figures(console: Console, figures: Sequence[Mapping[str, Any]]) -> None:
    """A row for each, with its source."""
    if not figures:
        return
    rows = [[_text(each[name]) for name in FIGURE_COLUMNS] for each in figures]
    table = filled("Figures read", FIGURE_COLUMNS, rows, texts=len(FIGURE_COLUMNS))
    table.columns[-1].overflow = "fold"
    console.show(table)


def say_assumed_coefficients(
    console: Console, name: str, coefficients: Sequence[Mapping[str, Any]]
) -> None:
    """Which of the coefficients that a cost model read are assumed."""
    assumed = [each["name"] for each in coefficients if each["grounds"] == ASSUMED]
    if assumed:
        more = len(assumed) - _MAX_NAMED
        named = ", ".join(assumed[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
        words = f"{name}: coefficients assumed: {named}, of {len(coefficients)} read"
        console.print(one_line(f"{words} (values: --format json)"))


def show_coefficients(console: Console, coefficients: Sequence[Mapping[str, Any]]) -> None:
    """A row for each coefficient that a cost model read; of several values, how many."""
    if not coefficients:
        return
    rows = []
    for each in coefficients:
        is_one = isinstance(each["value"], int | float)
        value = _text(each["value"]) if is_one else f"{len(each['value'])} values"
        rows.append((each["name"], value, each["unit"], each["source"]))
    table = filled("Coefficients read", ("name", "value", "unit", "source"), rows, texts=4)
    for column in table.columns:
        column.overflow = "fold"
    console.show(table)


def _text(value: Any) -> str:
    if isinstance(value, str) or value is None:
        return value or ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"


COLUMNS: dict[str, tuple[str, ...]] = {
    "device": (
        *("sm_count", "hbm_bytes", "hbm_gb_per_s", "fp32_tflop_per_s", "fp16_tflop_per_s"),
        *("link_gb_per_s", "tdp_w"),
    ),
    "host": ("cores", "boost_mhz", "single_thread_ratio", "dram_gb_per_s"),
    "link": ("gb_per_s",),
    "nic": ("gb_per_s", "latency_us", "memory_bytes", "memory_gb_per_s"),
    "expansion": ("capacity_bytes", "read_gb_per_s", "read_latency_us"),
    "storage": ("read_gb_per_s", "write_gb_per_s", "read_iops", "read_latency_us"),
    "accelerator": ("engines", "memory_latency_us", "pcie_gb_per_s"),
    "node": ("gpus", "sockets", "nics", "power_w", "price_usd"),
    "cluster": ("nodes",),
}
"""The figures that a list shows."""
UNITS = {
    "_gb_per_s": "GB/s",
    "_tflop_per_s": "TFLOP/s",
    "_bytes": "GB",
    "_mhz": "MHz",
    "_us": "us",
    "_w": "W",
    "_usd": "USD",
}
"""How columns of a list are headed; bytes are shown in GB (10**9)."""
_ASSUMED = ("assumed:", "not stated")


def show_list(console: Console, parts: Sequence[Part]) -> None:
    """One table per kind, in it the makers one after the other."""
    for kind in KINDS:
        of_kind = [part for part in parts if kind_of(part) == kind]
        if not of_kind:
            continue
        keys = COLUMNS[kind]
        inner = [key for key in ("device", "host", "node") if key in parts_of(of_kind[0])]
        texts = ["maker", "name", *inner]
        rows, last = [], ""
        for part in of_kind:
            maker = part.maker or NOTHING
            held = [parts_of(part)[key].name for key in inner]
            figures_shown = (_brief(key, getattr(part, key)) for key in keys)
            rows.append((maker if maker != last else "", part.name, *held, *figures_shown))
            last = maker
        table = filled(kind, (*texts, *map(_heading, keys)), rows, texts=len(texts))
        table.columns[1].no_wrap = True  # a name is typed
        console.show(table)


def show_parts(console: Console, parts: Sequence[Part]) -> None:
    """Every figure of each part, with its source."""
    for part in parts:
        held = [f"{key} {inner.name}" for key, inner in parts_of(part).items()]
        texts = {
            key: text if isinstance(text, str) else ", ".join(text)
            for key, text in texts_of(part).items()
        }
        words = [f"{key} {text}" for key, text in texts.items() if text and key not in part.sources]
        say(console, f"{part.name}: {'; '.join([kind_of(part), *held, *words])}")
        rows = [
            (key, text, part.sources[key]) for key, text in texts.items() if key in part.sources
        ]
        every = (*figures(part), *_given_within(part))
        rows += [(figure.key, _whole(figure.value), figure.source) for figure in every]
        table = filled("", ("figure", "value", "source"), rows)
        table.columns[2].justify, table.columns[2].no_wrap = "left", False
        console.show(table)
        if part is not parts[-1]:
            console.print()


def show_checked(console: Console, parts: Sequence[Part]) -> None:
    """One line per file that holds; those that do not have ended the command."""
    for part in parts:
        every = list(_all_figures(part))
        guessed = sum(figure.source.startswith(_ASSUMED) for figure in every)
        say(
            console,
            f"{part.name}: a valid {kind_of(part)} of {len(every)} figures, "
            f"{guessed} of them assumed or without a source",
        )


def _given_within(part: Part) -> list[Figure]:
    """The figures of the parts within a part that a user has given, each with its way there."""
    listed = []
    for key, inner in parts_of(part).items():
        given = [each for each in figures(inner) if each.source.startswith("given in")]
        listed += [replace(each, key=f"{key}.{each.key}") for each in given + _given_within(inner)]
    return listed


def _all_figures(part: Part) -> Iterator[Figure]:
    yield from figures(part)
    for inner in parts_of(part).values():
        yield from _all_figures(inner)


def _heading(key: str) -> str:
    for suffix, unit in UNITS.items():
        if key.endswith(suffix):
            return f"{key.removesuffix(suffix).replace('_', ' ')}\n{unit}"
    if key == "gb_per_s":
        return "rate\nGB/s"
    return key.replace("_", " ")


def _brief(key: str, value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value / 1e9:,.1f}" if key.endswith("_bytes") else _whole(value)


def _whole(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,g}" if value < 1e6 else f"{value:,.0f}"


_BYTES_PER_MB = 1e6
_FLOP_PER_GFLOP = 1e9


def show_kernel(console: Console, title: str, answers: list[dict[str, Any]]) -> None:
    """One line per device, and below it what each duration is made of."""
    times = Times([answer["high_us"] for answer in answers])
    say(console, title)
    first = answers[0]
    moved = (f"{first[key] / _BYTES_PER_MB:,.3f} MB" for key in ("read_bytes", "written_bytes"))
    work = ", writes ".join(moved)
    say(console, f"{first['flop'] / _FLOP_PER_GFLOP:,.3f} GFLOP, reads {work}")
    rows = []
    for answer in answers:
        taken = (times(answer[key]) for key in ("duration_us", "low_us", "high_us"))
        peak = f"{100 * answer['utilisation_frac']:.1f} %"
        rows.append((answer["hardware"], answer["bound_by"], *taken, peak))
    heads = ("device", "bound by", "kernel", "low", "high", "of peak")
    console.show(filled(f"Duration ({times.unit})", heads, rows, texts=2))
    for answer in answers:
        model = f"{answer['model']} ({answer['source']})"
        for line in filter(None, (model, _terms(answer["terms"]), answer["formula"])):
            console.print(one_line(f"{answer['hardware']}: {line}"))
        say_assumed_figures(console, answer["hardware"], answer["figures"])
        say_assumed_coefficients(console, answer["hardware"], answer["coefficients"])


MAX_TIMES = 5
MAX_FACTORS = 3


def _terms(terms: dict[str, float]) -> str:
    """The longest times, then the factors and shares that are furthest from 1, and how many more
    there are."""
    times = [name for name in terms if name.endswith("_us")] or list(terms)
    factors = [name for name in terms if name not in times and terms[name] not in (0, 1)]
    shown = sorted(filter(terms.get, times), key=lambda name: -terms[name])[:MAX_TIMES]
    shown += sorted(factors, key=lambda name: -abs(terms[name] - 1))[:MAX_FACTORS]
    more = len(terms) - len(shown)
    told = ", ".join(f"{name} {terms[name]:,.3f}" for name in shown)
    return told + (f" and {more} more (--format json)" if more else "")


def show_ops(console: Console, ops: list[dict[str, Any]]) -> None:
    """The vocabulary, by family."""
    rows = []
    for op in sorted(ops, key=lambda op: (op["family"], op["op"])):
        optional = [f"[{name}={value:g}]" for name, value in op["optional"].items()]
        dims = " ".join([*op["dims"], *optional])
        rows.append((op["op"], op["family"], dims, " ".join(op["directions"])))
    console.show(filled("Ops", ("op", "family", "dims", "directions"), rows, texts=4))

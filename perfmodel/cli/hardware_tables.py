"""Tables of hardware: the catalogue, one kernel on a device, figures an answer follows from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfmodel.cli.console import Console
from perfmodel.cli.failures import one_line
from perfmodel.cli.output import SHOWN
from perfmodel.cli.tables import NOTHING, Times, add, new_table, say
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
    table = new_table("Figures read", *FIGURE_COLUMNS, texts=len(FIGURE_COLUMNS))
    table.columns[-1].no_wrap, table.columns[-1].overflow = False, "fold"
    for each in figures:
        add(table, *(_text(each[name]) for name in FIGURE_COLUMNS))
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
    names = ("name", "value", "unit", "source")
    table = new_table("Coefficients read", *names, texts=len(names))
    for column in table.columns:
        column.no_wrap, column.overflow = False, "fold"
    for each in coefficients:
        is_one = isinstance(each["value"], int | float)
        value = _text(each["value"]) if is_one else f"{len(each['value'])} values"
        add(table, each["name"], value, each["unit"], each["source"])
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
        table = new_table(kind, *texts, *map(_heading, keys), texts=len(texts))
        table.columns[1].no_wrap = True  # a name is typed
        last = ""
        for part in of_kind:
            maker = part.maker or NOTHING
            held = [parts_of(part)[key].name for key in inner]
            figures_shown = (_brief(key, getattr(part, key)) for key in keys)
            add(table, maker if maker != last else "", part.name, *held, *figures_shown)
            last = maker
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
        table = new_table("", "figure", "value", "source")
        table.title = ""
        table.columns[2].justify = "left"
        table.columns[2].no_wrap = False
        for key, text in texts.items():
            if key in part.sources:
                add(table, key, text, part.sources[key])
        for figure in (*figures(part), *_given_within(part)):
            add(table, figure.key, _whole(figure.value), figure.source)
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
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:,g}"
        if value < 1e6
        else f"{value:,.0f}"
    )


_BYTES_PER_MB = 1e6
_FLOP_PER_GFLOP = 1e9


def show_kernel(console: Console, title: str, answers: list[dict[str, Any]]) -> None:
    """One line per device, and below it what each duration is made of."""
    times = Times([answer["high_us"] for answer in answers])
    say(console, title)
    first = answers[0]
    work = (
        f"{first['flop'] / _FLOP_PER_GFLOP:,.3f} GFLOP, reads "
        f"{first['read_bytes'] / _BYTES_PER_MB:,.3f} MB, writes "
        f"{first['written_bytes'] / _BYTES_PER_MB:,.3f} MB"
    )
    say(console, work)
    table = new_table(
        f"Duration ({times.unit})",
        "device",
        "bound by",
        "kernel",
        "low",
        "high",
        "of peak",
        texts=2,
    )
    for answer in answers:
        add(
            table,
            answer["hardware"],
            answer["bound_by"],
            times(answer["duration_us"]),
            times(answer["low_us"]),
            times(answer["high_us"]),
            f"{100 * answer['utilisation_frac']:.1f} %",
        )
    console.show(table)
    for answer in answers:
        why = (
            f"{answer['model']} ({answer['source']})",
            _terms(answer["terms"]),
            answer["formula"],
        )
        for line in filter(None, why):
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
    table = new_table("Ops", "op", "family", "dims", "directions", texts=4)
    for op in sorted(ops, key=lambda op: (op["family"], op["op"])):
        optional = [f"[{name}={value:g}]" for name, value in op["optional"].items()]
        dims = " ".join([*op["dims"], *optional])
        add(table, op["op"], op["family"], dims, " ".join(op["directions"]))
    console.show(table)

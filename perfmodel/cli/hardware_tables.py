"""Hardware as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from perfmodel.cli.tables import NOTHING, add, new_table, say, show
from perfmodel.hardware import KINDS, Figure, Part, figures, kind_of
from perfmodel.hardware.parts import parts_of, texts_of

COLUMNS: dict[str, tuple[str, ...]] = {
    "device": (
        "sm_count",
        "hbm_bytes",
        "hbm_gb_per_s",
        "fp32_tflop_per_s",
        "fp16_tflop_per_s",
        "link_gb_per_s",
        "tdp_w",
    ),
    "host": ("cores", "boost_mhz", "single_thread_ratio", "dram_gb_per_s"),
    "link": ("gb_per_s",),
    "nic": ("gb_per_s", "latency_us", "memory_bytes", "memory_gb_per_s"),
    "storage": ("read_gb_per_s", "write_gb_per_s", "read_iops", "read_latency_us"),
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
        last = ""
        for part in of_kind:
            maker = part.maker or NOTHING
            held = [parts_of(part)[key].name for key in inner]
            figures_shown = (_brief(key, getattr(part, key)) for key in keys)
            add(table, maker if maker != last else "", part.name, *held, *figures_shown)
            last = maker
        show(console, table)


def show_parts(console: Console, parts: Sequence[Part]) -> None:
    """Every figure of each part, with its source."""
    for part in parts:
        held = [f"{key} {inner.name}" for key, inner in parts_of(part).items()]
        texts = texts_of(part)
        words = [
            f"{key} {_joined(text)}"
            for key, text in texts.items()
            if text and key not in part.sources
        ]
        say(console, f"{part.name}: {'; '.join([kind_of(part), *held, *words])}")
        table = new_table("", "figure", "value", "source")
        table.title = None
        table.columns[2].justify = "left"
        table.columns[2].no_wrap = False
        for key, text in texts.items():
            if key in part.sources:
                add(table, key, _joined(text), part.sources[key])
        for figure in figures(part):
            add(table, figure.key, _whole(figure.value), figure.source)
        for figure in _given_within(part):
            add(table, figure.key, _whole(figure.value), figure.source)
        show(console, table)
        if part is not parts[-1]:
            console.print()


def show_checked(console: Console, parts: Sequence[Part]) -> None:
    """One line per file that holds; those that do not have ended the command."""
    for part in parts:
        every = _all_figures(part)
        guessed = sum(figure.source.startswith(_ASSUMED) for figure in every)
        say(
            console,
            f"{part.name}: a valid {kind_of(part)} of {len(every)} figures, "
            f"{guessed} of them assumed or without a source",
        )


def _given_within(part: Part) -> list[Figure]:
    """The figures of the parts within a part that a user has given, each with its way there."""
    found = []
    for key, inner in parts_of(part).items():
        given = [each for each in figures(inner) if each.source.startswith("given in")]
        found += [replace(each, key=f"{key}.{each.key}") for each in given + _given_within(inner)]
    return found


def _all_figures(part: Part) -> list[Figure]:
    found = figures(part)
    for inner in parts_of(part).values():
        found += _all_figures(inner)
    return found


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


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else ", ".join(text)

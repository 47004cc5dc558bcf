"""Tables of hardware: the catalogue, one kernel on a device, values that an answer follows from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfmodel.cli.console import Console
from perfmodel.cli.output import SHOWN
from perfmodel.hardware import KINDS, Figure, Part, figures, kind_of
from perfmodel.hardware.parts import parts_of, texts_of
from perfmodel.hardware.reads import ASSUMED, RECALLED
from perfmodel.reporting.tables import NOTHING, Table, columns

MAX_NAMED = 6
SOURCES_HINT = "sources: perfmodel hardware NAME, or --format json"


def say_assumed_figures(console: Console, name: str, figures: Iterable[Mapping[str, Any]]) -> None:
    """Of `figures` (`Read.to_dict`) those that are assumed, with their values, or recalled; with
    their parts where several have a figure of that name."""
    listed = list(figures)
    count = Counter(each["figure"] for each in listed)
    texts: dict[str, list[str]] = {ASSUMED: [], RECALLED: []}
    for each in listed:
        if each["grounds"] in texts:
            part = f"{each['part']} " if count[each["figure"]] > 1 else ""
            texts[each["grounds"]].append(f"{part}{each['figure']} {_number(each['value'])}")
    if SHOWN.get().sources:
        parts = [f"{grounds}: {', '.join(each)}" for grounds, each in texts.items() if each]
        if parts:
            console.say(f"{name}: hardware values {'; '.join(parts)} ({SOURCES_HINT})")
        return
    guesses, unchecked = len(texts[ASSUMED]), len(texts[RECALLED])
    said = []
    if guesses:
        of = "hardware value is a guess" if guesses == 1 else "hardware values are guesses"
        said.append(f"{guesses} {of}")
    if unchecked:
        of = "" if guesses else " hardware value" if unchecked == 1 else " hardware values"
        verb = "was not checked against its" if unchecked == 1 else "were not checked against their"
        said.append(f"{unchecked}{of} {verb} source")
    if said:
        console.say(f"{name}: {', '.join(said)} (--sources)")


def say_assumed_coefficients(
    console: Console, name: str, coefficients: Sequence[Mapping[str, Any]]
) -> None:
    """Which of the coefficients that a cost model read are assumed."""
    assumed = [each["name"] for each in coefficients if each["grounds"] == ASSUMED]
    if assumed:
        more = len(assumed) - MAX_NAMED
        named = ", ".join(assumed[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
        words = f"{name}: coefficients assumed: {named}, of {len(coefficients)} read"
        console.say(f"{words} (values: --format json)")


def show_read(console: Console, title: str, read: Sequence[Mapping[str, Any]]) -> None:
    """A row for each figure or coefficient that was read, with its source."""
    if not read:
        return
    every = ("part", "figure", "name", "value", "unit", "source")
    heads = columns(";".join(key for key in every if key in read[0]))
    records = [dict(each) | {"value": _number(each["value"])} for each in read]
    console.show(Table(title, heads, records, full_names=True))


def _number(value: Any) -> str:
    if isinstance(value, str) or value is None:
        return value or ""
    if not isinstance(value, int | float):
        return f"{len(value)} values"
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"


LISTED = {
    "device": "sm_count=sm count:s;hbm_bytes=hbm|GB:s;hbm_gb_per_s=hbm|GB/s:s;"
    "fp32_tflop_per_s=fp32|TFLOP/s:s;fp16_tflop_per_s=fp16|TFLOP/s:s;link_gb_per_s=link|GB/s:s;"
    "tdp_w=tdp|W:s",
    "host": "cores:s;boost_mhz=boost|MHz:s;single_thread_ratio=single thread|ratio:s;"
    "dram_gb_per_s=dram|GB/s:s",
    "link": "gb_per_s=rate|GB/s:s",
    "nic": "gb_per_s=rate|GB/s:s;latency_us=latency|us:s;memory_bytes=memory|GB:s;"
    "memory_gb_per_s=memory|GB/s:s",
    "expansion": "capacity_bytes=capacity|GB:s;read_gb_per_s=read|GB/s:s;"
    "read_latency_us=read latency|us:s",
    "storage": "read_gb_per_s=read|GB/s:s;write_gb_per_s=write|GB/s:s;read_iops=read iops:s;"
    "read_latency_us=read latency|us:s",
    "accelerator": "engines:s;memory_latency_us=memory latency|us:s;pcie_gb_per_s=pcie|GB/s:s",
    "node": "gpus:s;sockets:s;nics:s;power_w=power|W:s;price_usd=price|USD:s",
    "cluster": "nodes:s",
}
"""The figures that a list shows, per kind; bytes are shown in GB (10**9)."""
_ASSUMED = ("assumed:", "not stated")


def show_list(console: Console, parts: Sequence[Part]) -> None:
    """One table per kind, in it the makers one after the other."""
    for kind in KINDS:
        of_kind = [part for part in parts if kind_of(part) == kind]
        if not of_kind:
            continue
        inner = [key for key in ("device", "host", "node") if key in parts_of(of_kind[0])]
        listed = columns(LISTED[kind])
        records, last = [], ""
        for part in of_kind:
            maker = part.maker or NOTHING
            record = {each.key: _brief(each.key, getattr(part, each.key)) for each in listed}
            record |= {key: parts_of(part)[key].name for key in inner}
            records.append(record | {"maker": "" if maker == last else maker, "name": part.name})
            last = maker
        heads = columns(";".join(["maker", "name:name", *inner]))
        console.show(Table(kind, [*heads, *listed], records))


def show_parts(console: Console, parts: Sequence[Part]) -> None:
    """Every figure of each part, with its source."""
    for part in parts:
        held = [f"{key} {inner.name}" for key, inner in parts_of(part).items()]
        texts = {
            key: text if isinstance(text, str) else ", ".join(text)
            for key, text in texts_of(part).items()
        }
        words = [f"{key} {text}" for key, text in texts.items() if text and key not in part.sources]
        console.say(f"{part.name}: {'; '.join([kind_of(part), *held, *words])}")
        rows = [
            (key, text, part.sources[key]) for key, text in texts.items() if key in part.sources
        ]
        every = (*figures(part), *_given_within(part))
        rows += [(figure.key, _whole(figure.value), figure.source) for figure in every]
        records = [dict(zip(("figure", "value", "source"), row, strict=True)) for row in rows]
        heads = columns("figure:name;value:s;source")
        console.show(Table("", heads, records, full_names=True))
        if part is not parts[-1]:
            console.print()


def show_checked(console: Console, parts: Sequence[Part]) -> None:
    """One line per file that holds; those that do not have ended the command."""
    for part in parts:
        every = list(_all_figures(part))
        guessed = sum(figure.source.startswith(_ASSUMED) for figure in every)
        console.say(
            f"{part.name}: a valid {kind_of(part)} of {len(every)} figures, "
            f"{guessed} of them assumed or without a source"
        )


def _given_within(part: Part) -> list[Figure]:
    """The figures of the parts within a part that a user has given, each with its path there."""
    listed = []
    for key, inner in parts_of(part).items():
        given = [each for each in figures(inner) if each.source.startswith("given in")]
        listed += [replace(each, key=f"{key}.{each.key}") for each in given + _given_within(inner)]
    return listed


def _all_figures(part: Part) -> Iterator[Figure]:
    yield from figures(part)
    for inner in parts_of(part).values():
        yield from _all_figures(inner)


def _brief(key: str, value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value / 1e9:,.1f}" if key.endswith("_bytes") else _whole(value)


def _whole(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,g}" if value < 1e6 else f"{value:,.0f}"


_KERNEL = columns(
    "hardware=device;bound_by=bound by;duration_us=kernel:us;low_us=low:us;high_us=high:us;"
    "utilisation_frac=of peak:share"
)
_BYTES_PER_MB = 1e6
_FLOP_PER_GFLOP = 1e9
MAX_TIMES = 5
MAX_FACTORS = 3


def show_kernel(console: Console, title: str, answers: list[dict[str, Any]]) -> None:
    """One line per device, and below it what each duration is made of."""
    console.say(title)
    first = answers[0]
    read, written = (first[key] / _BYTES_PER_MB for key in ("read_bytes", "written_bytes"))
    flop = first["flop"] / _FLOP_PER_GFLOP
    console.say(f"{flop:,.3f} GFLOP, reads {read:,.3f} MB, writes {written:,.3f} MB")
    console.show(Table("Duration", _KERNEL, answers))
    for answer in answers:
        model = f"{answer['model']} ({answer['source']})"
        for line in filter(None, (model, _terms(answer["terms"]), answer["formula"])):
            console.say(f"{answer['hardware']}: {line}")
        say_assumed_figures(console, answer["hardware"], answer["figures"])
        say_assumed_coefficients(console, answer["hardware"], answer["coefficients"])


def _terms(terms: dict[str, float]) -> str:
    """The longest times, then the factors and shares that are furthest from 1, and how many more
    there are."""
    times = [name for name in terms if name.endswith("_us")] or list(terms)
    factors = [name for name in terms if name not in times and terms[name] not in (0, 1)]
    shown = sorted(filter(terms.get, times), key=lambda name: -terms[name])[:MAX_TIMES]
    shown += sorted(factors, key=lambda name: -abs(terms[name] - 1))[:MAX_FACTORS]
    more = len(terms) - len(shown)
    text = ", ".join(f"{name} {terms[name]:,.3f}" for name in shown)
    return text + (f" and {more} more (--format json)" if more else "")


def show_ops(console: Console, ops: list[dict[str, Any]]) -> None:
    """The vocabulary, by family."""
    records = []
    for op in sorted(ops, key=lambda op: (op["family"], op["op"])):
        optional = [f"[{name}={value:g}]" for name, value in op["optional"].items()]
        record = {"dims": " ".join([*op["dims"], *optional])}
        records.append(op | record | {"directions": " ".join(op["directions"])})
    heads = columns("op:name;family;dims;directions")
    console.show(Table("Ops", heads, records, full_names=True))

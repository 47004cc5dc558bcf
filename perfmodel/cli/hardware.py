"""`perfmodel hardware`: the catalogue, one part of it, or a file of one's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.cli.output import STDOUT, Output
from perfmodel.errors import UsageError
from perfmodel.reporting.tables import NOTHING, Block, Table, columns, number_text

if TYPE_CHECKING:
    from perfmodel.hardware import Part


SCHEMA = "perfmodel.hardware/1"
LIST, SHOW = ACTIONS = ("list", "show")
LISTED = {
    "device": "sm_count=sm count:s;hbm_bytes=hbm|GB:s;hbm_gb_per_s=hbm|GB/s:s;"
    "fp32_tflop_per_s=fp32|TFLOP/s:s;fp16_tflop_per_s=fp16|TFLOP/s:s;link_gb_per_s=link|GB/s:s;"
    "tdp_w=tdp|W:s;price_usd=price|USD:s",
    "host": "cores:s;boost_mhz=boost|MHz:s;single_thread_ratio=single thread|ratio:s;"
    "dram_gb_per_s=dram|GB/s:s",
    "link": "gb_per_s=rate|GB/s:s",
    "nic": "gb_per_s=rate|GB/s:s;latency_us=latency|us:s;memory_bytes=memory|GB:s;"
    "memory_gb_per_s=memory|GB/s:s",
    "storage": "read_gb_per_s=read|GB/s:s;write_gb_per_s=write|GB/s:s;read_iops=read iops:s;"
    "read_latency_us=read latency|us:s",
    "accelerator": "engines:s;memory_latency_us=memory latency|us:s;pcie_gb_per_s=pcie|GB/s:s",
    "node": "gpus:s;sockets:s;nics:s;power_w=power|W:s;price_usd=price|USD:s",
    "cluster": "nodes:s",
}
"""The figures that a list shows, per kind; bytes are shown in GB (10**9)."""


def hardware(
    what: list[str] | None = None,
    kind: str | None = None,
    target: Output = STDOUT,
) -> None:
    from perfmodel.hardware import find
    from perfmodel.hardware.catalogue import parts_named

    words = what or [LIST]
    action, *names = words if words[0] in ACTIONS else (SHOW, *words)
    if action != LIST and not names:
        raise UsageError(f"hardware {action} needs at least one name or file")
    if kind is not None and action != LIST:
        raise UsageError(f"--kind is for `hardware {LIST}`")
    if action == LIST:
        parts, blocks = find(" ".join(names), kind), _listed
        if not parts:
            where = f"{kind}s" if kind else "parts"
            raise UsageError(f"none of the catalogue's {where} holds {' and '.join(names)!r}")
    else:
        parts = [part for name in names for part in parts_named(name)]
        blocks = _described
    answers = list(map(part_dict, parts))
    target.write(
        lambda: {"schema": SCHEMA, "parts": answers},
        lambda: [
            {"kind": each["kind"], "name": each["name"], **figure}
            for each in answers
            for figure in each["figures"]
        ],
        lambda: blocks(parts),
    )


def part_dict(part: Part) -> dict[str, Any]:
    from perfmodel.hardware import figures, kind_of
    from perfmodel.hardware.parts import parts_of, texts_of

    return {
        "name": part.name,
        "kind": kind_of(part),
        "texts": texts_of(part),
        "text_sources": {key: part.sources[key] for key in texts_of(part) if key in part.sources},
        "parts": {key: part_dict(inner) for key, inner in parts_of(part).items()},
        "figures": [vars(figure) for figure in figures(part)],
    }


def _listed(parts: Sequence[Part]) -> Iterator[Block]:
    """One table per kind, in it the makers one after the other; bytes in GB."""
    from perfmodel.hardware import KINDS, Device, kind_of
    from perfmodel.hardware.parts import parts_of

    def brief(key: str, value: float | None) -> str | None:
        if value is None:
            return None
        return f"{value / 1e9:,.1f}" if key.endswith("_bytes") else number_text(value)

    for kind in KINDS:
        of_kind = [part for part in parts if kind_of(part) == kind]
        if not of_kind:
            continue
        inner = [key for key in ("device", "host", "node") if key in parts_of(of_kind[0])]
        heads = columns(";".join(["maker", "name:name", *inner, LISTED[kind]]))
        records, last = [], ""
        for part in of_kind:
            maker = part.maker or NOTHING
            shown = heads[2 + len(inner) :]
            record = {each.key: brief(each.key, getattr(part, each.key)) for each in shown}
            record |= {key: parts_of(part)[key].name for key in inner}
            records.append(record | {"maker": "" if maker == last else maker, "name": part.name})
            last = maker
        yield Table(kind, heads, records)
        prices = [part.price_usd for part in of_kind if isinstance(part, Device)]
        if unpriced := prices.count(None):
            yield f"{unpriced} of {len(prices)} have no price; costs need those of host and adapter"


def _described(parts: Sequence[Part]) -> Iterator[Block]:
    """Every figure of each part, with its source."""
    from perfmodel.hardware import figures, kind_of
    from perfmodel.hardware.parts import parts_of, texts_of

    for part in parts:
        held = [f"{key} {inner.name}" for key, inner in parts_of(part).items()]
        texts = {
            key: text if isinstance(text, str) else ", ".join(text)
            for key, text in texts_of(part).items()
        }
        told = {*part.sources} | ({"based_on"} if texts.get("based_on") == part.name else set())
        words = [f"{key} {text}" for key, text in texts.items() if text and key not in told]
        above = "" if part is parts[0] else "\n"
        yield f"{above}{part.name}: {'; '.join([kind_of(part), *held, *words])}"
        rows = [(key, texts[key], part.sources[key]) for key in texts if key in part.sources]
        rows += [(each.key, number_text(each.value), each.source) for each in figures(part)]
        records = [dict(zip(("figure", "value", "source"), row, strict=True)) for row in rows]
        yield Table("", "figure:name;value:s;source", records, full_names=True)

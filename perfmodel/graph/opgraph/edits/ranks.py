"""The same work on each of more, or fewer, ranks: weak scaling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from perfmodel.errors import UsageError
from perfmodel.graph.opgraph.edits.edited import Edited
from perfmodel.graph.ops import OpGraph

GROWING = {"all_gather": "out_elements", "gather": "out_elements", "reduce_scatter": "in_elements"}
"""Collectives whose size, on one side, is as many times what a rank gives or gets as there are
ranks."""


def ranks(graph: OpGraph, value: str) -> Edited:
    """`graph` as one of `value` ranks, each of which has the work that it has now.

    Batch and tables grow with the ranks, or tables are dealt out anew: a rank looks up, computes,
    gives to all-to-all and all-reduce, and gets of reduce-scatter as much as before. Collectives
    among some of the ranks stay as they are and are named in `undone`. All-to-alls become even.
    """
    if not value.isdecimal() or int(value) < 2:
        raise UsageError(f"--edit 'ranks={value}': expected ranks=COUNT, a number of 2 or more")
    count, before = int(value), graph.world_size
    found = [
        _among(op.attributes, before, count) if "collective" in op.attributes else None
        for op in graph.ops
    ]
    apart = Counter(
        op.attributes["collective"]
        for op in graph.ops
        if "collective" in op.attributes and _size(op.attributes, before) != before
    )
    undone = tuple(f"{n} calls of {name} are among some ranks only" for name, n in apart.items())
    if count == before or not any(found):
        return Edited(graph, undone or ("no collective among all ranks",))
    ops = tuple(
        op if about is None else replace(op, attributes=about)
        for op, about in zip(graph.ops, found, strict=True)
    )
    note = f"{count} ranks instead of {before}, each with the work it had"
    return Edited(replace(graph, ops=ops, world_size=count, notes=(*graph.notes, note)), undone)


def _size(about: Mapping[str, str], world_size: int) -> int:
    return int(about.get("group_size", world_size))


def _among(about: Mapping[str, str], before: int, count: int) -> dict[str, str] | None:
    """The attributes of a collective among `count` ranks; None where it is not among all."""
    if _size(about, before) != before or before < 2:
        return None
    kept = {key: text for key, text in about.items() if key not in ("in_split", "out_split")}
    grows = GROWING.get(about["collective"])
    if grows in kept:
        kept[grows] = str(round(float(kept[grows]) * count / before))
    kept.pop("group_ranks", None)
    return {**kept, "group_size": str(count)}

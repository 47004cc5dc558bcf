"""All-to-all of a narrower type, with the ops that encode and decode."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import WorkloadError
from perfmodel.graph.opgraph.edits.assemble import Placed, assembled, kept
from perfmodel.graph.opgraph.edits.edited import Edited
from perfmodel.graph.ops import NO_OP, Op, OpGraph, Tensor

CLAMPED = {"fp16": True, "bf16": False}
"""Types that a payload may take, and whether values are clamped to their range before."""
WIDE = "fp32"


def exchange(graph: OpGraph, dtype: str) -> Edited:
    """`graph` whose all-to-alls of fp32 send `dtype`: encoded before the call, and decoded before
    the first op that reads or waits for what came (where nothing tells, behind the call).

    Raises `WorkloadError` for another type.
    """
    if dtype not in CLAMPED:
        raise WorkloadError(f"cannot exchange {dtype!r}; one of {', '.join(CLAMPED)}")
    wide = [at for at, op in enumerate(graph.ops) if _is_wide(op)]
    if not wide:
        return Edited(graph, (f"no all-to-all of {WIDE}",))
    outermost = _outermost(graph)
    calls = {outermost[at]: at for at in wide}
    readers = dict(_first_readers(graph, outermost, calls))
    before: defaultdict[int, list[Op]] = defaultdict(list)
    behind: defaultdict[int, list[tuple[Op, int]]] = defaultdict(list)
    for top, at in calls.items():
        before[top] += _encoding(graph.ops[top], graph.ops[at], dtype)
        decoding = _decoding(graph.ops[readers.get(top, top)], graph.ops[at], dtype)
        behind[readers.get(top, _last(outermost, top) + 1)].append((decoding, at))
    placed: list[Placed] = []
    decoded: list[tuple[int, int]] = []
    for at in range(len(graph) + 1):
        for op, source in behind.get(at, ()):
            decoded.append((source, len(placed)))
            placed.append(Placed(op))
        if at < len(graph):
            placed += [Placed(op) for op in before.get(at, ())]
            placed += _narrowed(kept(graph, [at]), dtype)
    note = f"{len(calls)} all-to-alls of {dtype} instead of {WIDE}"
    found = assembled(graph, placed, note)
    new_of = {one.covers[0]: at for at, one in enumerate(placed) if one.covers}
    edges = np.array([(new_of[source], target) for source, target in decoded], np.int64)
    undone = "no gradient of a clamp" if CLAMPED[dtype] else ""
    return Edited(
        replace(
            found,
            data=_with(found.data, edges) if len(found.data) else found.data,
            waits=None if found.waits is None else _with(found.waits, edges),
        ),
        (undone,) if undone else (),
    )


def _is_wide(op: Op) -> bool:
    about = op.attributes
    told = "in_elements" in about and "out_elements" in about
    return about.get("collective") == "all_to_all" and about.get("dtype") == WIDE and told


def _outermost(graph: OpGraph) -> list[int]:
    """Per op the one around it that no other called."""
    found = list(range(len(graph)))
    for at, op in enumerate(graph.ops):
        if op.parent != NO_OP:
            found[at] = found[op.parent]
    return found


def _last(outermost: list[int], top: int) -> int:
    """The last op that `top` calls, directly or not."""
    at = top
    while at + 1 < len(outermost) and outermost[at + 1] == top:
        at += 1
    return at


def _first_readers(
    graph: OpGraph, outermost: list[int], calls: dict[int, int]
) -> Iterator[tuple[int, int]]:
    """(call, the first outermost op behind it that reads what came, or waits for it)."""
    edges = graph.data if graph.waits is None else graph.waits
    first: dict[int, int] = {}
    for source, target in edges.tolist():
        top, reader = outermost[source], outermost[target]
        if top in calls and reader > top:
            first[top] = min(first.get(top, reader), reader)
    yield from first.items()


def _encoding(like: Op, collective: Op, dtype: str) -> list[Op]:
    wide, narrow = _payload(collective, "in_elements", dtype)
    clamp = [_op(like, "aten::clamp", (wide, None, None), wide)] if CLAMPED[dtype] else []
    return [*clamp, _op(like, "aten::copy_", (narrow, wide, False), narrow)]


def _decoding(like: Op, collective: Op, dtype: str) -> Op:
    wide, narrow = _payload(collective, "out_elements", dtype)
    return _op(like, "aten::copy_", (wide, narrow, False), wide)


def _payload(collective: Op, side: str, dtype: str) -> tuple[Tensor, Tensor]:
    """What is encoded, or decoded: as the program has it, and as it is sent."""
    place = next((t.device for t in collective.tensors if t.device), "")
    shape = (int(collective.attributes[side]),)
    return Tensor(shape, WIDE, device=place), Tensor(shape, dtype, device=place)


def _op(like: Op, name: str, inputs: tuple[Tensor | bool | None, ...], output: Tensor) -> Op:
    """An op of the same thread, phase and step; on the stream of the kernels."""
    about = {key: text for key, text in like.attributes.items() if key == "annotation"}
    return Op(name, inputs, (output,), NO_OP, like.thread, like.phase, like.step, -1, about)


def _narrowed(placed: list[Placed], dtype: str) -> list[Placed]:
    return [
        replace(one, op=replace(one.op, attributes={**one.op.attributes, "dtype": dtype}))
        if _is_wide(one.op)
        else one
        for one in placed
    ]


def _with(edges: NDArray[np.int64], more: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([edges, more.reshape(-1, 2)])

"""Small traces whose errors can be checked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny import Tiny

from perfmodel.validate.evaluate.results import SCHEMA, Errors, Kind


def steps(*costs: tuple[float, float], rank: int | None = None, world_size: int = 2) -> Tiny:
    """A step per (operator, kernel) time in microseconds.

    The step has a gap of 10 before its one operator, launches one kernel, and waits for nothing.
    """
    t = Tiny(rank, world_size if rank is not None else None)
    at = 0.0
    for number, (op, kernel) in enumerate(costs):
        begun = at
        at += 10
        t.op("aten::mm", at, at + op)
        t.launch(at + 2, at + 6, kernel=(at + 7, at + 7 + kernel))
        at += op
        t.step(number, begun, at)
    return t


def save(path: Path, tiny: Tiny) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tiny.content())
    return path


def row(
    trace: str = "a", kind: Kind = Kind.STEP_LEFT_OUT, name: str = "step", **figures: float
) -> dict[str, Any]:
    known = {"mape_pct": 2.0, "median_pct": 1.0, "worst_pct": 4.0, "bias_pct": -1.0} | figures
    count = int(known.pop("n", 6))
    return {"trace": trace, "kind": kind.value, "name": name, "n": count, **known}


def evaluation(*rows: dict[str, Any]) -> Errors:
    return Errors(SCHEMA, list(rows))

"""The registered models of collectives, and one corrected by points measured on a machine: logs of
nccl-tests and PARAM, and the file that keeps their points."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from perfmodel.base.arrays import Floats, Ints
from perfmodel.base.files import read_bytes, write_text
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.collectives.calls import COLLECTIVES, MAX_RANKS, Calls, Fabric, calls_of
from perfmodel.cost.collectives.heuristic import Heuristic
from perfmodel.cost.collectives.learned import (
    Learned,
    distinct_calls,
    estimate_on_knots,
    explained,
    shipped,
    take_calls,
)
from perfmodel.cost.contract import Estimate, Explanation
from perfmodel.errors import ModelError
from perfmodel.ops.rows import MOST, Rows

COLLECTIVES.register("collective/heuristic")(Heuristic("collective/heuristic"))


class Shipped:
    """The shipped model, read when it is first asked."""

    def estimate(self, calls: Calls) -> Estimate:
        """Durations of `calls`."""
        return shipped().estimate(calls)

    def explain(self, calls: Calls) -> list[Explanation]:
        """Why, per call."""
        return shipped().explain(calls)


COLLECTIVES.register("collective/learned")(Shipped())


_C = coefficients("collectives.calibrated")
CALIBRATED, SWEEP = "calibrated", "sweep"
SWEEP_POINTS = 8
"""From so many points per curve on, the answer rests on a sweep."""


@dataclass(frozen=True, eq=False)
class Calibrated:
    """`base` times a correction: by points of the same curve, straight between them in log(size),
    where those less than an octave apart share their noise; of other curves of the machine, a part
    of the mean. The interval widens with the distance to the nearest point."""

    name: str
    base: Learned
    calls: Calls
    """What was measured."""
    time_us: Floats

    @property
    def level(self) -> str:
        """`calibrated` with a few points per curve, `sweep` with many."""
        curves = len(np.unique(_curves(self.calls, self.calls)[0]))
        return SWEEP if len(self.calls) >= SWEEP_POINTS * curves else CALIBRATED

    def log_us(self, calls: Calls) -> tuple[Floats, Floats]:
        """(log(microseconds), standard deviation), at any sizes; not smoothed."""
        base, spread = self.base.log_us(calls)
        log_ratio = np.log(self.time_us) - self.base.log_us(self.calls)[0]
        measured, asked = _curves(self.calls, calls)
        known, size = np.log2(self.calls.size_bytes), np.log2(calls.size_bytes)
        mean, left = np.zeros(len(calls)), np.ones(len(calls))
        means: dict[bool, list[float]] = {False: [], True: []}
        for curve in np.unique(measured):
            own, there = np.flatnonzero(measured == curve), asked == curve
            own = own[np.argsort(known[own], kind="stable")]
            apart = np.subtract.outer(known[own], known[own]) / _C.noise_octaves
            weight = np.exp(-(apart**2) / 2.0)
            smooth = weight @ log_ratio[own] / weight.sum(axis=1)
            mean[there] = np.interp(size[there], known[own], smooth)
            away = np.abs(np.subtract.outer(size[there], known[own])).min(axis=1)
            left[there] = -np.expm1(-away / _C.reach_octaves)
            means[bool(self.calls.is_remote[own[0]])].append(float(log_ratio[own].mean()))
        for is_remote, of_curves in means.items():
            others = (calls.is_remote == is_remote) & ~np.isin(asked, measured)
            mean[others] = _C.other_curves_frac * float(np.mean(of_curves or [0.0]))
        return base + mean, np.sqrt(_C.noise_sd**2 + spread**2 * left)

    def estimate(self, calls: Calls) -> Estimate:
        """Durations of `calls`; raises `ModelError` for an op without an algorithm."""
        return estimate_on_knots(calls, self.log_us, self.name, self.level)

    def explain(self, calls: Calls) -> list[Explanation]:
        """Why, per call: the heuristic's parts, and the factor that was learned and measured."""
        return explained(calls, self.base.constants, self.estimate(calls))


def _curves(measured: Calls, asked: Calls) -> tuple[Ints, Ints]:
    """Which curve each call of both belongs to: the same op and variant, among as many ranks and
    domains."""
    names = ("op", "ranks", "domains", "variant")
    pairs = (np.concatenate([getattr(measured, x), getattr(asked, x)]) for x in names)
    codes = [np.unique(both, return_inverse=True)[1].reshape(-1) for both in pairs]
    kind = np.unique(np.stack(codes), axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return kind[: len(measured)], kind[len(measured) :]


def calibrated(base: Learned, calls: Calls, time_us: Floats, name: str) -> Calibrated:
    """`base` with points; repeated ones count once, by their median."""
    _, kind = distinct_calls(calls)
    keys = np.stack([kind.astype(np.float64), calls.size_bytes])
    _, index, same = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    same = same.reshape(-1)
    median = np.array([np.median(time_us[same == each]) for each in range(len(index))])
    return Calibrated(name, base, take_calls(calls, index.astype(np.int64)), median)


_OP = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "send_recv",
}
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s.*\bon\s+(\S+)\s+device", re.IGNORECASE)
_TEST = re.compile(
    r"\b(all_?reduce|all_?gather|reduce_?scatter|all_?to_?allv?|alltoall|broadcast|reduce|sendrecv)"
    r"_(?:perf|bench)\b|#\s*collective\s+test\s+starting\s*:\s*(\w+?)_perf",
    re.IGNORECASE,
)
_DATA_ROW = re.compile(
    r"\s*[1-9]\d*\s+\d+\s+(?:u?int(?:8|32|64)|half|float|double|bfloat16|f8e[45]m[23])\s"
)
"""A row of nccl-tests that sent something."""
_UNCHECKED = "N/A"
_PARAM_HEAD = re.compile(r"COMMS-RES.*size", re.IGNORECASE)
_PARAM_OP = re.compile(r"collective[=:\s]+'?(\w+)|--collective[=\s]+(\w+)", re.IGNORECASE)
_PARAM_WORLD = re.compile(
    r"(?:world[_ ]size|global_size|num_?ranks?)\s*[:=]?\s*(\d+)", re.IGNORECASE
)


@dataclass(frozen=True)
class Point:
    """One measured collective; nodes are 0 where the log does not say."""

    op: str
    ranks: Annotated[int, Meta(ge=2, le=MAX_RANKS)]
    nodes: Annotated[int, Meta(ge=0, le=MAX_RANKS)]
    size_bytes: Annotated[float, Meta(ge=1.0, le=MOST)]
    time_us: Annotated[float, Meta(ge=1e-6, le=MOST)]


def parse(
    text: str,
    where: str,
    *,
    op: str | None = None,
    ranks: int | None = None,
    nodes: int | None = None,
) -> list[Point]:
    """The points of a log, out of place; what it does not say is given by `op ranks nodes`.

    Raises `ModelError` where no points are found, or their op or ranks are unknown.
    """
    points: list[Point] = []
    seen: dict[int, str] = {}
    current, param = op, False
    columns: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        rank = _RANK.search(line)
        if rank:
            if int(rank[1]) == 0:
                seen = {}
            seen[int(rank[1])] = rank[2]
            continue
        named = _TEST.search(line)
        if named and op is None:
            current = _known(named[1] or named[2])
        stated = _PARAM_OP.search(line)
        if stated and op is None and _known(stated[1] or stated[2]):
            current = _known(stated[1] or stated[2])
        world = _PARAM_WORLD.search(line)
        if world and not seen and ranks is None:
            ranks = int(world[1])
        if _PARAM_HEAD.search(line):
            columns, param = _param_columns(line), True
            continue
        pair = _param_row(line, columns) if param else None
        pair = pair or _nccl_row(line)
        if pair is None:
            if _DATA_ROW.match(line):
                raise ModelError(
                    f"{where}:{number}: no time above 0, or data that arrived wrong, "
                    "where a row of results is expected"
                )
            continue
        among = ranks or len(seen)
        if current is None:
            raise ModelError(f"{where}:{number}: no collective is named: give --collective")
        if among < 2:
            raise ModelError(f"{where}:{number}: the number of ranks is not stated: give --ranks")
        points.append(Point(current, among, nodes or len(set(seen.values())), *pair))
    if not points:
        raise ModelError(f"{where}: no rows of nccl-tests or PARAM in it")
    return points


def _known(name: str | None) -> str | None:
    return _OP.get((name or "").lower().replace("_", ""))


def _nccl_row(line: str) -> tuple[float, float] | None:
    """(bytes, out-of-place us) of a row: size count type redop [root] time algbw busbw … Both ways
    take three or four numbers each, so that an odd one is the root, which old logs lack. Only what
    was not checked is a text among them. A row whose data arrived wrong is none."""
    words = line.split()
    if len(words) < 7 or not words[0].isdigit() or not words[1].isdigit():
        return None
    numbers = list(_numbers(words[2:]))
    texts = [word for word in words[2:] if word != _UNCHECKED and not list(_numbers([word]))]
    if texts != words[2 : 2 + len(texts)] or not 1 <= len(texts) <= 2 or len(numbers) < 3:
        return None
    has_root = len(numbers) % 2
    time_us, *_, wrong = numbers[has_root : has_root + 4]
    if _UNCHECKED not in words and len(numbers) >= 4 and wrong >= 1:
        return None
    return _possible(float(words[0]), time_us)


def _numbers(words: list[str]) -> Iterator[float]:
    for word in words:
        try:
            yield float(word)
        except ValueError:
            continue


def _param_columns(line: str) -> dict[str, int]:
    words = re.split(r"\s{2,}|\t|,", line.strip())
    columns = {}
    for position, word in enumerate(words):
        lower = word.lower()
        if "size" in lower and "size" not in columns:
            columns["size"] = position
        elif "latency" in lower and ("p50" in lower or "time" not in columns):
            columns["time"] = position
    return columns


def _param_row(line: str, columns: dict[str, int]) -> tuple[float, float] | None:
    words = re.split(r"\s+|,", line.strip())
    if "size" not in columns or "time" not in columns or not words[0].startswith("COMMS-RES"):
        return None
    try:
        size, time_us = float(words[columns["size"]]), float(words[columns["time"]])
    except (ValueError, IndexError):
        return None
    return _possible(size, time_us)


def _possible(size_bytes: float, time_us: float) -> tuple[float, float] | None:
    return (size_bytes, time_us) if 0 < size_bytes <= MOST and 0 < time_us <= MOST else None


SCHEMA = "perfmodel.collective-points/1"
NAME = "collective/calibrated"
_MAX_BYTES = 64_000_000


class _File(msgspec.Struct):
    schema: str
    fabric: Fabric
    points: list[Point]


def rows_of(points: Sequence[Point], fabric: Fabric) -> Rows:
    """The calls that were measured; a log without host names filled the nodes one by one."""
    return Rows.of(
        [
            {
                "op": point.op,
                "size_bytes": point.size_bytes,
                "ranks": point.ranks,
                "nodes": point.nodes or -(-point.ranks // fabric.node_ranks),
            }
            for point in points
        ]
    )


def save_machine(
    path: Path, points: Sequence[Point], fabric: Fabric, about: dict[str, Any]
) -> None:
    """Write `points` and the wires they were measured on, whole or not at all."""
    calls_of(rows_of(points, fabric), fabric)
    content = {
        "schema": SCHEMA,
        "about": about,
        "fabric": asdict(fabric),
        "points": [asdict(point) for point in points],
    }
    write_text(path, json.dumps(content, allow_nan=False) + "\n")


def load_machine(path: Path, base: Learned | None = None) -> Calibrated:
    """`base` (the shipped model) corrected by the points of a file of `save_machine`.

    Raises `ModelError` for another file.
    """
    try:
        content = msgspec.json.decode(read_bytes(path, max_bytes=_MAX_BYTES), type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{path}: not a file of collective measurements: {error}") from None
    if content.schema != SCHEMA or not content.points:
        raise ModelError(
            f"{path}: not a file of collective measurements (schema {content.schema!r:.60}), or "
            "without a point"
        )
    calls = calls_of(rows_of(content.points, content.fabric), content.fabric)
    times = np.array([point.time_us for point in content.points])
    return calibrated(base or shipped(), calls, times, NAME)

"""Measurement tables of GPU kernels: read, checked, thinned."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from perfmodel import hardware
from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.base.files import read_bytes
from perfmodel.base.frames import MAX_TABLE_BYTES, frame_of, numbers_in
from perfmodel.collect.timing import GPU_FLUSH_BYTES
from perfmodel.cost.gpu.analysis import TIMINGS, calls_of
from perfmodel.cost.gpu.matmul import QUANTISED
from perfmodel.cost.gpu.rates import stream_bytes_per_us
from perfmodel.cost.learned.features import as_kernels
from perfmodel.errors import HardwareError, ModelError, PerfmodelError
from perfmodel.hardware import Device
from perfmodel.ops.rows import BEHIND_WORK, FRAMEWORK, FRAMEWORKS, TORCH, Rows
from perfmodel.ops.spec import OPS, directions, item_bytes
from perfmodel.ops.vocabulary.matmul import MATMUL

if TYPE_CHECKING:
    import pandas as pd

MAX_US = 1e12

NEEDED = ("op", "device", "duration_us")
_TEXTS = {"dtype": "fp32", "direction": "fwd", "timing": "profiler_kernel"}


def numbers_of(frame: pd.DataFrame, *more: str) -> dict[str, Floats]:
    """The columns that are dims of an op that occurs, and those of `more` that there are.

    Raises `ModelError` that names row and column where one is not a number.
    """
    specs = [OPS[op] for op in frame["op"].unique() if op in OPS]
    dims = {name for spec in specs for name in (*spec.dims, *spec.defaults)}
    return {name: numbers_in(frame, name) for name in sorted((dims | {*more}).intersection(frame))}


@dataclass(frozen=True)
class Table:
    """A file of measurements and where it came from."""

    path: Path
    sha256: str
    frame: pd.DataFrame


CLOCK_FLOOR, LAUNCH_FLOOR = COSTS_OF_TIMING = ("clock_floor", "launch_floor")
"""Rows of the collector that are no kernels: no call at all, and the smallest call there is."""
BY_EVENTS = "event_single_call"
LAUNCHED_US = "launched_us"
"""Column: what the smallest call took on the same host, as `duration_us` is told."""


def without_timing(frame: pd.DataFrame) -> pd.DataFrame:
    """A table without what timing itself costs, which `collect kernels` measures beside.

    Its launches on a GPU hide behind other work: such rows are less what timing nothing shows, and
    have a timing of their own, since the start behind other work is in them.
    """
    is_cost = frame["op"].isin(COSTS_OF_TIMING)
    own = frame[~is_cost].reset_index(drop=True)
    by_events = frame[frame["timing"] == BY_EVENTS]
    if "cache" not in frame or not (by_events["op"] == CLOCK_FLOOR).any():
        return own
    clock_us, launch_us = (
        own["cache"].map(by_events[by_events["op"] == op].groupby("cache")["duration_us"].median())
        for op in COSTS_OF_TIMING
    )
    hidden = (own["timing"] == BY_EVENTS) & clock_us.notna()
    us = own["duration_us"] - clock_us.where(hidden, 0.0)
    timing = own["timing"].mask(hidden, BEHIND_WORK)
    taken = own.assign(timing=timing, duration_us=us, framework=TORCH)
    single = own["op"].isin(("gather", "scatter_add"))  # called with single elements
    if single.any():
        elements = numbers_of(own, "rows")["rows"] * numbers_of(own, "cols")["cols"]
        for name, value in (("rows", elements), ("cols", 1.0), ("hash_size", elements)):
            taken[name] = own[name].mask(single, value)
    taken[LAUNCHED_US] = (launch_us - clock_us).where(hidden)
    return taken[~hidden | (us > 0.0)].reset_index(drop=True)


def launched_late(frame: pd.DataFrame, known: Mapping[str, Device]) -> Mask:
    """Rows of `collect kernels` whose time is their host's: behind the flush, and a call before on
    warm caches, the device had nothing left to do before the host had made the last launch."""
    if not {"host_us", LAUNCHED_US} <= set(frame):
        return np.zeros(len(frame), bool)
    stream = {name: stream_bytes_per_us(each) for name, each in known.items()}
    flush_us = 2.0 * GPU_FLUSH_BYTES / frame["device"].map(stream)
    host_us, warm = numbers_of(frame, "host_us")["host_us"], frame["cache"] == "warm"
    ahead_us = flush_us + np.where(warm, frame["duration_us"] - host_us, 0.0)
    late = frame["duration_us"] < 1.1 * (host_us - ahead_us)
    return np.asarray(late & frame[LAUNCHED_US].notna())


def read_table(path: Path) -> Table:
    """A Parquet or CSV file in the measurement-table schema; of `collect kernels`, see
    `without_timing`.

    Raises `ModelError` that names the file, and the column or row, for what cannot be used.
    """
    content = read_bytes(path, max_bytes=MAX_TABLE_BYTES)
    try:
        frame = frame_of(content)
    except ValueError as problem:
        raise ModelError(f"{path}: cannot be read as a table: {problem}") from None
    if missing := ", ".join(name for name in NEEDED if name not in frame):
        raise ModelError(f"{path}: is not a measurement table: it has no column {missing}")
    if not len(frame):
        raise ModelError(f"{path}: the table is empty")
    try:
        kernels = without_timing(_checked(frame))
        if not len(kernels):
            raise ModelError("the table has no rows of kernels")
        return Table(path, hashlib.sha256(content).hexdigest(), kernels)
    except PerfmodelError as error:
        raise ModelError(f"{path}: {error}") from None


def _checked(frame: pd.DataFrame) -> pd.DataFrame:
    """With usual values where texts are missing; raises `ModelError` for what cannot be."""
    for column in NEEDED:
        if frame[column].isna().any():
            row = int(np.argmax(frame[column].isna().to_numpy()))
            raise ModelError(f"row {row}: {column} is missing")
    for column, usual in (_TEXTS | {"flag": ""}).items():
        if column in frame:
            frame[column] = frame[column].astype(object).fillna(usual).astype(str)
        else:
            frame[column] = usual
    frame = frame.astype({"op": str, "device": str})
    dims = numbers_of(frame, "duration_us")
    rows = Rows((), (), (), (), dims)
    for op, index in frame.groupby("op", sort=False).indices.items():
        if op in OPS:
            rows.dims_of(str(op), index)
    for dtype in sorted(set(frame["dtype"][frame["op"].isin(list(OPS))])):
        item_bytes(dtype)
    measured = dims["duration_us"]
    bad = np.flatnonzero(~((measured > 0) & (measured < MAX_US)))
    if len(bad):
        raise ModelError(
            f"row {bad[0]}: duration_us is {measured[bad[0]]:g}; "
            f"expected above 0 and below {MAX_US:g}"
        )
    for column, known in (("timing", TIMINGS), ("direction", directions())):
        unknown = sorted(set(frame[column]) - set(known))
        if unknown:
            raise ModelError(
                f"unknown {column} {unknown[0][:60]!r}; one of {', '.join(sorted(known))}"
            )
    return frame


def joined(tables: Iterable[Table]) -> pd.DataFrame:
    """The rows of all tables in one frame, `device` as its drivers name it, without those that tell
    of their host (`launched_late`). Raises `HardwareError`, naming the table, for a device that is
    not known."""
    import pandas as pd

    frames = []
    for table in tables:
        try:
            known = devices_of(table.frame["device"])
        except HardwareError as error:
            raise HardwareError(f"{table.path}: {error}") from None
        frames.append(table.frame[~launched_late(table.frame, known)])
    return pd.concat(frames, ignore_index=True)


def devices_of(names: Iterable[str]) -> dict[str, Device]:
    """The catalogue's devices by driver name; raises `HardwareError` for an unknown one."""
    return {name: hardware.device(name) for name in dict.fromkeys(names)}


def without_excluded(tables: Sequence[Table]) -> list[Table]:
    """`tables` without the rows that `excluded_rows.toml` names, by hash of the table."""
    excluded = tomllib.loads(Path(__file__).with_name("excluded_rows.toml").read_text("utf-8"))
    kept = []
    for table in tables:
        frame = table.frame
        for each in excluded["rows"]:
            if each["sha256"] == table.sha256:
                named = (frame[name] == each[name] for name in ("device", "op", "dtype"))
                frame = frame[~np.logical_and.reduce([*named])]
        kept.append(replace(table, frame=frame))
    return kept


def family_rows(frame: pd.DataFrame, family: str) -> pd.DataFrame:
    """The rows of one family, as the ops whose kernels they run (`as_kernels`); ops that the
    vocabulary lacks belong to none.

    Products in fewer bits that are no layers round nothing, as PyTorch's.
    """
    ops = {op for op in set(frame["op"]) if op in OPS and OPS[op].family == family}
    own = frame[frame["op"].isin(ops)]
    if own.empty:
        return own
    if family != MATMUL:
        return own.assign(op=as_kernels(Rows.from_frame(own)).op)
    import pandas as pd

    products = own[own["op"].isin(("mm", "bmm"))]
    rows = as_kernels(Rows.from_frame(products))
    is_layer = np.array(rows.op, object) == "linear"
    if not is_layer.any():
        return own
    layers = products[is_layer].assign(op="linear", bias=0.0)
    framework = layers.get(FRAMEWORK, layers["op"].map(lambda _: ""))
    rounds_none = layers["dtype"].isin(QUANTISED) & ~framework.isin(FRAMEWORKS)
    layers[FRAMEWORK] = framework.mask(rounds_none, TORCH)
    return pd.concat([own.drop(layers.index), layers]).sort_index()


def few_of_each(frame: pd.DataFrame, at: Ints, most: int, seed: int) -> Ints:
    """At most `most` of the rows `at` per device, op, dtype and framework, in order."""
    own = frame[["device", "op", "dtype"]].iloc[at]
    own = own.assign(framework=Rows.from_frame(frame.iloc[at]).in_framework(), at=at)
    few = own.sample(frac=1.0, random_state=seed).groupby(["device", "op", "dtype", FRAMEWORK])
    return np.sort(few.head(most)["at"].to_numpy())


def some_unnamed(frame: pd.DataFrame, seed: int) -> pd.DataFrame:
    """`frame` without the framework of half of the rows: what is asked about often has none, and
    then has the mean of all, and the spread."""
    if FRAMEWORK not in frame:
        return frame
    drawn = np.random.default_rng(seed).random(len(frame)) < 0.5
    return frame.assign(framework=frame[FRAMEWORK].mask(drawn))


KIND = ["device", "timing", "op", "dtype"]
_FLOOR_QUANTILE, _AT_FLOOR, _AT_FLOOR_FRAC, _MIN_AT_FLOOR = 0.03, 1.1, 0.12, 20
"""Of 20 calls and more, 12 % within 10 % of their third percentile are piled up there."""


def launch_floors(frame: pd.DataFrame) -> dict[str, float]:
    """Where short calls pile up, by `device/timing/op/dtype`, of timings that contain a launch;
    behind other work, what the smallest call took on the same host."""
    single = frame[frame["timing"].isin([each for each, (us, _) in TIMINGS.items() if us > 0])]
    calls = single.groupby(KIND)["duration_us"]
    floors = calls.quantile(_FLOOR_QUANTILE)
    at_most = _AT_FLOOR * calls.transform("quantile", _FLOOR_QUANTILE)
    piled = (single["duration_us"] <= at_most).groupby([single[name] for name in KIND]).mean()
    found = floors[(piled >= _AT_FLOOR_FRAC) & (calls.size() >= _MIN_AT_FLOOR)].to_dict()
    if LAUNCHED_US in frame:
        behind = frame[frame["timing"] == BEHIND_WORK].groupby(KIND)[LAUNCHED_US]
        found |= behind.median().dropna().to_dict()
    return {"/".join(key): float(us) for key, us in found.items()}


def host_floors(floors: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """By device and timing, the median over ops of `launch_floors`, per launch: what tells how long
    a call of an op must be whose own floor nothing shows."""
    found: dict[tuple[str, str], list[float]] = {}
    for key, us in floors.items():
        device, timing, op, _ = key.split("/")
        found.setdefault((device, timing), []).append(us / calls_of(op))
    return {key: float(np.median(each)) for key, each in found.items()}

"""What one device was measured by: tables, read, checked and sorted by what they hold, and the
record of the machine beside them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats, Ints
from perfmodel.base.files import read_bytes
from perfmodel.base.frames import MAX_TABLE_BYTES, frame_of, numbers_in
from perfmodel.errors import HardwareError, ModelError, PerfmodelError, UsageError
from perfmodel.hardware import Device, device
from perfmodel.ops.dtypes import item_bytes
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.movement import COLLECTIVE
from perfmodel.validate.calibrate.tables import (
    MAX_US,
    MeasuredStep,
    is_op_table,
    is_step_table,
    step_operators,
    steps_of,
)

if TYPE_CHECKING:
    import pandas as pd


def read_measurements(
    path: Path, columns: Sequence[str], error: type[PerfmodelError]
) -> tuple[pd.DataFrame, str]:
    """The table at `path` (CSV, also compressed, or Parquet) and its SHA-256.

    Raises `error`, naming the file, for what is no table, has no row, or is neither one of
    measurements (with `columns`) nor of step times.
    """
    content = read_bytes(path, max_bytes=MAX_TABLE_BYTES)
    try:
        frame = frame_of(content)
    except ValueError as problem:
        raise error(f"{path}: cannot be read as a table: {problem}") from None
    if not is_step_table(frame):
        missing = ", ".join(name for name in columns if name not in frame)
        if missing:
            raise error(f"{path}: is not a measurement table: it has no column {missing}")
    if not len(frame):
        raise error(f"{path}: the table is empty")
    return frame, hashlib.sha256(content).hexdigest()


def numbers_of(frame: pd.DataFrame, *more: str) -> dict[str, Floats]:
    """The columns that are dims of an op that occurs, and those of `more` that there are.

    Raises `ModelError` that names row and column where one is not a number.
    """
    specs = [OPS[op] for op in frame["op"].unique() if op in OPS]
    dims = {name for spec in specs for name in (*spec.dims, *spec.defaults)}
    return {name: numbers_in(frame, name) for name in sorted((dims | {*more}).intersection(frame))}


def require_dims(frame: pd.DataFrame, dims: Mapping[str, Floats]) -> None:
    """Raise `ModelError` where a row of a known op lacks a dim, or has one that cannot be."""
    rows = Rows((), (), (), (), dims)
    for op, index in frame.groupby("op", sort=False).indices.items():
        if op in OPS:
            rows.dims_of(str(op), index)
    if "dtype" in frame:
        dtypes = frame["dtype"][frame["op"].isin(list(OPS))].dropna().astype(str)
        item_bytes(sorted(dtypes.unique()))


NOT_SHAPE = frozenset(
    (
        *("cache", "duration_us", "median_us", "p90_us", "spread_frac", "repeats", "host_us"),
        *("unique_rows", "reference_compute_us", "reference_cache_us", "reference_memory_us"),
        "reference_python_us",
    )
)
VARIANTS = ("fused", "foreach")
"""Of optimizers, which no dim of the vocabulary shows either, but the CPU's physics ask for."""
OTHER_ALGORITHMS = ("index_add",)
"""Variants of an op that are another algorithm, which no dim of the vocabulary shows."""
ALONE, IN_STEP = "alone", "in step"
MIN_WEIGHT = 0.3
MIN_QUIET_FRAC = 0.7
"""Least weight, where the mean operator has 1 more; what noise leaves of a step, at the least."""


@dataclass(frozen=True)
class Source:
    """A file that was read: its name, SHA-256, rows used and rows left out."""

    name: str
    sha256: str
    rows: int
    left_out: int = 0


@dataclass(frozen=True)
class Measured:
    """Rows with what they took; `group` is what a held-out half takes or leaves as a whole."""

    rows: Rows
    duration_us: Floats
    spread_frac: Floats
    weight: Floats
    group: np.ndarray
    kind: np.ndarray

    def __len__(self) -> int:
        return len(self.group)

    def take(self, index: Ints) -> Measured:
        columns = (getattr(self, field.name)[index] for field in fields(self)[1:])
        return Measured(self.rows.take(index), *columns)

    def families(self) -> dict[str, Ints]:
        names = np.array([OPS[op].family for op in self.rows.op], object)
        return {name: np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())}


@dataclass(frozen=True)
class DeviceData:
    """All tables of one device; `device` is the name that they give it."""

    device: str
    all: Measured
    """Rows of all tables together."""
    steps: list[MeasuredStep]
    """Whole steps; the times of those of `collect ops` are freed of noise."""
    sources: list[Source]


def read_tables(paths: Sequence[Path]) -> DeviceData:
    """The tables at `paths` (CSV, also compressed, or Parquet), all of one device.

    Raises `UsageError`, one line that names file and place, for a table that cannot be used.
    """
    devices: dict[str, Path] = {}
    sums: dict[Path, pd.Series] = {}
    tables: list[Measured] = []
    step_frames: list[tuple[Path, Path, pd.DataFrame]] = []
    sources: list[Source] = []
    for path in paths:
        frame, sha256 = read_measurements(path, ("device", "op", "duration_us"), UsageError)
        names = sorted(set(frame["device"].dropna().astype(str)))
        devices = {**dict.fromkeys(names, path), **devices}
        if len(devices) > 1:
            other, one = (f"{at}: measured on {name!r}" for name, at in list(devices.items())[:2])
            raise UsageError(f"{other}, but {one}: fit one device at a time")
        run = path.with_name(path.name.split(".")[0].removesuffix("_steps"))
        rows = len(frame)
        if is_step_table(frame):
            step_frames.append((run, path, frame))
        else:
            tables.append(_measured(frame, path))
            rows = len(tables[-1])
            if is_op_table(frame):
                real = frame[frame["phase"] != "probe"]
                times = real["duration_us"] * real["count"]
                sums[run] = times.groupby(real["configuration"]).sum()
        name = f"{path.absolute().parent.name}/{path.name}"
        sources.append(Source(name, sha256, rows, len(frame) - rows))
    if not any(map(len, tables)):
        raise UsageError(f"{paths[0]}: no row of an operator that is known: nothing to fit")
    columns = [field.name for field in fields(Measured)[1:]]
    joined = (np.concatenate([getattr(each, name) for each in tables]) for name in columns)
    steps: list[MeasuredStep] = []
    for run, path, frame in step_frames:
        steps += steps_of(_without_noise(frame, sums.get(run)), str(path))
    measured = Measured(Rows.joined([each.rows for each in tables]), *joined)
    return DeviceData(next(iter(devices), ""), measured, steps, sources)


def _without_noise(frame: pd.DataFrame, sums: pd.Series | None) -> pd.DataFrame:
    """Step times as they would be if nothing else ran; `sums` are of operators' robust times.

    The 10th percentile of a sum lies above the sum of the 10th percentiles, more so the noisier
    the machine. By how much is known of the operators of metered steps, of which both were taken.
    """
    if sums is None or "ops_sum_p10_us" not in frame:
        return frame
    quiet = frame["name"].map(sums) / frame["ops_sum_p10_us"]
    quiet = quiet.clip(MIN_QUIET_FRAC, 1.0).fillna(quiet.median())
    return frame.assign(p10_us=frame["p10_us"] * quiet)


def _measured(frame: pd.DataFrame, path: Path) -> Measured:
    try:
        numbers_of(frame, "duration_us", "median_us", "count", "unique_rows")
        return (_in_step if is_op_table(frame) else _alone)(frame)
    except ModelError as error:
        raise UsageError(f"{path}: {error}") from None


def _times_of(frame: pd.DataFrame) -> tuple[Floats, Floats]:
    """Durations, microseconds, and how far their medians lie above them, as a share."""
    duration_us = frame["duration_us"].to_numpy(np.float64)
    bad = np.flatnonzero(~((duration_us > 0) & (duration_us < MAX_US)))
    if len(bad):
        value = duration_us[bad[0]]
        raise ModelError(f"row {bad[0] + 1}: duration_us is {value}; expected a time above 0")
    median_us = frame["median_us"].to_numpy(np.float64) if "median_us" in frame else duration_us
    return duration_us, np.nan_to_num(median_us / duration_us - 1)


def _alone(frame: pd.DataFrame) -> Measured:
    """Rows of ops called alone; of no op of the vocabulary, or another algorithm, left out."""
    duration_us, spread_frac = _times_of(frame)
    known = frame["op"].isin(list(OPS)).to_numpy()
    if "variant" in frame:
        known = known & ~frame["variant"].isin(OTHER_ALGORITHMS).to_numpy()
    frame = frame[known].reset_index(drop=True)
    of_collective = frame["op"].map(lambda op: OPS[op].family == COLLECTIVE).to_numpy(bool)
    if "elements" in frame and of_collective.any():  # models of collectives take bytes
        size = np.array(frame.get("size_bytes", np.nan), np.float64) + np.zeros(len(frame))
        unknown = of_collective & np.isnan(size)
        item = item_bytes(frame["dtype"][unknown].astype(str).tolist())
        size[unknown] = frame["elements"].to_numpy(np.float64)[unknown] * item
        frame = frame.assign(size_bytes=size)
    require_dims(frame, numbers_of(frame))
    rows = Rows.from_frame(frame)
    if "variant" in frame:
        marks = {name: (frame["variant"] == name).to_numpy(np.float64) for name in VARIANTS}
        rows = replace(rows, dims={**rows.dims, **marks})
    texts = [frame[name].map(str).tolist() for name in frame.columns if name not in NOT_SHAPE]
    return Measured(
        rows,
        duration_us[known],
        spread_frac[known],
        np.ones(len(frame)),
        np.array(list(map("|".join, zip(*texts, strict=True))), object),
        np.full(len(frame), ALONE, object),
    )


def _in_step(frame: pd.DataFrame) -> Measured:
    """Operators of real steps; a row weighs as much as it takes of its step, but never nothing."""
    _times_of(frame[frame["phase"] != "probe"])
    rows, part = step_operators(frame)
    duration_us, spread_frac = _times_of(part)
    total_us = part["duration_us"] * part["count"]
    usual_us = total_us.groupby(part["configuration"]).transform("mean")
    return Measured(
        rows,
        duration_us,
        spread_frac,
        (MIN_WEIGHT + total_us / usual_us).to_numpy(np.float64),
        part["configuration"].to_numpy(object),
        np.full(len(part), IN_STEP, object),
    )


MAX_RECORD_BYTES = 10_000_000
_FLOP_PER_CLOCK = {"avx512f": 64.0, "avx2": 32.0, "neon": 16.0}
"""Two multiply-adds per clock of the vector width (makers' optimisation manuals, recalled)."""
_USUAL_FLOP_PER_CLOCK = 16.0
_ASSUMED_GB_PER_S_PER_CORE = 12.0
_ASSUMED_W_PER_CORE = 5.0
_ASSUMED_MHZ = 2500.0
"""Where a record says nothing."""


_Count = Annotated[int, msgspec.Meta(ge=1, le=10**6)]
_Bytes = Annotated[int, msgspec.Meta(ge=1, le=10**15)]


class _Cpu(msgspec.Struct):
    usable_cpus: _Count | None = None
    cache_bytes: dict[str, _Bytes] = {}
    clock_mhz: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = None
    memory_bytes: _Bytes | None = None
    vector: list[str] = []


class _Machine(msgspec.Struct):
    """What of a record says what a CPU is."""

    cpu: _Cpu | None = None
    gpu: Any = None
    intra_op_threads: _Count | None = None
    date: str = "undated"

    @property
    def cores(self) -> int:
        """The threads that were measured, or those that there are; 0: not said."""
        return self.intra_op_threads or (self.cpu and self.cpu.usable_cpus) or 0

    def __post_init__(self) -> None:
        if self.cpu and not self.cores:
            raise ValueError("neither intra_op_threads nor usable_cpus")


class _Record(msgspec.Struct):
    machine: _Machine


def base_device(name: str, tables: Sequence[Path], given: str | None, stem: str) -> Device:
    """The device to fit: `given` by name or file, else as the collector's record beside the first
    of `tables` that has one describes it.

    A GPU is looked up in the catalogue by its driver's `name`. Raises `UsageError`.
    """
    if given:
        return device(given)
    stems = (table.name.split(".")[0].removesuffix("_steps") for table in tables)
    paths = (at.with_name(f"{each}_meta.json") for at, each in zip(tables, stems, strict=True))
    record = next((path for path in paths if path.is_file()), None)
    if record is not None:
        content = read_bytes(record, max_bytes=MAX_RECORD_BYTES)
        try:
            machine = msgspec.json.decode(content, type=_Record, strict=False).machine
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"{record}: not a record of the collector: {error}") from None
        if machine.gpu is None and machine.cpu is not None:
            return _cpu(name, machine, machine.cpu, stem)
    try:
        return device(name)
    except HardwareError as error:
        raise UsageError(
            f"{tables[0]}: no record of the machine in its folder ({error}): name a similar "
            "device with --hardware"
        ) from None


def _cpu(name: str, record: _Machine, cpu: _Cpu, stem: str) -> Device:
    measured = f"the collector's record, {record.date}"
    cores, mhz = record.cores, cpu.clock_mhz or _ASSUMED_MHZ
    vectors = [rate for flag, rate in _FLOP_PER_CLOCK.items() if flag in cpu.vector]
    per_clock = max(vectors, default=_USUAL_FLOP_PER_CLOCK)
    figures: dict[str, tuple[Any, str]] = {
        "sm_count": (cores, f"{measured}: intra-op threads"),
        "boost_mhz": (mhz, measured),
        "tdp_w": (_ASSUMED_W_PER_CORE * cores, "assumed: 5 W a core"),
        "hbm_bytes": (cpu.memory_bytes or 8 * 2**30, measured),
        "hbm_gb_per_s": (_ASSUMED_GB_PER_S_PER_CORE * cores, "assumed: 12 GB/s a core"),
        "l2_bytes": (cpu.cache_bytes.get("L2", 2**20) * cores, f"{measured}: of each core"),
        "llc_bytes": (cpu.cache_bytes.get("L3", 8 * 2**20), measured),
        "fp32_tflop_per_s": (
            cores * mhz * per_clock / 1e6,
            f"{cores} threads x {mhz:.0f} MHz x {per_clock:.0f} per clock",
        ),
        "kernel_floor_us": (1.0, "assumed: an operator that does next to nothing"),
    }
    sources = MappingProxyType({key: text for key, (_, text) in figures.items()})
    values = {key: value for key, (value, _) in figures.items()}
    return Device(name=stem, target="cpu", aliases=(name,), sources=sources, **values)

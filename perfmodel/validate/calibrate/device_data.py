"""Measurement tables for the calibration of one device: read, checked, sorted by what they hold."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.arrays import Floats, Ints
from perfmodel.base.files import read_bytes
from perfmodel.base.frames import MAX_TABLE_BYTES, frame_of, numbers_in, require_all_rows
from perfmodel.collect.records import REFERENCE_COLUMNS
from perfmodel.errors import ModelError, PerfmodelError, UsageError
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
        require_all_rows(path, frame)
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
        *("unique_rows", *REFERENCE_COLUMNS),
    )
)
VARIANTS = ("fused", "foreach")
"""Of optimizers, which no dim of the vocabulary shows either, but the CPU's physics ask for."""
OTHER_ALGORITHMS = ("index_add",)
"""Variants of an op that are another algorithm, which no dim of the vocabulary shows."""
ALONE, IN_STEP = "alone", "in step"
MIN_WEIGHT = 0.3
MIN_QUIET_FRAC = 0.7


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
        """The rows at `index`."""
        columns = (getattr(self, field.name)[index] for field in fields(self)[1:])
        return Measured(self.rows.take(index), *columns)

    def families(self) -> dict[str, Ints]:
        """The rows of each family."""
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

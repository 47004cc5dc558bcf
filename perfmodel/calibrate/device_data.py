"""Measurement tables for the calibration of one device: read, checked, sorted by what they hold."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.calibrate.tables import is_op_table, readings_of, step_operators
from perfmodel.collect.records import REFERENCE_COLUMNS
from perfmodel.errors import ModelError, UsageError
from perfmodel.files import read_bytes
from perfmodel.frames import MAX_TABLE_BYTES, frame_of, numbers_in, require_all_rows
from perfmodel.ops.dtypes import item_bytes
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.movement import COLLECTIVE

if TYPE_CHECKING:
    import pandas as pd


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


STEP_COLUMNS = ("name", "tables", "rows_per_table", "dim", "pooling", "p10_us", "bottom_mlp")
NOT_SHAPE = frozenset(
    (
        *("cache", "duration_us", "median_us", "p90_us", "spread_frac", "repeats", "host_us"),
        *REFERENCE_COLUMNS,
    )
)
VARIANTS = ("fused", "foreach")
"""Of optimizers, which no dim of the vocabulary shows either, but the CPU's physics ask for."""
OTHER_ALGORITHMS = ("index_add",)
"""Variants of an op that are another algorithm, which no dim of the vocabulary shows."""
ALONE, IN_STEP = "alone", "in step"


@dataclass(frozen=True)
class Source:
    """A file that was read: its name, SHA-256, rows used and rows left out."""

    name: str
    sha256: str
    rows: int
    left_out: int = 0


@dataclass(frozen=True)
class Measured:
    """Rows with what they took; `group` is what a held-out half takes or leaves as a whole.

    `reference_us` is what the parts of the reference work took beside each row, or nan.
    """

    rows: Rows
    duration_us: Floats
    spread_frac: Floats
    weight: Floats
    group: tuple[str, ...]
    kind: tuple[str, ...]
    reference_us: Floats

    def __len__(self) -> int:
        return len(self.group)

    def take(self, index: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Measured:
        """The rows at `index`."""
        numbers = index.tolist()
        return Measured(
            self.rows.take(index),
            self.duration_us[index],
            self.spread_frac[index],
            self.weight[index],
            tuple(self.group[i] for i in numbers),
            tuple(self.kind[i] for i in numbers),
            self.reference_us[index],
        )

    def families(self) -> dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]]:
        """The rows of each family."""
        names = np.array([OPS[op].family for op in self.rows.op], object)
        return {name: np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())}


@dataclass
class DeviceData:
    """All tables of one device; `device` is the name that they give it."""

    device: str = ""
    measured: list[Measured] = field(default_factory=list)
    steps: list[pd.DataFrame] = field(default_factory=list)
    """Tables of whole steps; `p10_us` of those beside a table of operators is freed of noise."""
    sources: list[Source] = field(default_factory=list)
    measured_runs: list[Path] = field(default_factory=list)
    step_runs: list[Path] = field(default_factory=list)
    """Of each table of `measured` and of `steps`, the run of the collector that it is of."""

    @property
    def all(self) -> Measured:
        """Rows of all tables together."""
        return joined(self.measured)


def read_tables(paths: Sequence[Path], only: str | None = None) -> DeviceData:
    """The tables at `paths` (CSV, also compressed, or Parquet), all of one device.

    `only` takes the rows of the device that the tables give this name, out of several.
    Raises `UsageError`, one line that names file and place, for a table that cannot be used.
    """
    tables = DeviceData()
    devices: dict[str, Path] = {}
    sums: dict[Path, pd.Series] = {}
    for path in paths:
        data, frame = _frame(path)
        if only is not None:
            frame = _of_device(frame, only, path)
        for name in sorted(set(frame["device"].dropna().astype(str))):
            devices.setdefault(name, path)
        if len(devices) > 1:
            (first, one), (second, other) = list(devices.items())[:2]
            raise UsageError(
                f"{other}: measured on {second!r}, but {one} on {first!r}: choose one with --device"
            )
        rows = 0
        if set(STEP_COLUMNS) <= set(frame.columns):
            _require_times(frame, "p10_us", path)
            tables.steps.append(frame)
            tables.step_runs.append(_stem(path))
            rows = len(frame)
        else:
            if is_op_table(frame):
                sums[_stem(path)] = _sums_of_operators(frame)
                measured = _in_step(frame, path)
            else:
                measured = _alone(frame, path)
            tables.measured.append(measured)
            tables.measured_runs.append(_stem(path))
            rows = len(measured)
        digest = hashlib.sha256(data).hexdigest()
        name = f"{path.absolute().parent.name}/{path.name}"
        tables.sources.append(Source(name, digest, rows, len(frame) - rows))
    tables.device = next(iter(devices), "")
    tables.steps = [
        _without_noise(frame, sums.get(run))
        for frame, run in zip(tables.steps, tables.step_runs, strict=True)
    ]
    if not tables.measured or not any(len(it) for it in tables.measured):
        raise UsageError(f"{paths[0]}: no row of an operator that is known: nothing to fit")
    return tables


def joined(parts: Sequence[Measured]) -> Measured:
    """Several tables as one."""
    arrays = ("duration_us", "spread_frac", "weight", "reference_us")
    return Measured(
        rows=Rows.joined([part.rows for part in parts]),
        group=tuple(group for part in parts for group in part.group),
        kind=tuple(kind for part in parts for kind in part.kind),
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in arrays},
    )


def _of_device(frame: pd.DataFrame, only: str, path: Path) -> pd.DataFrame:
    rows = frame[frame["device"] == only].reset_index(drop=True)
    if not len(rows):
        named = ", ".join(sorted(set(frame["device"].dropna().astype(str)))[:8])
        raise UsageError(f"{path}: has no row of the device {only!r}; there are: {named}")
    return rows


def _stem(path: Path) -> Path:
    """What the tables of one run of `collect ops` have in common."""
    return path.with_name(path.name.split(".")[0].removesuffix("_steps"))


def _sums_of_operators(frame: pd.DataFrame) -> pd.Series:
    """Per configuration, the sum of its operators' robust times."""
    real = frame[frame["phase"] != "probe"]
    return (real["duration_us"] * real["count"]).groupby(real["configuration"]).sum()


def _without_noise(frame: pd.DataFrame, sums: pd.Series | None) -> pd.DataFrame:
    """Step times as they would be if nothing else ran.

    The 10th percentile of a sum lies above the sum of the 10th percentiles, more so the noisier
    the machine. By how much is known of the operators of metered steps, of which both were taken.
    """
    if sums is None or "ops_sum_p10_us" not in frame:
        return frame
    quiet = frame["name"].map(sums) / frame["ops_sum_p10_us"]
    quiet = quiet.clip(MIN_QUIET_FRAC, 1.0).fillna(quiet.median())
    return frame.assign(p10_us=frame["p10_us"] * quiet, **{RAW: frame["p10_us"]})


MIN_QUIET_FRAC = 0.7
RAW = "raw_p10_us"
"""The column of step times as they were measured, where they have been freed of noise."""


def _frame(path: Path) -> tuple[bytes, pd.DataFrame]:
    data = read_bytes(path, max_bytes=MAX_TABLE_BYTES)
    try:
        frame = frame_of(data, max_bytes=MAX_TABLE_BYTES)
        require_all_rows(path, frame)
    except ValueError as error:
        raise UsageError(f"{path}: cannot be read as a table: {error}") from None
    if not len(frame):
        raise UsageError(f"{path}: the table is empty")
    wanted = {"device", "op", "duration_us"}
    if not wanted <= set(frame.columns) and not set(STEP_COLUMNS) <= set(frame.columns):
        missing = ", ".join(sorted(wanted - set(frame.columns)))
        raise UsageError(f"{path}: is not a measurement table: it has no column {missing}")
    if "op" in frame:
        try:
            numbers_of(frame, "duration_us", "median_us", "count", "unique_rows")
        except ModelError as error:
            raise UsageError(f"{path}: {error}") from None
    return data, frame


def _require_times(frame: pd.DataFrame, column: str, path: Path) -> None:
    import pandas as pd

    times = pd.to_numeric(frame[column], errors="coerce").to_numpy(np.float64)
    bad = np.flatnonzero(~(np.isfinite(times) & (times > 0)))
    if len(bad):
        raise UsageError(
            f"{path}: row {bad[0] + 1}: {column} is {frame[column].iloc[bad[0]]}; "
            "expected a time above 0"
        )


def _alone(frame: pd.DataFrame, path: Path) -> Measured:
    """Rows of ops called alone; of no op of the vocabulary, or another algorithm, left out."""
    _require_times(frame, "duration_us", path)
    known = frame["op"].isin(list(OPS)).to_numpy()
    if "variant" in frame:
        known = known & ~frame["variant"].isin(OTHER_ALGORITHMS).to_numpy()
    readings = readings_of(frame, str(path))[known]
    frame = _with_message_sizes(frame[known].reset_index(drop=True))
    try:
        require_dims(frame, numbers_of(frame))
    except ModelError as error:
        raise UsageError(f"{path}: {error}") from None
    rows = Rows.from_frame(frame)
    if "variant" in frame:
        marks = {name: (frame["variant"] == name).to_numpy(np.float64) for name in VARIANTS}
        rows = replace(rows, dims={**rows.dims, **marks})
    duration = frame["duration_us"].to_numpy(np.float64)
    median = frame["median_us"].to_numpy(np.float64) if "median_us" in frame else duration
    shape = [column for column in frame.columns if column not in NOT_SHAPE | {"unique_rows"}]
    texts = [frame[column].map(str).tolist() for column in shape]
    return Measured(
        rows,
        duration,
        np.nan_to_num(median / duration - 1),
        np.ones(len(frame)),
        tuple(map("|".join, zip(*texts, strict=True))),
        (ALONE,) * len(frame),
        readings,
    )


def _with_message_sizes(frame: pd.DataFrame) -> pd.DataFrame:
    """Collectives whose table states elements, with `size_bytes` as well."""
    of_collective = frame["op"].map(lambda op: OPS[op].family == COLLECTIVE).to_numpy(bool)
    if "elements" not in frame or not of_collective.any():
        return frame
    recorded = frame["size_bytes"] if "size_bytes" in frame else np.full(len(frame), np.nan)
    size = np.array(recorded, np.float64)
    unknown = of_collective & np.isnan(size)
    item = item_bytes(frame["dtype"][unknown].astype(str).tolist())
    size[unknown] = frame["elements"].to_numpy(np.float64)[unknown] * item
    return frame.assign(size_bytes=size)


def _in_step(frame: pd.DataFrame, path: Path) -> Measured:
    """Operators of real steps; a row weighs as much as it takes of its step, but never nothing."""
    probes = frame["phase"] == "probe"
    _require_times(frame[~probes].reset_index(drop=True), "duration_us", path)
    try:
        rows, part = step_operators(frame.reset_index(drop=True))
    except ModelError as error:
        raise UsageError(f"{path}: {error}") from None
    duration_us = part["duration_us"].to_numpy(np.float64)
    median_us = part["median_us"].to_numpy(np.float64) if "median_us" in part else duration_us
    total_us = part["duration_us"] * part["count"]
    usual_us = total_us.groupby(part["configuration"]).transform("mean")
    return Measured(
        rows,
        duration_us,
        median_us / duration_us - 1,
        (MIN_WEIGHT + total_us / usual_us).to_numpy(np.float64),
        tuple(part["configuration"]),
        (IN_STEP,) * len(part),
        readings_of(frame, str(path))[part.index],
    )


MIN_WEIGHT = 0.3

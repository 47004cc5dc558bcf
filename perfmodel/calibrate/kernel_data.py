"""Measurement tables for fitting: read, checked, thinned; errors of predictions on them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel import hardware
from perfmodel.arrays import Floats
from perfmodel.calibrate.device_data import numbers_of, require_dims
from perfmodel.cost.gpu.heuristic import BEHIND_WORK, TIMINGS, Floor
from perfmodel.cost.gpu.matmul import QUANTISED
from perfmodel.cost.learned.part import SAME_KERNELS
from perfmodel.errors import HardwareError, ModelError, PerfmodelError
from perfmodel.files import read_bytes
from perfmodel.frames import MAX_TABLE_BYTES, frame_of, require_all_rows
from perfmodel.hardware import Device
from perfmodel.ops.rows import FRAMEWORK, FRAMEWORKS, TORCH, Rows
from perfmodel.ops.spec import OPS, directions

if TYPE_CHECKING:
    import pandas as pd


DECIMALS = 4
MAX_US = 1e12
GMAE_OFFSET = 4e-4
"""Keeps single exact rows from deciding a geometric mean. Source: Lin et al. 2022."""


@dataclass(frozen=True)
class KernelErrors:
    """Errors of `n` rows of one op, device and dtype; percents of what was measured.

    `gmae_pct` is the geometric mean of absolute errors, `median_pct` their median, `bias_pct` the
    mean error with its sign; `coverage_frac` the share of rows within their 90 % interval, and
    `width_frac` the mean width of the intervals over the prediction.
    """

    op: str
    device: str
    dtype: str
    n: int
    mape_pct: float
    gmae_pct: float
    median_pct: float
    bias_pct: float
    coverage_frac: float
    width_frac: float


def errors_of(
    what: tuple[str, str, str], measured_us: Floats, predicted_us: Floats, low: Floats, high: Floats
) -> KernelErrors:
    """Errors of one group `what` (op, device, dtype); all arrays `[n]` in microseconds."""
    error = predicted_us / measured_us - 1.0
    size = np.abs(error)
    op, device, dtype = what
    inside = (low <= measured_us) & (measured_us <= high)
    figures = (
        mape_pct(measured_us, predicted_us),
        100.0 * np.exp(np.log(size + GMAE_OFFSET).mean()),
        100.0 * np.median(size),
        100.0 * error.mean(),
        inside.mean(),
        ((high - low) / predicted_us).mean(),
    )
    return KernelErrors(
        op, device, dtype, len(error), *(round(float(figure), DECIMALS) for figure in figures)
    )


def mape_pct(measured_us: Floats, predicted_us: Floats) -> float:
    """The mean absolute error in percent of what was measured; both `[n]`."""
    from sklearn.metrics import mean_absolute_percentage_error

    return float(100.0 * mean_absolute_percentage_error(measured_us, predicted_us))


NEEDED = ("op", "device", "duration_us")
_TEXTS = {"dtype": "fp32", "direction": "fwd", "timing": "profiler_kernel"}
_SINGLE_CALL = "event_single_call"
_HOST_TIMINGS = (_SINGLE_CALL, "event_loop_eager", "host_wall_sync", "host_loop_mean")
_FLOOR_QUANTILE = 0.03
_OFFSET_FRAC = 0.45
"""Of the floor of `event_single_call`, what a long kernel shows beside itself: the launch, of
which the host's part runs before the kernel starts. Source: intercepts of long elementwise ops."""
_AT_FLOOR, _AT_FLOOR_FRAC = 1.1, 0.12
"""Short kernels pile up at a floor: so many of the rows take at most a tenth longer."""
_NEAR_FLOOR = 3.0
"""Ops of several launches have floors of up to so many times those that others pile up at."""
_FEWEST = 20
_FEWEST_HOSTS = 3
_FLAG_WEIGHT = 0.2
_CLEAR_FROM = 1.25
_CLEAR = 8.0
"""Times above its floor from which a row says all that it can of its kernel."""


@dataclass(frozen=True)
class Table:
    """A file of measurements and where it came from."""

    path: Path
    sha256: str
    frame: pd.DataFrame


CLOCK_FLOOR = "clock_floor"
COSTS_OF_TIMING = (CLOCK_FLOOR, "launch_floor")
"""Rows of the collector that are no kernels: no call at all, and the smallest call there is."""
BY_EVENTS = "event_single_call"


def without_timing(frame: pd.DataFrame) -> pd.DataFrame:
    """A table without what timing itself costs, which `collect kernels` measures beside.

    Its launches on a GPU hide behind other work: such rows are less what timing nothing shows, and
    have a timing of their own, since the start behind other work is in them.
    """
    is_cost = frame["op"].isin(COSTS_OF_TIMING)
    own = frame[~is_cost].reset_index(drop=True)
    is_clock = (frame["op"] == CLOCK_FLOOR) & (frame["timing"] == BY_EVENTS)
    if not is_clock.any() or "cache" not in frame:
        return own
    floor_us = frame[is_clock].groupby("cache")["duration_us"].median()
    hidden = (own["timing"] == BY_EVENTS) & own["cache"].isin(floor_us.index)
    us = own["duration_us"] - np.where(hidden, own["cache"].map(floor_us).fillna(0.0), 0.0)
    timing = own["timing"].mask(hidden, BEHIND_WORK)
    taken = own.assign(timing=timing, duration_us=us, framework=TORCH)
    return taken[~hidden | (us > 0.0)].reset_index(drop=True)


def read_table(path: Path) -> Table:
    """A Parquet or CSV file in the measurement-table schema; of `collect kernels`, see
    `without_timing`.

    Raises `ModelError` that names the file, and the column or row, for what cannot be used.
    """
    path = Path(path)
    content = read_bytes(path, max_bytes=MAX_TABLE_BYTES)
    digest = hashlib.sha256(content).hexdigest()
    try:
        frame = frame_of(content)
        require_all_rows(path, frame)
    except ValueError as error:
        raise ModelError(f"{path}: cannot be read as a table: {error}") from None
    for column in NEEDED:
        if column not in frame:
            raise ModelError(f"{path}: no column {column!r}; not a measurement table")
        if frame[column].isna().any():
            row = int(np.argmax(frame[column].isna().to_numpy()))
            raise ModelError(f"{path}: row {row}: {column} is missing")
    if not len(frame):
        raise ModelError(f"{path}: the table has no rows")
    for column, usual in _TEXTS.items():
        frame[column] = (
            frame[column].astype(object).fillna(usual).astype(str) if column in frame else usual
        )
    frame["op"] = frame["op"].astype(str)
    frame["device"] = frame["device"].astype(str)
    frame["flag"] = frame["flag"].fillna("").astype(str) if "flag" in frame else ""
    try:
        dims = numbers_of(frame, "duration_us")
        require_dims(frame, dims)
    except PerfmodelError as error:
        raise ModelError(f"{path}: {error}") from None
    measured = dims["duration_us"]
    bad = np.flatnonzero(~((measured > 0) & (measured < MAX_US)))
    if len(bad):
        raise ModelError(
            f"{path}: row {bad[0]}: duration_us is {measured[bad[0]]:g}; "
            f"expected above 0 and below {MAX_US:g}"
        )
    for column, known in (("timing", TIMINGS), ("direction", directions())):
        unknown = sorted(set(frame[column]) - set(known))
        if unknown:
            raise ModelError(
                f"{path}: unknown {column} {unknown[0][:60]!r}; one of {', '.join(sorted(known))}"
            )
    kernels = without_timing(frame)
    if not len(kernels):
        raise ModelError(f"{path}: the table has no rows of kernels")
    return Table(path, digest, kernels)


def joined(tables: Iterable[Table]) -> pd.DataFrame:
    """The rows of all tables in one frame, `device` as its drivers name it. Raises `HardwareError`,
    naming the table, for a device that is not known."""
    import pandas as pd

    frames = []
    for table in tables:
        try:
            devices_of(table.frame["device"])
        except HardwareError as error:
            raise HardwareError(f"{table.path}: {error}") from None
        frames.append(table.frame)
    return pd.concat(frames, ignore_index=True)


def devices_of(names: Iterable[str]) -> dict[str, Device]:
    """The catalogue's devices by driver name; raises `HardwareError` for an unknown one."""
    return {name: hardware.device(name) for name in dict.fromkeys(names)}


def family_rows(frame: pd.DataFrame, family: str) -> pd.DataFrame:
    """The rows of one family, as the ops whose kernels they run; ops that the vocabulary lacks
    belong to none."""
    ops = {op for op in set(frame["op"]) if op in OPS and OPS[op].family == family}
    own = frame[frame["op"].isin(ops)]
    for op, (like, dims) in SAME_KERNELS.items():
        is_op = own["op"] == op
        if is_op.any():
            nothing = is_op.astype(object).where(is_op, np.nan)
            given = {
                name: own.get(name, nothing).astype(object).mask(is_op, value)
                for name, value in dims.items()
            }
            own = own.assign(op=own["op"].mask(is_op, like), **given)
    return _alone(own)


def _alone(frame: pd.DataFrame) -> pd.DataFrame:
    """Benchmarks' products in fewer bits, batches of one, as PyTorch's: layers that round nothing.
    A serving library's stay its own.

    In other dtypes they stay apart: of the same chips layers were measured by another benchmark,
    and learned together, large fp32 layers kept from the fit are 11 % off on P100, not 7.
    """
    if not {"b", "dtype"} <= set(frame):
        return frame
    is_alone = (frame["op"] == "bmm") & (frame["b"] == 1.0) & frame["dtype"].isin(QUANTISED)
    framework = frame.get(FRAMEWORK, is_alone.map(lambda _: ""))
    is_alone &= ~framework.isin(FRAMEWORKS)
    if not is_alone.any():
        return frame
    bias = frame.get("bias", is_alone.astype(object).where(is_alone, np.nan)).astype(object)
    return frame.assign(
        op=frame["op"].mask(is_alone, "linear"),
        bias=bias.mask(is_alone, 0.0),
        **{FRAMEWORK: framework.mask(is_alone, TORCH)},
    )


def _framework_of(frame: pd.DataFrame) -> Floats:
    """`[n]`: the place of each row's framework from 1 on; others, and none, are alike."""
    return Rows.from_frame(frame).in_framework()


def thinned(frame: pd.DataFrame, most: int, seed: int) -> pd.DataFrame:
    """At most `most` rows per device, op and dtype, as many of each framework as there are, drawn
    evenly over sizes, in file order."""
    import pandas as pd

    parts = []
    for _, group in frame.groupby(["device", "op", "dtype"], sort=True):
        left = most
        kinds = [own for _, own in group.groupby(_framework_of(group), sort=True)]
        for place, own in enumerate(sorted(kinds, key=len)):
            count = left // (len(kinds) - place)
            if len(own) > count:
                generator = np.random.default_rng(seed)
                own = own.iloc[np.sort(generator.choice(len(own), count, replace=False))]
            left -= len(own)
            parts.append(own)
    return pd.concat(parts).sort_index()


_UNNAMED_FRAC = 0.5


def some_unnamed(frame: pd.DataFrame, seed: int) -> pd.DataFrame:
    """`frame` without the framework of half of the rows: what is asked about often has none, and
    then has the mean of all, and the spread."""
    if FRAMEWORK not in frame:
        return frame
    drawn = np.random.default_rng(seed).random(len(frame)) < _UNNAMED_FRAC
    return frame.assign(framework=frame[FRAMEWORK].mask(drawn))


FloorKey = tuple[str, str, str, str]
"""Device, timing, op, dtype."""


def fitted_floors(frame: pd.DataFrame) -> dict[FloorKey, Floor]:
    """The floor of every group whose timing contains the host's work, and that was measured down to
    it: short kernels pile up there, or nearly reach what other ops pile up at on that host. The
    shortest of large kernels are no floor: there it is what other hosts let expect of this one."""
    host = frame[frame["timing"].isin(_HOST_TIMINGS)]
    lowest: dict[FloorKey, float] = {}
    shortest: dict[FloorKey, float] = {}
    piled: dict[tuple[str, str], float] = {}
    for key, group in host.groupby(["device", "timing", "op", "dtype"], sort=True):
        if len(group) < _FEWEST:
            continue
        shortest[key] = float(group["duration_us"].min())
        lowest[key] = floor = float(group["duration_us"].quantile(_FLOOR_QUANTILE))
        if (group["duration_us"] <= _AT_FLOOR * floor).mean() >= _AT_FLOOR_FRAC:
            piled[key[:2]] = max(floor, piled.get(key[:2], 0.0))
    least = {
        key: floor
        for key, floor in lowest.items()
        if floor <= _NEAR_FLOOR * piled.get(key[:2], 0.0)
    }
    least |= _expected_floors(least, shortest)
    floors = {}
    for key, floor in least.items():
        offset = _OFFSET_FRAC * floor if key[1] == _SINGLE_CALL else TIMINGS[key[1]].offset_us
        floors[key] = Floor(floor, min(offset, 0.9 * floor))
    return floors


def _expected_floors(
    known: Mapping[FloorKey, float], shortest: Mapping[FloorKey, float]
) -> dict[FloorKey, float]:
    """Floors of single calls, of the keys of `shortest` that are not `known`: the median of the
    hosts' for the op, times how the host compares with them. A host of which no floor is known is
    taken to be as the others, or as much faster as the shortest call of any op says.

    Source: on six hosts the floors of 15 ops are one figure per host times one per op, within a
    few percent (0.64, 0.99, 1.0, 1.0, 1.2 and 1.7 of the median host; tables of
    sitar-lab/NeuSight@6945927d).
    """
    of_op: dict[tuple[str, str], list[float]] = {}
    for (_, timing, *kind), floor in known.items():
        if timing == _SINGLE_CALL:
            of_op.setdefault((kind[0], kind[1]), []).append(floor)
    usual = {
        kind: float(np.median(floors))
        for kind, floors in of_op.items()
        if len(floors) >= _FEWEST_HOSTS
    }

    def ratios(device: str, floors: Mapping[FloorKey, float]) -> list[float]:
        return [
            floor / usual[op, dtype]
            for (host, timing, op, dtype), floor in floors.items()
            if host == device and timing == _SINGLE_CALL and (op, dtype) in usual
        ]

    expected = {}
    for device, timing, op, dtype in sorted(shortest.keys() - known.keys()):
        if timing == _SINGLE_CALL and (op, dtype) in usual:
            own = ratios(device, known)
            scale = float(np.median(own)) if own else min(1.0, *ratios(device, shortest))
            expected[device, timing, op, dtype] = scale * usual[op, dtype]
    return expected


def floor_columns(frame: pd.DataFrame, floors: dict[FloorKey, Floor]) -> tuple[Floats, Floats]:
    """(floor_us, offset_us) per row; typical ones where none was fitted."""
    keys = list(zip(frame["device"], frame["timing"], frame["op"], frame["dtype"], strict=True))
    known = {key: floors.get(key, TIMINGS[key[1]]) for key in set(keys)}
    pairs = np.array([(known[key].floor_us, known[key].offset_us) for key in keys], np.float64)
    return pairs[:, 0], pairs[:, 1]


def above_launch_floors(frame: pd.DataFrame, floors: dict[FloorKey, Floor]) -> pd.DataFrame:
    """The rows long enough to tell of their kernel, and not only of the host that launched it."""
    floor_us, _ = floor_columns(frame, floors)
    return frame[frame["duration_us"].to_numpy(np.float64) > _CLEAR_FROM * floor_us]


def told_of(measured_us: Floats, floor_us: Floats) -> Floats:
    """Per row, how much it tells of its kernel: little near its floor, and all far above."""
    told = (measured_us / np.maximum(floor_us, 1e-9) - 1.05) / _CLEAR
    return np.asarray(np.clip(told, 0.01, 1.0))


def weights(frame: pd.DataFrame, told: Floats, work: Floats, small_weight: float = 1.0) -> Floats:
    """Per row: little where it is flagged, small or `told` of little; groups weigh more alike.

    `small_weight` is that of the least `work` of a device's op against the most: what is asked
    about is larger than what is measured.
    """
    flagged = np.where(frame["flag"].to_numpy() != "", _FLAG_WEIGHT, 1.0)
    kind = ["device", "op", "dtype", _framework_of(frame)]
    groups = frame.groupby(kind, sort=False).ngroup().to_numpy()
    size = np.bincount(groups)
    order = np.lexsort((work, groups))
    starts = np.cumsum(size) - size
    rank = np.empty(len(work))
    rank[order] = (np.arange(len(work)) - starts[groups[order]]) / size[groups[order]]
    weight = (
        told * flagged * (small_weight + (1.0 - small_weight) * rank**2) / np.sqrt(size[groups])
    )
    return np.asarray(weight / weight.mean())


def provenance(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """What is said of the data in a manifest: files, hashes, rows, and unknown columns' values."""
    sources = []
    for table in tables:
        said: dict[str, Any] = {
            "file": table.path.name,
            "sha256": table.sha256,
            "rows": len(table.frame),
        }
        for column in ("framework", "library_version", "sweep", "flag", "source", "system"):
            if column in table.frame:
                counts = table.frame[column].astype(str).value_counts().head(12)
                said[column] = {str(name): int(count) for name, count in counts.items()}
        sources.append(said)
    return sources

"""Kernel models on devices that their fit has not seen: errors and intervals, beside less.

`python -m benchmarks.left_out_devices [--part NAME ...] [--rows N] [--asked N]` leaves each device
of the measurement tables (under PERFMODEL_REFERENCE) out of the fit of each part and predicts its
rows. It prints, per op, dtype and device: the nearest device left, median and 90th percentile of
the absolute error, the share of rows inside the 90 % interval; then the median errors of what a
user could do without the package: physics alone, plain boosted trees (dims, dtype, framework and
features of the device), the nearest shape on the most similar measured device times the ratio of
rooflines. The last lines say in how
many cells the package is at least as good as the best of those three, in which it is twice as bad,
and in how many, finer ones and those of a device and a family, the intervals hold 80 to 97 %. With
300 rows per device, op and dtype it takes about 20 minutes.

`--half` gives a random half of the shapes of each device and predicts the other half, and names the
cells in which the package is more than 1.5 times as far off as plain boosted trees.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.spatial import cKDTree
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder

from benchmarks import serving_tables
from perfmodel.cost.contract import Estimate
from perfmodel.cost.learned.features import COLUMNS, FEATURES, describe, distance
from perfmodel.cost.learned.model import Learned
from perfmodel.cost.learned.store import models_of
from perfmodel.hardware import Device
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS, VECTOR
from perfmodel.validate.calibrate.kernel_data import (
    devices_of,
    family_rows,
    few_of_each,
    joined,
    launch_floors,
    read_table,
    some_unnamed,
    without_excluded,
)
from perfmodel.validate.calibrate.kernel_part import boosted, fit_part
from perfmodel.validate.calibrate.kernels import MIN_ROWS, sliced

DATA = Path(os.environ.get("PERFMODEL_REFERENCE", "../shared/data"))
_SHARED = (
    *("kernels/train", "kernels/amd_mi100", "kernels/h100_l4_a100_80"),
    *("kernels_lowprec/gemm", "kernels_lowprec/gemm_h200", "kernels_lowprec/attention"),
    *("kernels_lowprec/vidur_linear", "kernels_lowprec/deepbench", "kernels_lowprec/deepbench_2"),
)
_TRACES = Path(__file__).resolve().parent.parent / "traces"
FITTED_TO = (
    *(DATA / f"{name}.parquet" for name in _SHARED),
    *(_TRACES / name / "matmul.csv.gz" for name in ("h200_second", "h100")),
)
FAR = DATA / "kernels" / "test_same_devices.parquet"
"""Shapes far beyond those of the other tables: predicted for a device left out, never fitted to."""
ROWS = 300
MIN_ASKED = 30


def table(paths: tuple[Path, ...]) -> pd.DataFrame:
    """The rows of the tables at `paths`."""
    return joined(without_excluded([read_table(path) for path in paths]))


def fitted_tables() -> pd.DataFrame:
    """The rows of everything that the bundle is fitted to."""
    with tempfile.TemporaryDirectory() as folder:
        return table((*FITTED_TO, *serving_tables.write(Path(folder))))


def parts(frame: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """(family, name, rows) of everything that is fitted as one."""
    for family in FEATURES:
        for name, rows in sliced(family, frame).items():
            if len(rows) >= MIN_ROWS:
                yield family, name, rows


def fitted_to(
    part: tuple[str, str], rows: pd.DataFrame, known: dict[str, Device], count: int
) -> Learned:
    """The model of `part` (family, name), fitted to at most `count` rows of each group."""
    few = some_unnamed(thinned(rows, count, 0), 0)
    fitted = fit_part(part[1], few, known, launch_floors(few), is_of_ops=part[0] == VECTOR, seed=0)
    return models_of([(fitted.fitted, fitted.trees)])[part[0]]


def thinned(rows: pd.DataFrame, most: int, seed: int) -> pd.DataFrame:
    """At most so many rows of each device, op, dtype and framework."""
    return rows.iloc[few_of_each(rows, np.arange(len(rows)), most, seed)]


_DIMS = ("b", "m", "n", "k", "rows", "cols", "batch", "in_channels", "out_channels", "kernel_size")
_MORE_DIMS = (
    *("input_size", "stride", "s", "s_kv", "heads", "kv_heads", "head_dim", "window_size"),
    *("causal", "tokens", "hidden", "inter", "topk", "experts", "skew"),
)
_KINDS = ("op", "dtype", "framework")
_PLAIN = {"max_depth": 5, "learning_rate": 0.08, "min_child_weight": 20, "n_estimators": 150}


def plain_trees(seed: int) -> Any:
    """Boosted trees over the columns of `plain_columns`, of log(measured / roofline)."""
    columns = make_column_transformer(
        (FunctionTransformer(np.log1p), [*_DIMS, *_MORE_DIMS]),
        (OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), [*_KINDS]),
        remainder="passthrough",
    )
    names = (*_DIMS, *_MORE_DIMS, *_KINDS, *COLUMNS)
    return make_pipeline(columns, boosted(_PLAIN, names, seed=seed))


def plain_columns(rows: pd.DataFrame) -> pd.DataFrame:
    """Dims (0 where an op has none such), kinds (none: empty) and the device's features."""
    rows = rows.reset_index(drop=True)
    dims = rows.reindex(columns=[*_DIMS, *_MORE_DIMS]).astype("float64").fillna(0.0)
    kinds = rows.reindex(columns=[*_KINDS]).astype(object).fillna("").astype(str)
    known = {name: describe(each) for name, each in devices_of(rows["device"]).items()}
    return dims.join(kinds).join(pd.DataFrame([known[name] for name in rows["device"]]))


def by_plain_trees(
    model: Learned, others: pd.DataFrame, asked: pd.DataFrame, known: dict[str, Device]
) -> np.ndarray:
    """Microseconds `[n]` by boosted trees fitted to `others`, with the column `framework`."""
    roofline_us = np.empty(len(others))
    for name, at in others.groupby("device").indices.items():
        roofline_us[at] = _roofline_us(model, others.iloc[at], known[name])
    off = np.log(others["duration_us"].to_numpy(np.float64) / roofline_us)
    trees = plain_trees(0).fit(plain_columns(others), off)
    own_us = _roofline_us(model, asked, known[asked["device"].iloc[0]])
    return np.asarray(own_us * np.exp(trees.predict(plain_columns(asked))))


def nearest_shapes(
    model: Learned, others: pd.DataFrame, asked: pd.DataFrame, known: dict[str, Device]
) -> np.ndarray:
    """Microseconds `[n]`: the nearest shape (in logarithms of its dims) on the most similar device
    where its op and dtype were measured, times the ratio of rooflines; NaN where none was."""
    found, device = np.full(len(asked), np.nan), known[asked["device"].iloc[0]]
    measured = dict(list(others.groupby([*KIND])))
    for key, place in asked.groupby([*KIND]).indices.items():
        if key not in measured:
            continue
        rows, own = measured[key], asked.iloc[place]
        like = known_as(device, set(rows["device"]), known)[0]
        rows = rows[rows["device"] == like]
        dims = [name for name in OPS[key[0]].dims if name in rows]
        points, at = (np.log(frame[dims].fillna(1.0).clip(lower=1.0)) for frame in (rows, own))
        near = rows.iloc[cKDTree(points).query(at)[1]]
        ratio = _roofline_us(model, own, device) / _roofline_us(model, near, known[like])
        found[place] = near["duration_us"].to_numpy(np.float64) * ratio
    return found


KIND = ("op", "dtype", "direction")


def _roofline_us(model: Learned, frame: pd.DataFrame, device: Device) -> np.ndarray:
    return np.asarray(model.heuristic.analyse(Rows.from_frame(frame), device).bound_us)


def compared(
    model: Learned,
    asked: pd.DataFrame,
    others: pd.DataFrame,
    known: dict[str, Device],
) -> pd.DataFrame:
    """`asked` with relative errors of the model and of the simpler ones, and whether intervals
    hold."""
    rows, device = Rows.from_frame(asked), known[asked["device"].iloc[0]]
    measured = asked["duration_us"].to_numpy(np.float64)
    found: Estimate = model.estimate(rows, device)
    columns = {
        "model": found.duration_us,
        "physics": model.heuristic.estimate(rows, device).duration_us,
        "trees": by_plain_trees(model, others, asked, known),
        "neighbour": nearest_shapes(model, others, asked, known),
    }
    errors = {name: us / measured - 1.0 for name, us in columns.items()}
    inside = (found.low_us <= measured) & (measured <= found.high_us)
    return asked[["op", "device", "dtype"]].assign(
        **errors, inside=inside, width=np.log(found.high_us / found.low_us)
    )


def known_as(device: Device, others: set[str], known: dict[str, Device]) -> tuple[str, float]:
    """The driver's name of the one among `others` that is most like `device`, and how far it is."""
    own = describe(device)
    away, name = min((distance(describe(known[name]), own), name) for name in others)
    return name, away


SIMPLER = ("physics", "trees", "neighbour")
"""What has to be beaten: each of these alone."""
CELL = ("part", "op", "dtype", "device", "near")
TWICE, SLACK_PCT = 2.0, 1.0
"""Errors differ where one is above the other by more than a percent."""
TREES = 1.5
"""How far off an answer may be where half of a device is given, in errors of plain trees."""
COVERED_PCT = (80.0, 97.0)


def cells(errors: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Errors in percent, one row per group of `by`."""
    found = []
    for key, own in errors.groupby(by):
        off = own["model"].abs()
        figures = {"median": off.median(), "p90": off.quantile(0.9), "inside": own["inside"].mean()}
        figures |= {name: own[name].abs().median() for name in SIMPLER}
        percent = {name: round(100.0 * float(each), 1) for name, each in figures.items()}
        found.append(dict(zip(by, key, strict=True)) | {"n": len(own)} | percent)
    return pd.DataFrame(found)


def verdict(each: pd.DataFrame) -> None:
    """Print in how many cells the model is as good as the best of the simpler ones."""
    each = each.assign(best=each[list(SIMPLER)].min(axis=1))
    as_good = each["median"] <= each["best"] + SLACK_PCT
    twice = each[each["median"] > TWICE * each["best"] + SLACK_PCT]
    print(f"as good as the best of {', '.join(SIMPLER)}: {as_good.sum()} of {len(each)} cells")
    print(f"twice as bad as the best: {len(twice)}")
    if len(twice):
        print(twice[["op", "dtype", "device", "median", "best"]].to_string(index=False))


def coverage(errors: pd.DataFrame) -> None:
    """Print in how many cells the intervals hold about as many rows as they should."""
    print(f"intervals hold {100.0 * errors['inside'].mean():.1f} % of the rows; their mean")
    print(f"log(high / low) is {errors['width'].mean():.2f}; they hold 80 to 97 % of the rows in")
    for by in ([*CELL], ["family", "device"]):
        inside = 100.0 * errors.groupby(by)["inside"].mean()
        inside = inside[errors.groupby(by).size() >= MIN_ASKED]
        held, fewer = inside.between(*COVERED_PCT).sum(), (inside < COVERED_PCT[0]).sum()
        print(f"{held} of {len(inside)} cells of {', '.join(by)}, fewer in {fewer}")


def thinned_or_none(rows: pd.DataFrame, device: str, most: int) -> pd.DataFrame:
    """At most `most` rows of `device` per op and dtype."""
    own = rows[rows["device"] == device]
    return thinned(own, most, 1) if len(own) else own


def measure(names: list[str], count: int, most_asked: int) -> pd.DataFrame:
    """Errors of every row asked about, device by device left out."""
    frame, far = fitted_tables(), table((FAR,))
    known, found = devices_of(frame["device"]), []
    for family, name, rows in parts(frame):
        if names and name not in names:
            continue
        beyond = family_rows(far, family)
        beyond = beyond[
            beyond["op"].isin(set(rows["op"])) & beyond["dtype"].isin(set(rows["dtype"]))
        ]
        for device in sorted(set(rows["device"])):
            asked = [thinned(rows[rows["device"] == device], most_asked, 1)]
            asked = pd.concat([*asked, thinned_or_none(beyond, device, most_asked)])
            elsewhere = rows[rows["device"] != device]
            if len(asked) < MIN_ASKED or elsewhere.empty:
                continue
            model = fitted_to((family, name), elsewhere, known, count)
            errors = compared(model, asked, thinned(elsewhere, count, 2), known)
            like, away = known_as(known[device], set(elsewhere["device"]), known)
            found.append(errors.assign(part=name, family=family, near=f"{like} ({away:.2f})"))
    return pd.concat(found)


def measure_halves(names: list[str], count: int, most_asked: int) -> pd.DataFrame:
    """Errors of rows of the shapes that were kept from the fit, half of each device's."""
    frame = fitted_tables()
    known, found = devices_of(frame["device"]), []
    for family, name, rows in parts(frame):
        if names and name not in names:
            continue
        is_given = half_of_shapes(rows)
        given, kept = rows[is_given], rows[~is_given]
        model, few = fitted_to((family, name), given, known, count), thinned(given, count, 2)
        for _, own in kept.groupby("device"):
            errors = compared(model, thinned(own, most_asked, 1), few, known)
            found.append(errors.assign(part=name, family=family, near="half of its own"))
    return pd.concat(found)


def half_of_shapes(rows: pd.DataFrame) -> pd.Series:
    """Whether a row's shape is one of the half that is given, drawn anew for each device."""
    dims = sorted({name for op in set(rows["op"]) for name in OPS[op].dims} & set(rows))
    hashes = pd.util.hash_pandas_object(rows[["op", "device", *dims]], index=False)
    return hashes % 2 == 0


def beside_trees(each: pd.DataFrame) -> None:
    """Print in how many cells the model is about as good as plain trees on the same rows."""
    behind = each[each["median"] > TREES * each["trees"] + SLACK_PCT]
    print(f"more than {TREES} times as far off as trees: {len(behind)} of {len(each)} cells")
    if len(behind):
        print(behind[["op", "dtype", "device", "median", "trees"]].to_string(index=False))


def main() -> None:
    """Print the tables and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", action="append", default=[])
    parser.add_argument("--rows", type=int, default=ROWS, help="fitted to, per device, op, dtype")
    parser.add_argument("--asked", type=int, default=ROWS, help="asked about, at most")
    parser.add_argument("--half", action="store_true", help="of each device's shapes is given")
    asked = parser.parse_args()
    errors = (measure_halves if asked.half else measure)(asked.part, asked.rows, asked.asked)
    each = cells(errors, [*CELL])
    print(each.to_string(index=False))
    print(cells(errors, ["part", "device"]).to_string(index=False))
    print(each.groupby("part")[["median", *SIMPLER, "inside"]].mean().round(1).to_string())
    each = each[each["n"] >= MIN_ASKED]
    (beside_trees if asked.half else verdict)(each)
    coverage(errors)


if __name__ == "__main__":
    main()

"""Kernel models on devices that their fit has not seen: errors and intervals, beside less.

`python benchmarks/left_out_devices.py [--part NAME ...] [--rows N]` leaves each device of the
measurement tables (under PERFMODEL_REFERENCE) out of the fit of each part and predicts its rows. It
prints, per op and device: the nearest device left, median and 90th percentile of the absolute
error, and the share of rows inside the 90 % interval; then the median errors of physics with one
correction per op that all devices share, of physics alone, and of the roofline. With 300 rows per
device, op and dtype it takes about 15 minutes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from perfmodel.calibrate.kernel_data import (
    FloorKey,
    above_launch_floors,
    devices_of,
    family_rows,
    fitted_floors,
    joined,
    read_table,
    thinned,
)
from perfmodel.calibrate.kernels import (
    FEWEST_ROWS,
    fit_rows,
    floors_by_key,
    model_of_parts,
    sliced,
)
from perfmodel.cost.contract import Estimate
from perfmodel.cost.gpu.heuristic import Floor
from perfmodel.cost.learned.devices import describe, nearest
from perfmodel.cost.learned.features import BUILD_OF_FAMILY
from perfmodel.cost.learned.model import Learned
from perfmodel.hardware import Device
from perfmodel.ops.rows import Rows

DATA = Path(os.environ.get("PERFMODEL_REFERENCE", "../shared/data"))
FITTED_TO = (
    *("kernels/train", "kernels/amd_mi100", "kernels/h100_l4_a100_80"),
    *("kernels_lowprec/gemm", "kernels_lowprec/gemm_h200", "kernels_lowprec/attention"),
    *("kernels_lowprec/vidur_linear", "kernels_lowprec/deepbench", "kernels_lowprec/deepbench_2"),
)
FAR = "kernels/test_same_devices"
"""Shapes far beyond those of the other tables: predicted for a device left out, never fitted to."""
ROWS = 300
FEWEST_ASKED = 30


def table(names: tuple[str, ...]) -> pd.DataFrame:
    """The rows of the tables `names`."""
    return joined(read_table(DATA / f"{name}.parquet") for name in names)


def parts(frame: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """(family, name, rows) of everything that is fitted as one."""
    for family in BUILD_OF_FAMILY:
        for name, rows in sliced(family, family_rows(frame, family)):
            if len(rows) >= FEWEST_ROWS:
                yield family, name, rows


def fitted_without(
    left_out: str, part: tuple[str, str], rows: pd.DataFrame, known: dict[str, Device], count: int
) -> Learned:
    """The model of `part`, fitted to the `rows` of all devices but one."""
    others = rows[rows["device"] != left_out]
    floors = fitted_floors(others)
    fitted = fit_rows(part, others, known, floors, count, seed=0)
    return model_of_parts(part[0], [fitted.part], floors_by_key(set(rows["op"]), floors, known))


def shared_corrections(
    model: Learned, rows: pd.DataFrame, known: dict[str, Device], floors: dict[FloorKey, Floor]
) -> dict[str, float]:
    """Per op, the median over devices of their median of measured over physics."""
    found: dict[str, list[float]] = {}
    clear = above_launch_floors(rows, floors)
    for (op, device), group in thinned(clear, ROWS, 0).groupby(["op", "device"]):
        physics = model.heuristic.estimate(Rows.from_frame(group), known[device]).duration_us
        found.setdefault(op, []).append(float(np.median(group["duration_us"] / physics)))
    return {op: float(np.median(each)) for op, each in found.items()}


def compared(
    model: Learned, asked: pd.DataFrame, device: Device, corrections: dict[str, float]
) -> pd.DataFrame:
    """`asked` with log errors of the model and of the simpler ones, and whether intervals hold."""
    rows = Rows.from_frame(asked)
    measured = asked["duration_us"].to_numpy(np.float64)
    found: Estimate = model.estimate(rows, device)
    physics = model.heuristic.estimate(rows, device).duration_us
    shared = physics * np.array([corrections.get(op, 1.0) for op in rows.op])
    roofline = model.heuristic.analyse(rows, device).bound_us
    columns = {"model": found.duration_us, "shared": shared, "physics": physics}
    errors = {name: us / measured - 1.0 for name, us in {**columns, "roofline": roofline}.items()}
    inside = (found.low_us <= measured) & (measured <= found.high_us)
    return asked[["op", "device", "dtype"]].assign(
        **errors, inside=inside, width=np.log(found.high_us / found.low_us)
    )


def nearest_left(device: str, others: set[str], known: dict[str, Device]) -> str:
    """The driver's name of the device among `others` that is most like it, and how far it is."""
    names = sorted(others)
    like, away = nearest(describe(known[device]), [describe(known[name]) for name in names])
    name = next(name for name in names if describe(known[name]) == like)
    return f"{name.removeprefix('NVIDIA ').removeprefix('Tesla ')} ({away:.2f})"


SIMPLER = ("shared", "physics", "roofline")


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


def measure(names: list[str], count: int) -> pd.DataFrame:
    """Errors of every row asked about, device by device left out."""
    frame, far = table(FITTED_TO), table((FAR,))
    known, found = devices_of(frame["device"]), []
    for family, name, rows in parts(frame):
        if names and name not in names:
            continue
        beyond = family_rows(far, family)
        beyond = beyond[
            beyond["op"].isin(set(rows["op"])) & beyond["dtype"].isin(set(rows["dtype"]))
        ]
        for device in sorted(set(rows["device"])):
            asked = [thinned(rows[rows["device"] == device], count, 1)]
            asked = pd.concat([*asked, beyond[beyond["device"] == device]])
            others = set(rows["device"]) - {device}
            if len(asked) < FEWEST_ASKED or not others:
                continue
            model = fitted_without(device, (family, name), rows, known, count)
            elsewhere = rows[rows["device"] != device]
            simpler = shared_corrections(model, elsewhere, known, fitted_floors(elsewhere))
            errors = compared(model, asked, known[device], simpler)
            near = nearest_left(device, others, known)
            found.append(errors.assign(part=name, near=near))
    return pd.concat(found)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", action="append", default=[])
    parser.add_argument("--rows", type=int, default=ROWS)
    asked = parser.parse_args()
    errors = measure(asked.part, asked.rows)
    each = cells(errors, ["part", "op", "device", "near"])
    print(each.to_string(index=False))
    print(cells(errors, ["part", "device"]).to_string(index=False))
    print(each.groupby("part")[["median", *SIMPLER, "inside"]].mean().round(1).to_string())
    print(f"rows inside their interval: {errors['inside'].mean():.3f}")
    print(f"cells with 80 to 97 % inside: {each['inside'].between(80, 97).mean():.2f}")
    best = each[list(SIMPLER)].min(axis=1)
    print(f"cells no worse than each simpler one: {(each['median'] <= best).mean():.2f}")


if __name__ == "__main__":
    main()

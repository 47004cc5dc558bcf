"""What ships, on measurements of a device that came after its fit, beside less.

`python benchmarks/fresh_device.py TABLE ...` predicts the rows of measurement tables, none of which
was fitted to, with the bundled models. It prints, per op, dtype and device: rows, median and 90th
percentile of the absolute error, the median error with its sign, the share of rows inside the 90 %
interval; then the median errors of physics alone, of plain boosted trees fitted to the tables under
PERFMODEL_REFERENCE that the bundle was fitted to, but for the tables asked about (dims, dtype,
framework and figures of the device), and of the nearest shape on the most similar device in them
times the ratio of rooflines.

Tables of `perfmodel.collect kernels` are taken as `without_timing` of `kernel_data` has them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a file

from benchmarks.left_out_devices import (
    FITTED_TO,
    MIN_ASKED,
    ROWS,
    SIMPLER,
    by_plain_trees,
    nearest_shapes,
    table,
    thinned,
    verdict,
)
from perfmodel.cost.durations import durations_of, model_of
from perfmodel.cost.learned.features import FEATURES
from perfmodel.cost.learned.model import Learned
from perfmodel.hardware import Device
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.validate.calibrate.kernel_data import devices_of, read_table
from perfmodel.validate.calibrate.kernels import sliced

COLUMNS = ("device", "op", "dtype")


def simpler(
    family: str, own: pd.DataFrame, measured: pd.DataFrame, known: dict[str, Device]
) -> dict[str, np.ndarray]:
    """Microseconds `[n]` of rows of one device and family by what needs no package."""
    device = known[own["device"].iloc[0]]
    model, rows = model_of(family, device), Rows.from_frame(own)
    nothing = np.full(len(own), np.nan)
    if not isinstance(model, Learned):
        physics = durations_of(rows, device).duration_us
        return {"physics": physics, "trees": nothing, "neighbour": nothing}
    found = {"physics": durations_of(rows, device, {family: model.heuristic}).duration_us}
    by_trees, near = nothing.copy(), nothing.copy()
    place = pd.Series(np.arange(len(own)), own.index)
    fitted_to = sliced(family, measured)
    for name, part in sliced(family, own).items():
        others = fitted_to[name]
        if len(part) and len(others):
            at = place[part.index].to_numpy()
            by_trees[at] = by_plain_trees(model, others, part, known)
            near[at] = nearest_shapes(model, others, part, known)
    return found | {"trees": by_trees, "neighbour": near}


def errors(frame: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Relative errors of every row of `frame`, by what ships and by less."""
    known = devices_of([*frame["device"], *measured["device"]])
    families = frame["op"].map(lambda op: OPS[op].family if op in OPS else "")
    found = []
    for (family, device), own in frame.groupby([families, frame["device"]]):
        if not family:
            continue
        us = own["duration_us"].to_numpy(np.float64)
        ours = durations_of(Rows.from_frame(own), known[device])
        others = measured if family in FEATURES else measured.iloc[:0]
        columns = {"model": ours.duration_us} | simpler(family, own, others, known)
        relative = {name: each / us - 1.0 for name, each in columns.items()}
        inside = (ours.low_us <= us) & (us <= ours.high_us)
        width = np.log(ours.high_us / ours.low_us)
        found.append(own[[*COLUMNS]].assign(**relative, inside=inside, width=width))
    return pd.concat(found)


def cells(each: pd.DataFrame) -> pd.DataFrame:
    """Errors in percent, one row per device, op and dtype."""
    rows = []
    for key, own in each.groupby([*COLUMNS]):
        off = own["model"].abs()
        figures = {"median": off.median(), "p90": off.quantile(0.9), "bias": own["model"].median()}
        figures |= {"inside": own["inside"].mean()}
        figures |= {name: own[name].abs().median() for name in SIMPLER}
        percent = {name: round(100.0 * float(value), 1) for name, value in figures.items()}
        rows.append(dict(zip(COLUMNS, key, strict=True)) | {"n": len(own)} | percent)
    return pd.DataFrame(rows)


def main() -> None:
    """Print the table and the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE")
    parser.add_argument("--rows", type=int, default=ROWS, help="fitted to, per device, op, dtype")
    asked = parser.parse_args()
    frame = pd.concat([read_table(each).frame for each in asked.tables], ignore_index=True)
    given = {each.resolve() for each in asked.tables}
    others = tuple(each for each in FITTED_TO if each.resolve() not in given)
    found = cells(errors(frame, thinned(table(others), asked.rows, 2)))
    print(found.to_string(index=False))
    verdict(found[found["n"] >= MIN_ASKED])


if __name__ == "__main__":
    main()

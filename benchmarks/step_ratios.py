"""Ratios of two steps against MLPerf's measured ones: whether their 90 % intervals hold.

    python benchmarks/step_ratios.py

Takes `$PERFMODEL_REFERENCE`. Every pair of MLPerf's DLRM and DLRM-DCNv2 configurations at hand (one
round and submitter each, the median where there are several), those on one device apart from those
on two: measured ratio, predicted ratio, its interval; then how many hold, beside the ratio of the
steps' own ends, which is what one has without it. `OWN_SPREAD` of `perfmodel.prediction.intervals`
is fitted to the ratios of DCNv2 on one device.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a file

from benchmarks.tables import markdown
from perfmodel.hardware import cluster
from perfmodel.hardware.settings import with_settings
from perfmodel.prediction import predict
from perfmodel.prediction.types import Result

DATA = Path(os.environ.get("PERFMODEL_REFERENCE", "../shared/data"))
NODES = {
    "B200": "hgx-b200", "H200-SXM": "hgx-h200", "H100-SXM": "dgx-h100",
    "A100-SXM4-40": "dgx-a100-40gb", "A100-SXM": "dgx-a100-80gb",
}  # fmt: skip
WORKLOADS = {"dlrm": "dlrm-mlperf", "dlrm_dcnv2": "dlrm-dcnv2"}
RATES = {"dlrm": "samples_per_s_logged", "dlrm_dcnv2": "samples_per_s_train_est"}


def measured() -> pd.DataFrame:
    """`benchmark node n_nodes accel_per_node global_batch us`, a row per configuration."""
    old = pd.read_csv(DATA / "dlrm" / "mlperf_dlrm.csv")
    old["rate"] = [row[RATES[row["benchmark"]]] for _, row in old.iterrows()]
    new = pd.read_csv(DATA / "dlrm_2" / "mlperf_v5.1_dcnv2.csv")
    new = new.assign(benchmark="dlrm_dcnv2", rate=new["samples_per_s_train"])
    rows = pd.concat([old, new])
    rows["node"] = [
        next((node for part, node in NODES.items() if part in name), None)
        for name in rows["accelerator"].fillna("")
    ]
    rows = rows.dropna(subset=["rate", "node"])
    rows["us"] = rows["global_batch"] / rows["rate"] * 1e6
    keys = ["benchmark", "node", "n_nodes", "accel_per_node", "global_batch"]
    return rows.groupby(keys, as_index=False)["us"].median()


def predicted(row: pd.Series) -> Result:
    machine = cluster(row["node"], nodes=int(row["n_nodes"]))
    machine = with_settings(machine, [f"node.gpus={int(row['accel_per_node'])}"])
    asked = {"hardware": machine, "batch": int(row["global_batch"])}
    return predict(WORKLOADS[row["benchmark"]], **asked).results[0]


def ratios(rows: pd.DataFrame) -> Iterator[dict[str, object]]:
    results = [predicted(row) for _, row in rows.iterrows()]
    for one, other in combinations(range(len(rows)), 2):
        mine, base = rows.iloc[one], rows.iloc[other]
        if mine["benchmark"] != base["benchmark"]:
            continue
        a, b = results[one], results[other]
        low, high = a.ratio_interval(b) or (np.nan, np.nan)
        true = mine["us"] / base["us"]
        ends = np.array([a.low_us, a.high_us, b.low_us, b.high_us], np.float64)
        yield {
            "benchmark": mine["benchmark"],
            "devices": mine["node"] if mine["node"] == base["node"] else "two",
            "gpus": " and ".join(f"{x['n_nodes']}x{x['accel_per_node']}" for x in (mine, base)),
            "measured": true,
            "predicted": a.step_us / b.step_us,
            "low": low,
            "high": high,
            "holds": low <= true <= high,
            "by_ends": ends[0] / ends[3] <= true <= ends[1] / ends[2],
            "width": np.log(high / low),
            "width_by_ends": np.log(ends[1] * ends[3] / ends[0] / ends[2]),
        }


def main() -> int:
    found = pd.DataFrame(ratios(measured()))
    one = found[found["devices"] != "two"]
    figures = ["measured", "predicted", "low", "high"]
    cells = [
        [each["benchmark"], each["devices"], each["gpus"], *(f"{each[n]:.2f}" for n in figures)]
        for each in one.to_dict("records")
    ]
    print(markdown(["", "device", "GPUs", *figures], cells))
    for name, own in (("one device", one), ("two devices", found[found["devices"] == "two"])):
        print(
            f"{name}: {own['holds'].sum()} of {len(own)} intervals hold, "
            f"{own['by_ends'].sum()} by the steps' own ends; median width "
            f"{np.exp(own['width'].median()):.2f} and {np.exp(own['width_by_ends'].median()):.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

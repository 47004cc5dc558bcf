"""Published throughput of DLRM training against what is predicted from configurations alone.

    python -m benchmarks.published.mlperf mlperf_dlrm.csv [...] [--figure rates.png] [--csv FILE]

Tables of MLPerf Training submissions (`MLPERF_COLUMNS`); or, of DLRM-DCNv2 alone, with the rate
between evaluations (`DCNV2_COLUMNS`). Printed are the rates, errors per group, and what is left
out; `scaled_pct` is the error of the rate published of one node, times the number of GPUs.
Held out is every configuration but one node of 8 a100-sxm-80gb in dlrm, to whose median rate
unmodelled_sample_bytes of dlrm-mlperf was fitted; dlrm_dcnv2 has no fitted constant. Of v1.0 the
software was another: it computed a batch's indices within the step.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from perfmodel.base.frames import text_rows
from perfmodel.base.units import US_PER_S
from perfmodel.errors import HardwareError, PerfmodelError
from perfmodel.hardware import Cluster, from_driver_name, node_of
from perfmodel.prediction import predict
from perfmodel.workload import load_workload

WORKLOAD = {"dlrm": "dlrm-mlperf", "dlrm_dcnv2": "dlrm-dcnv2"}
EARLIER_SOFTWARE = {("dlrm", "v1.0")}
"""Benchmark and round whose software was another one, which is not modelled; such runs are a group
of their own."""
RATE_COLUMN = {"dlrm": "samples_per_s_logged", "dlrm_dcnv2": "samples_per_s_train_est"}
"""The logged rate contains the evaluations, as the workload's step does."""
MAX_NUMBER = 1e15
MLPERF_COLUMNS = (
    *("round", "submitter", "system", "benchmark", "n_nodes", "accel_per_node", "accelerator"),
    *("global_batch", "ttt_min_median", *RATE_COLUMN.values()),
)
BETWEEN_EVALUATIONS = "samples_per_s_train"
_OLDER = {"benchmark", *RATE_COLUMN.values()}
DCNV2_COLUMNS = (*(name for name in MLPERF_COLUMNS if name not in _OLDER), BETWEEN_EVALUATIONS)
NO_LINKS = "no links between its GPUs: the layout of PCIe root complexes is not known"
FITTED = ("dlrm", "8 a100-sxm-80gb, batch 55,296")
"""Group and name of the configuration that a constant was fitted to."""


@dataclass(frozen=True)
class Published:
    """A configuration, and the rates that were published for it, samples per second."""

    group: str
    workload: str
    machine: Cluster
    batch: int
    rates: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        """`8 x 8 a100-sxm-80gb, batch 71,680`."""
        node, nodes = self.machine.node, self.machine.nodes
        several = f"{nodes} x " if nodes > 1 else ""
        return f"{several}{node.gpus} {node.device.name}, batch {self.batch:,}"


def read_mlperf(*paths: Path) -> tuple[list[Published], list[tuple[str, str]]]:
    """Distinct configurations of submissions, each run once; what is left out, and why.

    Raises `PerfmodelError` for a file that is no such table.
    """
    published: dict[tuple[object, ...], Published] = {}
    left: list[tuple[str, str]] = []
    seen: set[tuple[str, ...]] = set()
    for where, row in chain.from_iterable(map(_submissions, paths)):
        benchmark, round_ = row["benchmark"], row["round"]
        rate = row[RATE_COLUMN[benchmark]] if benchmark in RATE_COLUMN else ""
        reason = _unusable(row, rate)
        run = (row["submitter"], benchmark, row["global_batch"], rate, row["ttt_min_median"])
        if not reason and run in seen:
            reason = "the same run as in a round before"
        seen.add(run)
        machine = reason or _machine(row, where)
        if not isinstance(machine, Cluster):
            left.append((f"{round_} {row['submitter']} {row['system']}", machine))
            continue
        is_other = (benchmark, round_) in EARLIER_SOFTWARE
        group = f"{benchmark} {round_}" if is_other else benchmark
        batch = int(_number(row, "global_batch", where))
        one = Published(group, WORKLOAD[benchmark], machine, batch)
        key = (group, one.name)
        rates = published.get(key, one).rates
        published[key] = replace(one, rates=(*rates, _number(row, RATE_COLUMN[benchmark], where)))
    return list(published.values()), left


def _submissions(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Rows of either table and where they are, with the columns of `MLPERF_COLUMNS`."""
    for where, row in text_rows(path, MLPERF_COLUMNS, DCNV2_COLUMNS):
        if BETWEEN_EVALUATIONS in row:
            rates = {"samples_per_s_train_est": row[BETWEEN_EVALUATIONS]}
            row = {"benchmark": "dlrm_dcnv2", **row, **rates, "samples_per_s_logged": ""}
        yield where, row


def _unusable(row: Mapping[str, str], rate: str) -> str:
    if row["benchmark"] not in WORKLOAD:
        return f"benchmark {row['benchmark']}"
    if not rate:
        return f"no {RATE_COLUMN[row['benchmark']]}"
    return "no accelerators" if row["accel_per_node"] in ("", "0") else ""


def _machine(row: Mapping[str, str], where: str) -> Cluster | str:
    """The nodes of a submission, or why they are not known."""
    full = row["accelerator"]
    machine, reasons = None, []
    for name in (re.sub(r"\(.*?\)", "", full).strip(), *re.findall(r"\((.*?)\)", full)):
        try:
            machine = machine or from_driver_name(name)
        except HardwareError as error:
            reasons.append(str(error).partition(";")[0])
    if machine is None:
        return reasons[0]
    nodes, gpus = (int(_number(row, key, where)) for key in ("n_nodes", "accel_per_node"))
    usual = node_of(machine)
    if usual.link is None and gpus > 1:
        return f"{machine.name}: {NO_LINKS}"
    return Cluster(name=machine.name, node=replace(usual, gpus=gpus), nodes=nodes)


def _number(row: Mapping[str, str], key: str, where: str) -> float:
    try:
        number = float(row[key])
    except ValueError:
        number = -1.0
    if not 0 < number < MAX_NUMBER:
        raise PerfmodelError(f"{where}: {key}: expected a positive number, got {row[key][:40]!r}")
    return number


def evaluate_published(
    listed: Sequence[Published],
) -> tuple[pd.DataFrame, list[tuple[str, str]]]:
    """A row per configuration (rates in samples per second), and what cannot be predicted."""
    rows, left = [], []
    for each in listed:
        try:
            rows.append(row_of(each, *_samples_per_s(each)))
        except PerfmodelError as error:
            left.append((f"{each.group}: {each.name}", str(error)))
    return with_scaled(pd.DataFrame(rows)), left


def _samples_per_s(published: Published) -> tuple[float, float, float]:
    """The rate, and its 90 % interval."""
    workload = load_workload(published.workload)
    result = predict(workload, hardware=[published.machine], batch=published.batch).results[0]
    rate, usual = published.batch * US_PER_S, result.step_us
    return rate / usual, rate / (result.high_us or usual), rate / (result.low_us or usual)


def row_of(published: Published, rate: float, low: float, high: float) -> dict[str, Any]:
    """A configuration's published rate (the median) and the predicted one."""
    machine, measured = published.machine, median(published.rates)
    return {
        "group": published.group,
        "name": published.name,
        "device": machine.node.device.name,
        "generation": machine.node.device.architecture or "",
        "nodes": machine.nodes,
        "devices": machine.gpus,
        "joined_by": "links" if machine.linked_gpus == machine.gpus else "network",
        "runs": len(published.rates),
        "published": measured,
        "predicted": rate,
        "low": low,
        "high": high,
        "within": low <= measured <= high,
        "error_pct": 100 * (rate / measured - 1),
        "held_out": (published.group, published.name) != FITTED,
    }


def with_scaled(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` and `scaled_pct`: the error of another machine of one node of these GPUs, by their
    number; NaN where there is none."""
    scaled = np.full(len(rows), np.nan)
    for at, row in enumerate(rows.itertuples()):
        alike = (rows.group == row.group) & (rows.device == row.device) & (rows.nodes == 1)
        of_one = rows[alike & (rows.index != row.Index)].sort_values("devices", kind="stable")
        if len(of_one):
            one = of_one[of_one.devices == of_one.devices.max()].iloc[0]
            scaled[at] = 100 * (one.published * row.devices / one.devices / row.published - 1)
    return rows.assign(scaled_pct=scaled)


def summary(rows: pd.DataFrame, *by: str) -> pd.DataFrame:
    """Errors in percent, coverage of intervals and rank correlation, per value of the columns."""
    return rows.groupby(list(by), sort=False).apply(_errors, include_groups=False)


def _errors(rows: pd.DataFrame) -> pd.Series:
    size = rows.error_pct.abs()
    figures = {
        "n": len(rows),
        "median_pct": size.median(),
        "held_out_pct": size[rows.held_out].median(),
        "p90_pct": size.quantile(0.9),
        "worst_pct": size.max(),
        "bias_pct": rows.error_pct.mean(),
        "within_frac": rows.within.mean(),
        "one_node_pct": size[rows.nodes == 1].median(),
        "several_pct": size[rows.nodes > 1].median(),
        "scaled_pct": rows.scaled_pct.abs().median(),
        "rank_correlation": (
            rows.predicted.corr(rows.published, "spearman") if len(rows) > 2 else np.nan
        ),
    }
    return pd.Series(figures)


def main() -> None:
    """Read the tables, predict, print."""
    parser = argparse.ArgumentParser(description="Published and predicted rates of DLRM training.")
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--figure", type=Path, help="draw rates over devices")
    parser.add_argument("--csv", type=Path, help="write a row per configuration")
    arguments = parser.parse_args()
    listed, left = read_mlperf(*arguments.tables)
    rows, unpredicted = evaluate_published(listed)
    if arguments.csv:
        rows.to_csv(arguments.csv, index=False)
    if arguments.figure:
        from perfmodel.plot import curves_figure

        listed = rows.melt(["group", "device", "devices"], ["published", "predicted"], "what")
        listed["name"] = listed.group + ", " + listed.device + ", " + listed.what
        listed["rate"] = listed.value / 1e6
        labels, title = ("devices", "million samples per second"), "Training rates"
        figure = curves_figure(
            listed, "devices", "rate", "name", labels=labels, title=title, log="xy"
        )
        figure.savefig(arguments.figure)
    hidden = ["device", "generation", "nodes", "devices", "joined_by"]
    print(rows.drop(columns=hidden).to_string(index=False, float_format="{:,.1f}".format))
    for by in (("group",), ("group", "generation"), ("group", "devices", "joined_by")):
        print("\n", summary(rows, *by).to_string(float_format="{:.1f}".format), sep="")
    for name, reason in (*left, *unpredicted):
        print(f"left out: {name}: {reason}")


if __name__ == "__main__":
    try:
        main()
    except PerfmodelError as error:
        sys.exit(f"mlperf: {error}")

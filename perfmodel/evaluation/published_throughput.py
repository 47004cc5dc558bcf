"""Published throughput of DLRM training against what is predicted from configurations alone.

Table: MLPerf Training submissions (`round submitter system benchmark n_nodes accel_per_node
accelerator global_batch samples_per_s_train_est samples_per_s_logged ttt_min_median`); or, of
DLRM-DCNv2 alone, with `samples_per_s_train`, the rate between evaluations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.errors import HardwareError, PerfmodelError
from perfmodel.frames import csv_rows
from perfmodel.hardware import Cluster, from_driver_name, node_of
from perfmodel.prediction import predict
from perfmodel.progress import Begin, begun, silent
from perfmodel.workload import load_workload

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


WORKLOAD = {"dlrm": "dlrm-mlperf", "dlrm_dcnv2": "dlrm-dcnv2"}
EARLIER_SOFTWARE: dict[tuple[str, str], dict[str, object]] = {
    ("dlrm", "v1.0"): {"implementation__indices_ahead": False}
}
"""Benchmark and round whose software was another one, to the settings that stand for it; such runs
are a group of their own."""
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


@dataclass(frozen=True)
class Published:
    """A configuration, and the rates that were published for it."""

    group: str
    workload: str
    machine: Cluster
    batch: int
    settings: Mapping[str, object] = field(default_factory=dict)
    rates: tuple[float, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def precisions_text(self) -> str:
        """Precisions that differ from the workload's own."""
        precisions = [value for key, value in self.settings.items() if key.endswith("precision")]
        return "".join(f", {value}" for value in dict.fromkeys(precisions))

    @property
    def name(self) -> str:
        """`8 x 8 a100-sxm-80gb, batch 71,680`, and its settings."""
        node_, nodes = self.machine.node, self.machine.nodes
        several = f"{nodes} x " if nodes > 1 else ""
        return (
            f"{several}{node_.gpus} {node_.device.name}, batch {self.batch:,}{self.precisions_text}"
        )


@dataclass(frozen=True)
class Excluded:
    """A row that is not predicted, and why."""

    name: str
    reason: str


def read_mlperf(*paths: Path) -> tuple[list[Published], list[Excluded]]:
    """Distinct configurations of submissions, each run once, and what is left out by name.

    Raises `PerfmodelError` for a file that is no such table.
    """
    published: dict[tuple[object, ...], Published] = {}
    left: list[Excluded] = []
    seen: set[tuple[str, ...]] = set()
    for where, row in chain.from_iterable(map(_submissions, paths)):
        name = f"{row['round']} {row['submitter']} {row['system']}"
        rate = row[RATE_COLUMN[row["benchmark"]]] if row["benchmark"] in RATE_COLUMN else ""
        reason = _unusable(row, rate)
        run = (row["submitter"], row["benchmark"], row["global_batch"], rate, row["ttt_min_median"])
        if not reason and run in seen:
            reason = "the same run as in a round before"
        seen.add(run)
        machine = None if reason else _machine(row, where)
        if not isinstance(machine, Cluster):
            left.append(Excluded(name, reason or str(machine)))
            continue
        batch = int(_number(row, "global_batch", where))
        settings = EARLIER_SOFTWARE.get((row["benchmark"], row["round"]), {})
        group = f"{row['benchmark']} {row['round']}" if settings else row["benchmark"]
        key = (group, machine.node.device.name, machine.nodes, machine.node.gpus, batch)
        old = published.get(key)
        if old is None:
            old = Published(group, WORKLOAD[row["benchmark"]], machine, batch, settings)
        published[key] = replace(
            old,
            rates=(*old.rates, _number(row, RATE_COLUMN[row["benchmark"]], where)),
            names=(*old.names, name),
        )
    return list(published.values()), left


def _submissions(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Rows of either table and where they are, with the columns of `MLPERF_COLUMNS`."""
    for where, row in csv_rows(path, MLPERF_COLUMNS, DCNV2_COLUMNS):
        if BETWEEN_EVALUATIONS in row:
            rates = {"samples_per_s_train_est": row[BETWEEN_EVALUATIONS]}
            row = {"benchmark": "dlrm_dcnv2", **row, **rates, "samples_per_s_logged": ""}
        yield where, row


def _unusable(row: Mapping[str, str], rate: str) -> str:
    if row["benchmark"] not in WORKLOAD:
        return f"benchmark {row['benchmark']}"
    if not rate:
        return f"no {RATE_COLUMN[row['benchmark']]}"
    if row["accel_per_node"] in ("", "0"):
        return "no accelerators"
    return ""


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


SCHEMA = "perfmodel.evaluation.published/1"
MICROSECONDS = 1e6
FITTED_CONFIGURATIONS = (("dlrm", "a100-sxm-80gb", 1, 8, 55_296),)
"""Configurations (group, device, nodes, GPUs of each, batch) that a constant was fitted to."""
HELD_OUT_NOTE = (
    "Held out: every configuration but one node of 8 a100-sxm-80gb in dlrm, to whose median rate "
    "unmodelled_sample_bytes of dlrm-mlperf was fitted, and beyond_us of its evaluations to one of "
    "these runs; dlrm_dcnv2 has no fitted constant. Of v1.0 the software was another: see "
    "indices_ahead."
)


@dataclass(frozen=True)
class PublishedError:
    """One configuration: samples per second, published (the median), predicted, and its 90 %
    interval."""

    published: Published
    samples_per_s: float
    low_samples_per_s: float = 0.0
    high_samples_per_s: float = float("inf")

    @property
    def is_within(self) -> bool:
        """Whether the interval holds the published rate."""
        return self.low_samples_per_s <= self.measured <= self.high_samples_per_s

    @property
    def measured(self) -> float:
        """Median of what was published."""
        return median(self.published.rates)

    @property
    def error_pct(self) -> float:
        """Of the rate, predicted over measured."""
        return 100 * (self.samples_per_s / self.measured - 1)

    @property
    def is_held_out(self) -> bool:
        """Whether no constant saw the configuration."""
        node, nodes = self.published.machine.node, self.published.machine.nodes
        key = (self.published.group, node.device.name, nodes, node.gpus, self.published.batch)
        return key not in FITTED_CONFIGURATIONS

    def to_dict(self, scaled_error_pct: float | None) -> dict[str, Any]:
        """As `docs/schemas/evaluation.published.json` has it."""
        machine = self.published.machine
        return {
            "group": self.published.group,
            "name": self.published.name,
            "workload": self.published.workload,
            "device": machine.node.device.name,
            "generation": machine.node.device.architecture,
            "nodes": machine.nodes,
            "gpus_per_node": machine.node.gpus,
            "batch": self.published.batch,
            "samples_per_s_predicted": self.samples_per_s,
            "samples_per_s_measured": self.measured,
            "samples_per_s_low": self.low_samples_per_s,
            "samples_per_s_high": self.high_samples_per_s,
            "within": self.is_within,
            "error_pct": self.error_pct,
            "scaled_error_pct": scaled_error_pct,
            "held_out": self.is_held_out,
            "sources": list(self.published.names),
        }


@dataclass(frozen=True)
class PublishedErrors:
    """All configurations, and the rows that are not predicted."""

    rows: tuple[PublishedError, ...]
    left_out: tuple[Excluded, ...]

    def scaled_error_pct(self, row: PublishedError) -> float | None:
        """Of the rate published of another machine of one node of these GPUs, by their number."""
        published = row.published
        kind = published.group, published.machine.node.device.name
        of_one = [each for each in self.rows if each.published.machine.nodes == 1]
        named = [(each.published.group, each.published.machine.node.device.name) for each in of_one]
        alike = [a for a, name in zip(of_one, named, strict=True) if name == kind and a is not row]
        if not alike:
            return None
        one = max(alike, key=lambda each: each.published.machine.gpus)
        times = published.machine.gpus / one.published.machine.gpus
        return 100 * (one.measured * times / row.measured - 1)

    def by_gpus(self) -> list[dict[str, Any]]:
        """Per group, number of GPUs and what joins them: errors, intervals and the alternative."""
        groups: dict[tuple[str, int, str], list[PublishedError]] = {}
        for row in self.rows:
            machine = row.published.machine
            joined = "links" if machine.linked_gpus == machine.gpus else "network"
            groups.setdefault((row.published.group, machine.gpus, joined), []).append(row)
        return [
            {
                "group": group,
                "gpus": gpus,
                "joined_by": joined,
                "n": len(rows),
                **_errors(rows),
                "within_frac": float(np.mean([row.is_within for row in rows])),
                "scaled_median_pct": _median_abs([self.scaled_error_pct(row) for row in rows]),
            }
            for (group, gpus, joined), rows in sorted(groups.items())
        ]

    def summary(self) -> list[dict[str, Any]]:
        """Per group: errors of all, on one and several nodes and per generation; and order."""
        groups = dict.fromkeys(row.published.group for row in self.rows)
        return [
            _summary(name, [r for r in self.rows if r.published.group == name]) for name in groups
        ]

    def to_dict(self) -> dict[str, Any]:
        """As `docs/schemas/evaluation.published.json` has it."""
        return {
            "schema": SCHEMA,
            "about": HELD_OUT_NOTE,
            "summary": self.summary(),
            "by_gpus": self.by_gpus(),
            "rows": [row.to_dict(self.scaled_error_pct(row)) for row in self.rows],
            "left_out": [{"name": row.name, "reason": row.reason} for row in self.left_out],
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per configuration."""
        import pandas as pd

        return pd.DataFrame(self.to_dict()["rows"]).drop(columns="sources")

    def plot(self) -> Figure:
        """Rates over devices, published and predicted, per group."""
        from perfmodel.plot import rates_figure

        machines = [row.published.machine for row in self.rows]
        frame = {
            "group": [row.published.group for row in self.rows],
            "device": [
                machine.node.device.name + row.published.precisions_text
                for machine, row in zip(machines, self.rows, strict=True)
            ],
            "devices": [machine.gpus for machine in machines],
            "published": [row.measured for row in self.rows],
            "predicted": [row.samples_per_s for row in self.rows],
        }
        return rates_figure(frame, title="Training rates, published and predicted")


def evaluate_published(
    listed: Sequence[Published], left_out: Sequence[Excluded], *, begin: Begin = silent
) -> PublishedErrors:
    """Predictions of `listed`; what cannot be predicted joins `left_out` with the reason."""
    rows, left = [], list(left_out)
    for each in begun(listed, begin, lambda each: each.name):
        try:
            rows.append(PublishedError(each, *_samples_per_s(each)))
        except PerfmodelError as error:
            left.append(Excluded(f"{each.group}: {each.name}", str(error)))
    return PublishedErrors(tuple(rows), tuple(left))


def _samples_per_s(published: Published) -> tuple[float, float, float]:
    """The rate, and its interval."""
    workload = load_workload(published.workload).with_(**published.settings)
    result = predict(workload, hardware=[published.machine], batch=published.batch).results[0]
    rate, usual = published.batch * MICROSECONDS, result.step_us
    return rate / usual, rate / (result.high_us or usual), rate / (result.low_us or usual)


def _median_abs(errors: Sequence[float | None]) -> float | None:
    known = [abs(error) for error in errors if error is not None]
    return float(np.median(known)) if known else None


def _summary(group: str, rows: Sequence[PublishedError]) -> dict[str, Any]:
    generations: dict[str, list[PublishedError]] = {}
    for row in rows:
        generations.setdefault(row.published.machine.node.device.architecture or "", []).append(row)
    return {
        "group": group,
        "n": len(rows),
        **_errors(rows),
        "p90_pct": float(np.quantile([abs(row.error_pct) for row in rows], 0.9)),
        "worst_pct": max(abs(row.error_pct) for row in rows),
        "rank_correlation": _rank_correlation(rows),
        "held_out": _errors([row for row in rows if row.is_held_out]),
        "one_node": _errors([row for row in rows if row.published.machine.nodes == 1]),
        "several_nodes": _errors([row for row in rows if row.published.machine.nodes > 1]),
        "generations": {name: _errors(own) for name, own in generations.items()},
    }


def _errors(rows: Sequence[PublishedError]) -> dict[str, float | None]:
    """Median absolute error and bias in percent; None of no rows."""
    errors = [row.error_pct for row in rows]
    bias = float(np.mean(errors)) if errors else None
    return {"median_pct": _median_abs(errors), "bias_pct": bias}


def _rank_correlation(rows: Sequence[PublishedError]) -> float | None:
    """Spearman's, between predicted and measured; None of fewer than three."""
    if len(rows) < 3:
        return None
    from scipy.stats import spearmanr

    correlation = spearmanr([row.samples_per_s for row in rows], [row.measured for row in rows])
    return float(correlation.statistic)

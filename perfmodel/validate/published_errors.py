"""Published throughput against what is predicted from configurations alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.errors import PerfmodelError
from perfmodel.prediction import predict_workload
from perfmodel.validate.published import LeftOut, Published
from perfmodel.workload import load_workload

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SCHEMA = "perfmodel.evaluation.published/1"
MICROSECONDS = 1e6
SEEN = (("dlrm", "a100-sxm-80gb", 1, 8, 55_296),)
"""Configurations (group, device, nodes, GPUs of each, batch) that a constant was fitted to."""
ABOUT = (
    "Held out: every configuration but one node of 8 a100-sxm-80gb in dlrm, to whose median rate "
    "unmodelled_sample_bytes of dlrm-mlperf was fitted, and beyond_us of its evaluations to one of "
    "these runs; dlrm_dcnv2 has no fitted constant. Of v1.0 the software was another: see "
    "indices_ahead."
)


@dataclass(frozen=True)
class PublishedError:
    """One configuration: samples per second, published (the median) and predicted."""

    published: Published
    samples_per_s: float

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
        found = (self.published.group, node.device.name, nodes, node.gpus, self.published.batch)
        return found not in SEEN

    def to_dict(self) -> dict[str, Any]:
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
            "error_pct": self.error_pct,
            "held_out": self.is_held_out,
            "sources": list(self.published.names),
        }


@dataclass(frozen=True)
class PublishedErrors:
    """All configurations, and the rows that are not predicted."""

    rows: tuple[PublishedError, ...]
    left_out: tuple[LeftOut, ...]

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
            "about": ABOUT,
            "summary": self.summary(),
            "rows": [row.to_dict() for row in self.rows],
            "left_out": [{"name": row.name, "reason": row.reason} for row in self.left_out],
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per configuration."""
        import pandas as pd

        return pd.DataFrame([row.to_dict() for row in self.rows]).drop(columns="sources")

    def plot(self) -> Figure:
        """Rates over devices, published and predicted, per group."""
        from perfmodel.plot import rates_figure

        machines = [row.published.machine for row in self.rows]
        frame = {
            "group": [row.published.group for row in self.rows],
            "device": [
                machine.node.device.name + row.published.told
                for machine, row in zip(machines, self.rows, strict=True)
            ],
            "devices": [machine.gpus for machine in machines],
            "published": [row.measured for row in self.rows],
            "predicted": [row.samples_per_s for row in self.rows],
        }
        return rates_figure(frame, title="Training rates, published and predicted")


def evaluate_published(
    listed: Sequence[Published],
    left_out: Sequence[LeftOut],
    *,
    begin: Callable[[str, int], None] = lambda name, position: None,
) -> PublishedErrors:
    """Predictions of `listed`; what cannot be predicted joins `left_out` with the reason."""
    rows, left = [], list(left_out)
    for position, each in enumerate(listed):
        begin(each.name, position)
        try:
            rows.append(PublishedError(each, _samples_per_s(each)))
        except PerfmodelError as error:
            left.append(LeftOut(f"{each.group}: {each.name}", str(error)))
    return PublishedErrors(tuple(rows), tuple(left))


def _samples_per_s(published: Published) -> float:
    workload = load_workload(published.workload).with_(**published.settings)
    found = predict_workload(workload, hardware=[published.machine], batch=published.batch)
    return published.batch / found.results[0].step_us * MICROSECONDS


def _summary(group: str, rows: Sequence[PublishedError]) -> dict[str, Any]:
    one = [row for row in rows if row.published.machine.nodes == 1]
    several = [row for row in rows if row.published.machine.nodes > 1]
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
        "one_node": _errors(one),
        "several_nodes": _errors(several),
        "generations": {name: _errors(own) for name, own in generations.items()},
    }


def _errors(rows: Sequence[PublishedError]) -> dict[str, float | None]:
    """Median absolute error and bias in percent; None of no rows."""
    errors = [row.error_pct for row in rows]
    if not errors:
        return {"median_pct": None, "bias_pct": None}
    return {
        "median_pct": float(np.median(np.abs(errors))),
        "bias_pct": float(np.mean(errors)),
    }


def _rank_correlation(rows: Sequence[PublishedError]) -> float | None:
    """Spearman's, between predicted and measured; None of fewer than three."""
    if len(rows) < 3:
        return None
    from scipy.stats import spearmanr

    found = spearmanr([row.samples_per_s for row in rows], [row.measured for row in rows])
    return float(found.statistic)

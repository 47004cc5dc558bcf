"""What a comparison of designs says: a row for each, and the rows together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from perfmodel.designs import Deployment
from perfmodel.errors import UsageError, prefixed, said_dict
from perfmodel.hardware.reads import FigureRead
from perfmodel.prediction.running_cost import Economics
from perfmodel.prediction.types import Result
from perfmodel.timeline.offered import LoadLatency, Service, latency_under
from perfmodel.units import BYTES_PER_GB, US_PER_MS, US_PER_S

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


SCHEMA = "perfmodel.compare/1"
RATES = 40
"""Rates at which a figure of latencies is drawn, up to what the fastest design serves."""


@dataclass(frozen=True)
class DesignResult:
    """One design: its prediction, what it costs, its latency at the rate; or why it cannot be."""

    design: str
    deployment: Deployment | None = field(default=None, repr=False)
    result: Result | None = field(default=None, repr=False)
    economics: Economics | None = None
    load: LoadLatency | None = None
    notes: tuple[str, ...] = ()
    why_not: str = ""

    @property
    def is_feasible(self) -> bool:
        return self.result is not None

    @property
    def samples_per_s(self) -> float | None:
        """Of the whole machine."""
        if self.result is None or self.deployment is None:
            return None
        return self.deployment.batch / self.result.step_us * US_PER_S

    def latency(self, rate_per_s: float) -> LoadLatency | None:
        """From a sample's arrival to its batch's answer, of samples that come at a rate."""
        if self.result is None or self.deployment is None:
            return None
        step_us = self.result.step_us
        one = Service(step_us, self.result.latency_us or step_us)
        return latency_under(one, rate_per_s, queries_per_batch=self.deployment.batch)

    @property
    def memory_gb(self) -> dict[str, float]:
        """By tier: of the fullest rank (`hbm`), of the fullest node (others)."""
        tiers = ((self.result and self.result.memory) or {}).get("tiers", [])
        return {each["tier"]: each["total_bytes"] / BYTES_PER_GB for each in tiers}

    @property
    def bound_by(self) -> str | None:
        """What the most of the period is, along the cycle of dependencies that decides it."""
        shares = (self.result and self.result.bound_by) or {}
        return max(shares, key=lambda name: shares[name], default=None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON; figures of a design that cannot be are null."""
        result, bill = self.result, self.economics
        bound = None if result is None else result.bound_by
        tiers = ((result and result.memory) or {}).get("tiers", [])
        return {
            "design": self.design,
            "feasible": self.is_feasible,
            "why_not": self.why_not or None,
            "hardware": None if result is None else result.hardware,
            "step_us": None if result is None else result.step_us,
            "low_us": None if result is None else result.low_us,
            "high_us": None if result is None else result.high_us,
            "samples_per_s": self.samples_per_s,
            "latency": None if self.load is None else self.load.to_dict(),
            "power_w": None if bill is None else float(bill.power_w),
            "kwh_per_million_samples": (
                None if bill is None else float(bill.kwh_per_million_samples)
            ),
            "usd_per_million_samples": (
                None
                if bill is None or bill.usd_per_million_samples is None
                else float(bill.usd_per_million_samples)
            ),
            "memory": tiers,
            "bound_by": bound,
            "assumed": [] if result is None else [each.to_dict() for each in result.assumed],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Comparison:
    """Designs in the order that was asked for; the first that can be is what others are against."""

    source: Mapping[str, Any]
    rows: tuple[DesignResult, ...]

    @cached_property
    def reference(self) -> DesignResult | None:
        """The first design that can be."""
        return next((row for row in self.rows if row.is_feasible), None)

    def speed_up(self, row: DesignResult) -> float | None:
        """Samples per second over the reference's."""
        mine = row.samples_per_s
        base = None if self.reference is None else self.reference.samples_per_s
        return None if mine is None or not base else mine / base

    @property
    def assumed(self) -> tuple[FigureRead, ...]:
        """Figures that the predictions follow from and that are assumed or recalled."""
        every = (each for row in self.rows if row.result is not None for each in row.result.assumed)
        return tuple(dict.fromkeys(every))

    @property
    def warnings(self) -> list[str]:
        """Notes of all designs; those of several once, those of one under its name."""
        said = [(row.design, note) for row in self.rows for note in dict.fromkeys(row.notes)]
        count = Counter(note for _, note in said)
        texts = (note if count[note] > 1 else prefixed(design, note) for design, note in said)
        return list(dict.fromkeys(texts))

    def to_dict(self) -> dict[str, Any]:
        """As JSON (`docs/schemas/compare.json`)."""
        rows = [row.to_dict() | {"speed_up": self.speed_up(row)} for row in self.rows]
        return {"schema": SCHEMA, **self.source, "designs": rows} | said_dict(self.warnings)

    def to_frame(self) -> pd.DataFrame:
        """One row per design; memory as `hbm_gb`, `host_gb`, …."""
        import pandas as pd

        tiers = list(dict.fromkeys(tier for row in self.rows for tier in row.memory_gb))
        rows = []
        for row in self.rows:
            plain = row.to_dict()
            latency = plain.pop("latency") or {}
            for name in ("memory", "notes", "assumed"):
                plain.pop(name)
            plain["bound_by"] = row.bound_by
            plain["speed_up"] = self.speed_up(row)
            plain |= {f"latency_{name}": latency.get(name) for name in ("p50_us", "p99_us")}
            plain |= {f"{tier}_gb": row.memory_gb.get(tier) for tier in tiers}
            rows.append(plain)
        return pd.DataFrame(rows)

    def plot(self) -> Figure:
        """Step times with their intervals, memory by tier, energy and money, design by design."""
        from perfmodel.plot.comparison import comparison_figure

        source = self.source
        title = f"{source['workload']} on {source['hardware']}, batch {source['batch']:,}"
        return comparison_figure(self.to_frame(), title=title)

    def latency_figure(self) -> Figure:
        """The latency that 99 % of the samples have, over the rate at which samples come.

        Each design up to the rate that it cannot serve. Raises `UsageError` where no design can be.
        """
        from perfmodel.plot.curves import curves_figure

        feasible = [(row, row.samples_per_s) for row in self.rows if row.samples_per_s]
        if not feasible:
            raise UsageError("latency: no design is feasible, so there is no curve to draw")
        most = max(rate for _, rate in feasible)
        rows = [
            (rate_per_s / 1e6, load.p99_us / US_PER_MS, row.design)
            for row, _ in feasible
            for rate_per_s in (most * share / RATES for share in range(1, RATES))
            if (load := row.latency(rate_per_s)) and load.p99_us is not None
        ]
        columns = zip(*rows, strict=True) if rows else ((), (), ())
        frame = dict(zip(("rate", "p99", "design"), columns, strict=True))
        labels = ("million samples per second offered", "latency of 99 % (ms)")
        title = f"{self.source['workload']} on {self.source['hardware']}"
        return curves_figure(frame, "rate", "p99", "design", labels=labels, title=title, log="y")

    def _repr_html_(self) -> str:
        from perfmodel.plot import table_html

        frame = self.to_frame()
        return table_html(
            frame.itertuples(index=False), list(frame.columns), self.source["workload"]
        )

"""What a comparison of designs says: a row for each, and the rows together."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.answers import OWN_MODELS, made_by
from perfmodel.base.units import BYTES_PER_GB, US_PER_S, human_us
from perfmodel.designs import Deployment
from perfmodel.errors import prefixed, said_dict
from perfmodel.hardware.schema import FigureRead
from perfmodel.ops.families import CLASS_OF_FAMILY, OF_CORES
from perfmodel.prediction.explain import ModelExplainer
from perfmodel.prediction.intervals import ratio_interval
from perfmodel.prediction.running_cost import COSTS, Economics
from perfmodel.prediction.serving import LoadLatency
from perfmodel.prediction.types import Result

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


SCHEMA = "perfmodel.compare/1"
_WORDS = tomllib.loads(Path(__file__).with_name("bottlenecks.toml").read_text(encoding="utf-8"))
ACCELERATOR = "accelerator"
STEP = ("hardware", "step_us", "low_us", "high_us")
"""What JSON has of a result."""


@dataclass(frozen=True)
class Bottleneck:
    """The resource that decides a step, its share, and what the next lever would gain at most."""

    resource: str
    words: str
    share_frac: float
    lever: str
    lever_speed_up: float | None

    def sentence(self, *, with_gain: bool = True) -> str:
        """What a step waits for, and what would gain most, behind how long it takes."""
        text = f": {100 * self.share_frac:.1f} % of the critical path is {self.words}"
        if with_gain and self.lever_speed_up:
            text += f"; largest gain: {self.lever}, at most {self.lever_speed_up:.2f}x"
        return text


def bottleneck_of(result: Result) -> Bottleneck | None:
    """What decides a step, and what would help; None where no resource is known to."""
    if not (shares := result.bound_by):
        return None
    name = max(shares, key=shares.__getitem__)
    words, share_frac = _words(result, name)[0], shares[name] / result.step_us
    if name == "compute":
        names = [row["family"] for row in result.families]
        busy = [each for each in names if CLASS_OF_FAMILY.get(each) in OF_CORES]
        words = f"{words}, mostly {busy[0]}" if busy else words
    relieved_us = result.relieved_us or {}
    best = min(relieved_us, key=relieved_us.__getitem__, default=name)
    gain = result.step_us / relieved_us[best] if relieved_us else None
    return Bottleneck(name, words, share_frac, _words(result, best)[1], gain)


def _words(result: Result, name: str) -> tuple[str, str]:
    """What a step that a resource decides waits for, and what would halve its time there."""
    on_cpu = name == "host" and result.device is not None and result.device.target == "cpu"
    known = _WORDS["resource"].get("host of a CPU" if on_cpu else name)
    if name == ACCELERATOR and isinstance(result.explainer, ModelExplainer):
        known = _WORDS[ACCELERATOR].get(result.explainer.decides(ACCELERATOR))
    words, lever = known or (name, f"half the work of {name}")
    return words, lever


@dataclass(frozen=True)
class DesignResult:
    """One design: its prediction, what it costs, its latency at the rate; or why it cannot be.

    `without_gain`: what of it was left out because it is no faster, or cannot be. `step`: of a
    ladder, the last one that is taken.
    """

    design: str
    deployment: Deployment | None = field(default=None, repr=False)
    result: Result | None = field(default=None, repr=False)
    economics: Economics | None = None
    load: LoadLatency | None = None
    notes: tuple[str, ...] = ()
    without_gain: tuple[str, ...] = ()
    why_not: str = ""
    step: str = ""

    @property
    def title(self) -> str:
        """The design, and on a ladder the step."""
        return f"{self.design}: {self.step}" if self.step else self.design

    @property
    def is_feasible(self) -> bool:
        return self.result is not None

    @property
    def samples_per_s(self) -> float | None:
        """Of the whole machine."""
        if self.result is None or self.deployment is None:
            return None
        return self.deployment.batch / self.result.step_us * US_PER_S

    @property
    def memory_gb(self) -> dict[str, float]:
        """By tier: of the fullest rank (`hbm`), of the fullest node (others)."""
        return {each["tier"]: each["total_bytes"] / BYTES_PER_GB for each in self._tiers}

    @property
    def _tiers(self) -> list[dict[str, Any]]:
        memory = (self.result and self.result.memory) or {}
        return list(memory.get("tiers", ()))

    @property
    def bottleneck(self) -> Bottleneck | None:
        """What stops it and what would help; None for a design that cannot be."""
        return None if self.result is None else bottleneck_of(self.result)

    def to_dict(self) -> dict[str, Any]:
        """As JSON; figures of a design that cannot be are null."""
        result = self.result
        costs = {name: getattr(self.economics, name, None) for name in COSTS}
        return {
            "design": self.design,
            "feasible": self.is_feasible,
            "why_not": self.why_not or None,
            **{name: getattr(result, name, None) for name in STEP},
            "samples_per_s": self.samples_per_s,
            "latency": self.load and self.load.to_dict(),
            **{name: None if cost is None else float(cost) for name, cost in costs.items()},
            "memory": self._tiers,
            "bound_by": result and result.bound_by,
            "bottleneck": self.bottleneck and asdict(self.bottleneck),
            "assumed": [] if result is None else [each.to_dict() for each in result.assumed],
            "notes": list(self.notes),
        }


BASELINES = ("default", "own", "cpu_only", "hybrid", "gpu_only")
"""Designs that others are measured against; the fastest of them where none is asked for."""
_COLUMNS = ("design", "feasible", "why_not", *STEP, "samples_per_s", *COSTS, "speed_up")
"""Of the frame, those that the JSON has as they are."""
STEPS = ("step", "gain", "gain_over_first")
"""What a row of a ladder has as well."""
SAME = 1e-9
"""Two rates that differ by no more are of one step."""


def _speed_up(row: DesignResult, over: DesignResult | None) -> float | None:
    """Samples per second over those of another design; None where one cannot be."""
    mine, base = row.samples_per_s, None if over is None else over.samples_per_s
    return mine / base if mine and base else None


@dataclass(frozen=True)
class Comparison:
    """Designs in the order given; the first that can be is what others are against."""

    source: Mapping[str, Any]
    rows: tuple[DesignResult, ...]
    own_models: str = field(default_factory=OWN_MODELS.get, repr=False)

    @cached_property
    def reference(self) -> DesignResult | None:
        return next((row for row in self.rows if row.is_feasible), None)

    @cached_property
    def baseline(self) -> DesignResult | None:
        """The fastest of `BASELINES` that is there: a user's honest alternative."""
        known = [row for row in self.rows if row.design in BASELINES and row.samples_per_s]
        return max(known, key=lambda row: row.samples_per_s or 0.0, default=self.reference)

    def speed_up_interval(self, row: DesignResult) -> tuple[float, float] | None:
        """90 % interval of the speed-up over the baseline, narrower than the steps' on one device;
        None without one."""
        other, gain = self.baseline, _speed_up(row, self.baseline)
        if gain is None or other is None or row.result is None or other.result is None:
            return None
        ends = ratio_interval(other.result, row.result)
        batches = gain / (other.result.step_us / row.result.step_us)
        return ends and (ends[0] * batches, ends[1] * batches)

    @property
    def assumed(self) -> tuple[FigureRead, ...]:
        """Figures that the predictions follow from and that are assumed or recalled."""
        every = (each for row in self.rows if row.result is not None for each in row.result.assumed)
        return tuple(dict.fromkeys(every))

    @property
    def warnings(self) -> list[str]:
        """Notes of all designs; those of several once, those of one under its name."""
        notes = [(row.design, note) for row in self.rows for note in dict.fromkeys(row.notes)]
        count = Counter(note for _, note in notes)
        texts = (
            note if count[note] > 1 or note.startswith(f"{design}: ") else prefixed(design, note)
            for design, note in notes
        )
        return list(dict.fromkeys(texts))

    @property
    def without_gain(self) -> dict[str, str]:
        """Designs, no baselines, that take as long as one of these, to the reason."""
        found, named = {}, {row.design: row for row in self.rows}
        for row in self.rows:
            gains = {name: _speed_up(row, named.get(name)) for name in BASELINES}
            same = [name for name, gain in gains.items() if gain and abs(gain - 1.0) < SAME]
            why = row.bottleneck
            if same and why is not None and row.design not in BASELINES:
                waits = f"the bottleneck stays {why.words}"
                found[row.design] = f"same as {same[0]}: {'; '.join(row.without_gain) or waits}"
        return found

    def to_dict(self) -> dict[str, Any]:
        """As JSON (`docs/schemas/compare.json`)."""
        rows = list(map(self._row_dict, self.rows))
        baselines = [] if self.baseline is None else [self.baseline.design]
        found = {"baselines": baselines, "designs": rows}
        document = {"schema": SCHEMA, "made_by": made_by(self.own_models), **self.source, **found}
        return document | said_dict(self.warnings)

    def _row_dict(self, row: DesignResult) -> dict[str, Any]:
        over = self.baseline
        gains = {} if over is None else {over.design: _speed_up(row, over)}
        intervals = {name: self.speed_up_interval(row) for name in gains}
        own = {"speed_up": _speed_up(row, self.reference), "speed_ups": gains}
        return row.to_dict() | own | {"speed_up_intervals": intervals}

    def to_frame(self) -> pd.DataFrame:
        """One row per design; memory as `hbm_gb`, `host_gb`, …."""
        from perfmodel.base.frames import frame_of_records

        tiers = list(dict.fromkeys(tier for row in self.rows for tier in row.memory_gb))
        rows = []
        for row in self.rows:
            told, why, load = self._row_dict(row), row.bottleneck, row.load
            plain = {name: told[name] for name in (*_COLUMNS, *STEPS) if name in told}
            plain |= {"bound_by": why and why.resource}
            plain |= {name: getattr(why, name, None) for name in ("lever", "lever_speed_up")}
            for name, gain in told["speed_ups"].items():
                low, high = told["speed_up_intervals"][name] or (None, None)
                plain |= {f"over_{name}": gain, f"over_{name}_low": low, f"over_{name}_high": high}
            plain |= {f"latency_{name}": getattr(load, name, None) for name in ("p50_us", "p99_us")}
            plain |= {f"{tier}_gb": row.memory_gb.get(tier) for tier in tiers}
            rows.append(plain)
        return frame_of_records(rows)

    def plot(self) -> Figure:
        """A bar per design that can be, by what its step is bound by."""
        from perfmodel.plot import breakdown_figure

        source = self.source
        title = f"{source['workload']} on {source['hardware']}, batch {source['batch']:,}"
        results = {row.title: row.result for row in self.rows if row.result is not None}
        bars = {name: of.bound_by or {} for name, of in results.items()}
        return breakdown_figure(bars, title=title)

    def __repr__(self) -> str:
        steps = [(row.result.step_us, row.title) for row in self.rows if row.result is not None]
        step_us, design = min(steps, key=lambda step: step[0], default=(0.0, ""))
        told = f"fastest {design}, {human_us(step_us)}" if steps else "none possible"
        where = f"{self.source['workload']} on {self.source['hardware']}"
        return f"Comparison({where}: {len(self.rows)} designs, {told})"

    def _repr_html_(self) -> str:
        from perfmodel.plot import table_html

        frame = self.to_frame()
        return table_html(
            frame.itertuples(index=False), list(frame.columns), self.source["workload"]
        )


@dataclass(frozen=True)
class Ladder(Comparison):
    """The steps of each design one on top of the other, a design after the other."""

    def _row_dict(self, row: DesignResult) -> dict[str, Any]:
        own = [each for each in self.rows if each.design == row.design]
        before = [each for each in own[: own.index(row)] if each.is_feasible] or [row]
        gains = (row.step, _speed_up(row, before[-1]), _speed_up(row, before[0]))
        return super()._row_dict(row) | dict(zip(STEPS, gains, strict=True))

"""Whether predictions make sense under sweeps of machines, skew, shares and batches.

`python -m benchmarks.sense [--cases N] [--seed N]` draws workloads and machines (`sense_cases.py`)
and prints, per property and design, how many pairs of predictions were compared and how many break
the property. Every violation is printed on a line of its own.

more    more of any resource of the machine makes no step slower
skew    a gain does not fall as lookups become more skewed, nor does a step get longer
share   a gain does not fall as the share grows that the design speeds up
batch   twice the batch takes no more than twice the time, but for a bound
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from math import inf
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.sense_cases import TOGETHER, Case, cases, more_of
from perfmodel.designs import DESIGNS, Deployment, deployment_of
from perfmodel.designs.composed import DEFAULT, Composed, composed
from perfmodel.errors import PerfmodelError
from perfmodel.hardware import Cluster
from perfmodel.prediction.compare import fastest
from perfmodel.prediction.step import SWITCH
from perfmodel.prediction.types import Prediction

ALL = (DEFAULT, *(name for name in DESIGNS if name != "balanced_sequences"))
SLOWER = 1.005
"""More of a resource: how many times as long a step may take."""
FALLS = 0.995
"""A gain: what may be left of it."""
CLIFF = 1.25
"""Twice the batch: how many times as long a sample may take. Where a cache of the host or of the
device runs out a sample takes up to a quarter longer; nothing else of a machine has such steps."""
SHIFTS = 1.02
"""A step that waits for something else: by how much it may be longer, since kernels that end sooner
run beside other exchanges, and lose to these."""
SLOWER_EACH = "each multiprocessor is slower"
"""What an answer says where more multiprocessors share the same rates."""
LAID_OUT = "tables laid out by size"
"""What an answer says where device memory decides the layout."""


@dataclass(frozen=True)
class Pair:
    """Two predictions that should be in order: `ratio` of the second to the first, at most `most`.

    `told`: what the answer says, or the tables' layout, of why it is not.
    """

    check: str
    case: str
    design: str
    change: str
    ratio: float
    most: float
    told: str = ""

    @property
    def breaks(self) -> bool:
        return self.ratio > self.most


def step(
    name: str,
    start: Deployment,
    settings: Mapping[str, Any] | None = None,
) -> Prediction | None:
    """What `compare` says of the design `name`; None where it cannot be."""
    design = Composed(name, ()) if name == DEFAULT else composed(name, {name: settings or {}})
    try:
        return fastest(design, start)[1]
    except PerfmodelError:
        return None


def us(found: Prediction | None) -> float:
    """The step; infinite for a design that cannot be."""
    return inf if found is None else found.results[0].step_us


def on(machine: Cluster, start: Deployment) -> Deployment:
    """What is deployed in `start`, on another machine."""
    return deployment_of(start.workload, machine, start.batch, train=start.train)


def more(
    case: Case, designs: Iterable[str], generator: np.random.Generator, figures: int = 1000
) -> Iterator[Pair]:
    """At most `figures` of the machine, drawn by lot, each made more; what a step does not read of
    a machine cannot make it slower and is left out."""
    before = {name: step(name, case.start) for name in designs}
    for figure, factor, machine in more_of(case.start.machine, generator, figures):
        changed = {figure, *TOGETHER.get(figure, ())}
        start = on(machine, case.start)
        for name, old in before.items():
            if old is None or not changed & {read.figure for read in old.results[0].reads}:
                continue
            new = step(name, start)
            said = " ".join(map(str, (*old.warnings, *(new.warnings if new else ()))))
            told = next((text for text in (SLOWER_EACH, LAID_OUT) if text in said), "")
            change = f"{figure} x {factor:g}"
            yield Pair("more", case.name, name, change, us(new) / us(old), SLOWER, told)


ALPHAS = (0.2, 0.6, 0.9, 1.2, 1.5)
BASE = {"hotline": "hybrid", "fae": "hybrid", "smartnic": DEFAULT}
"""Over what a design gains; of those not here the step itself is looked at."""

ROWS = ("host memory", "storage", "nic")
"""Resources that skew relieves. A step that waits for another one cannot gain by it, while its
baseline does: the answer names what it waits for."""


UNEVEN = "tables in row-wise parts: the more skewed, the more of the lookups are the busiest rank's"
UNEVEN_MOST = 1.05
"""By how much, between neighbours of `ALPHAS`, they may lengthen a step that skew shortens."""


def _in_rows(start: Deployment) -> bool:
    return any("row_wise" in table.sharding for table in start.placement.tables)


def waits_for(found: Prediction | None) -> str:
    """The resource with the largest part of the step."""
    bounds = (found.results[0].bound_by if found else None) or {}
    return max(bounds, key=lambda name: bounds[name], default="")


def skew(case: Case, designs: Iterable[str]) -> Iterator[Pair]:
    """Tables of ever higher exponents."""
    for name in designs:
        found = []
        for alpha in ALPHAS:
            start = replace(case.start, workload=case.start.workload.with_(table__alpha=alpha))
            base_us = us(step(BASE[name], start)) if name in BASE else 1.0
            new = step(name, start)
            found.append((base_us / us(new), us(new), waits_for(new)))
        for (low, (less, slow_us, _)), (high, (gain, fast_us, by)) in pairwise(
            zip(ALPHAS, found, strict=True)
        ):
            if less > 0.0 and gain > 0.0:
                told = f"waits for {by}" if fast_us <= slow_us * SHIFTS and by not in ROWS else ""
                is_uneven = case.start.ranks > 1 and _in_rows(case.start)
                if is_uneven and less / gain <= UNEVEN_MOST:
                    told = told or UNEVEN
                change = f"{low} to {high}"
                yield Pair("skew", case.name, name, change, less / gain, 1 / FALLS, told)


SHARES: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "hotline": ("popular_frac", (0.05, 0.2, 0.4, 0.6, 0.8, 0.95)),
    "fae": ("popular_frac", (0.05, 0.2, 0.4, 0.6, 0.8, 0.95)),
    "software_cache": ("cache_frac", (0.02, 0.05, 0.1, 0.2, 0.5)),
    "software_memory": ("cache_gib", (0.25, 1.0, 4.0, 16.0)),
    "smartnic": ("cache_gib", (0.25, 0.5, 1.0, 2.0)),
    "recshard": ("hbm_gb", (0.5, 1.0, 2.0, 4.0)),
}
"""By design: the setting that says which share of lookups or samples it speeds up."""


def share(case: Case, designs: Iterable[str]) -> Iterator[Pair]:
    """Ever larger shares."""
    for name in designs:
        key, values = SHARES[name]
        answers = [step(name, case.start, {key: value}) for value in values]
        found = [(us(each), _moves(each)) for each in answers]
        for (low, (first, _)), (high, (second, told)) in pairwise(zip(values, found, strict=True)):
            if first < inf and second < inf:
                change = f"{key} {low:g} to {high:g}"
                yield Pair("share", case.name, name, change, second / first, 1 / FALLS, told)


def _moves(found: Prediction | None) -> str:
    """Whether the answer says that rows come and go between phases for a notable part of a step, or
    that no mini-batch of popular samples is run for that: a larger share of these needs more rows.
    """
    if any("hot_mib 0 in the place of" in note for note in (found.warnings if found else ())):
        return "popular mini-batches are no faster"
    bounds = (found.results[0].bound_by if found else None) or {}
    is_notable = bounds.get(SWITCH, 0.0) > 0.05 * us(found)
    return "waits for rows that move between phases" if is_notable else ""


BATCHES = tuple(2**power for power in range(6, 16))
"""Per rank."""


def batch(case: Case, designs: Iterable[str]) -> Iterator[Pair]:
    """Ever larger batches; the time of a sample."""
    for name in designs:
        found = []
        for size in BATCHES:
            start = deployment_of(
                case.start.workload,
                case.start.machine,
                size * case.start.ranks,
                train=case.start.train,
            )
            new = step(name, start)
            said = "" if new is None else " ".join(map(str, new.warnings))
            found.append((us(new) / size, LAID_OUT if LAID_OUT in said else ""))
        for at, ((less, _), (more_, told)) in enumerate(pairwise(found)):
            if less < inf and more_ < inf:
                change = f"{BATCHES[at]} to {BATCHES[at + 1]}"
                yield Pair("batch", case.name, name, change, more_ / less, CLIFF, told)


Check = Callable[[Case, np.random.Generator], Iterator[Pair]]
CHECKS: Mapping[str, Check] = {
    "more": lambda case, lot: more(case, _some(ALL, lot), lot, 12),
    "skew": lambda case, lot: skew(case, (*BASE, "software_cache", "software_memory")),
    "share": lambda case, lot: share(case, SHARES),
    "batch": lambda case, lot: batch(case, _some(ALL, lot)),
}


def _some(names: tuple[str, ...], lot: np.random.Generator, count: int = 4) -> list[str]:
    return sorted({DEFAULT, *lot.choice(names, count, replace=False).tolist()})


def found(checks: Iterable[str], count: int, seed: int) -> Iterator[Pair]:
    """All pairs of `count` cases."""
    for number, case in enumerate(islice(cases(seed), count)):
        for place, name in enumerate(CHECKS):
            if name in checks:
                yield from CHECKS[name](case, np.random.default_rng([seed, number, place]))


def main() -> None:
    """Print violations, then the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checks", nargs="*", default=list(CHECKS), help=f"of {', '.join(CHECKS)}")
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    pairs = []
    for pair in found(asked.checks, asked.cases, asked.seed):
        pairs.append(pair)
        if pair.breaks:
            print(
                *(getattr(pair, key) for key in ("check", "case", "design", "change")),
                sep="; ",
                end=f": {pair.ratio:.4f} {pair.told}\n",
                flush=True,
            )
    frame = pd.DataFrame(
        {
            "check": pair.check,
            "design": pair.design,
            "compared": 1,
            "told": int(pair.breaks and bool(pair.told)),
            "broken": int(pair.breaks and not pair.told),
        }
        for pair in pairs
    )
    print(frame.groupby(["check", "design"], sort=False).sum().to_string())


if __name__ == "__main__":
    main()

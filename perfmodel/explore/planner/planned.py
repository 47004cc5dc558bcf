"""From a deployment to a sharding plan, searched and verified; why it is shorter than another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from perfmodel.base.progress import Begin, silent
from perfmodel.base.provenance import made_by
from perfmodel.base.units import US_PER_MS
from perfmodel.designs import Deployment
from perfmodel.embedding import Placement
from perfmodel.errors import WorkloadError
from perfmodel.explore.planner.explain import reasons, shortage
from perfmodel.explore.planner.problem import Layout, Problem
from perfmodel.explore.planner.search import (
    layout_of,
    lower_bound,
    packed_best,
    placement_of,
    search,
    variations,
)
from perfmodel.explore.planner.surrogate import surrogate
from perfmodel.explore.planner.torchrec import with_formulas
from perfmodel.prediction import predict
from perfmodel.prediction.types import Result

if TYPE_CHECKING:
    import pandas as pd


SCHEMA = "perfmodel.plan/1"
CACHE_KEYS = ("name", "at", "capacity_bytes", "policy", "kept_by", "batches_ahead")
Estimator = Literal["perfmodel", "torchrec"]
ESTIMATORS: tuple[Estimator, ...] = ("perfmodel", "torchrec")
VERIFIED = 5
"""Layouts whose steps are scheduled in full."""
MAX_VARIATIONS, MIN_VARIATIONS, SCHEDULED_TABLES = 20, 3, 3000
"""Variations of the fastest layout that are scheduled: so many, fewer of many tables, as schedules
take longer."""
RESERVED_FRACS = (0.0, 0.03, 0.1, 0.2)
"""Of a device's memory, what searches keep free, one after the other, until the best layout's step
fits: what its activations take is known only then."""


@dataclass(frozen=True)
class Plan:
    """A placement of a deployment's tables, what its step takes, and why it is so.

    `surrogate_us` is of the plan by the search's own model, `best` the search's best layout by
    that. `tried`: every layout that was scheduled in full.
    """

    deployment: Deployment
    estimator: Estimator
    result: Result
    surrogate_us: float
    best: Layout
    imbalance: float
    parts: dict[str, float]
    """On the surrogate: `busiest_us` of lookups and updates, `exchange_us`, `summed_us`."""
    tables: tuple[dict[str, Any], ...]
    tried: tuple[dict[str, Any], ...]

    @property
    def placement(self) -> Placement:
        """Where each table is."""
        return self.deployment.placement

    @cached_property
    def bound_us(self) -> float:
        """What no layout goes below, on the surrogate; worked out when it is asked for."""
        return lower_bound(self.best.problem)

    @property
    def gap_frac(self) -> float:
        """How far above the lower bound the search's best layout is, on the surrogate."""
        return self.best.step_us / self.bound_us - 1 if self.bound_us else 0.0

    def to_frame(self) -> pd.DataFrame:
        """One row per table."""
        import pandas as pd

        return pd.DataFrame(list(self.tables))

    def to_dict(self) -> dict[str, Any]:
        """As JSON: `perfmodel.plan/1`, which `--plan` reads."""
        deployment = self.deployment
        return {
            "schema": SCHEMA,
            "made_by": made_by(),
            "workload": deployment.workload.name,
            "hardware": self.result.hardware,
            "batch": deployment.batch,
            "ranks": deployment.ranks,
            "estimator": self.estimator,
            "step_us": self.result.step_us,
            "low_us": self.result.low_us,
            "high_us": self.result.high_us,
            "surrogate_us": self.surrogate_us,
            "best_us": self.best.step_us,
            "bound_us": self.bound_us,
            "imbalance": self.imbalance,
            "parts": self.parts,
            "tried": list(self.tried),
            "caches": [
                {key: getattr(cache, key) for key in CACHE_KEYS} for cache in self.placement.caches
            ],
            "tables": list(self.tables),
            "assumed": [each.to_dict() for each in self.result.assumed],
        }

    def _repr_html_(self) -> str:
        from perfmodel.plot import table_html

        columns = ["table", "rows", "dim", "pooling", "sharding", "ranks", "tier", "hbm_gb", "why"]
        return table_html([dict(row) for row in self.tables], columns, repr(self))

    def __repr__(self) -> str:
        return (
            f"Plan({len(self.tables)} tables on {self.deployment.ranks} ranks, "
            f"{self.result.step_us:.1f} us)"
        )


def plan_deployment(
    deployment: Deployment,
    *,
    estimator: Estimator = "perfmodel",
    verified: int = VERIFIED,
    overheads: str | None = None,
    begin: Begin = silent,
) -> Plan:
    """The deployment with its tables laid out so that a step takes least time.

    `perfmodel`: by kernel and network models, overlapped; the best `verified` layouts of the
    search, the deployment's own if its tables are in device memory, and the best by TorchRec's
    formulas are scheduled in full, then variations of the fastest as long as there are tries left;
    the fastest is taken, so that the plan is never slower than those by the same prediction.
    `torchrec`: the best by TorchRec's formulas. `begin` gets the search, and each layout before it
    is scheduled.
    Raises `WorkloadError` where no layout fits, by how much at least.
    """
    if estimator not in ESTIMATORS:
        raise WorkloadError(f"estimator {estimator!r}: expected one of {', '.join(ESTIMATORS)}")
    own = estimator == "perfmodel"
    device = deployment.machine.node.device
    tried: list[_Trial] = []
    variations = _most_variations(deployment) if own else 0
    for reserved in RESERVED_FRACS:
        begin("searching", 0, 0)
        problem = surrogate(deployment, reserved_bytes=reserved * device.hbm_bytes, with_drives=own)
        layouts = search(problem) if own else _torchrec_layouts(problem, deployment)
        layouts = _distinct(deployment, layouts)[:verified]
        if not layouts:
            break
        if own:
            before = layout_of(problem, deployment.placement)
            layouts += [before] if before is not None else []
            layouts = _distinct(deployment, layouts + _torchrec_layouts(problem, deployment))
        trials = []
        for number, layout in enumerate(layouts):
            begin(f"scheduling layout {number + 1}", number, len(layouts) + variations)
            trials.append(_trial(deployment, layout, overheads))
        tried += [trial for trial in trials if trial is not None]
        if trials[0] is not None:
            break
    if tried:
        if own:
            tried += _variations_tried(deployment, tried, overheads, len(layouts), begin)
        return _plan(deployment, estimator, tried)
    if not layouts and not reserved:
        raise WorkloadError(shortage(problem, deployment))
    raise WorkloadError(
        f"{deployment.workload.name}: no layout leaves room for the step's activations on "
        f"{device.name}"
    )


@dataclass(frozen=True)
class _Trial:
    layout: Layout
    deployment: Deployment
    result: Result


def _torchrec_layouts(problem: Problem, deployment: Deployment) -> list[Layout]:
    """The best by TorchRec's formulas, which know no drives and no expansion memory."""
    if any(way.tier not in ("hbm", "host") for way in problem.ways):
        return []
    found = packed_best(with_formulas(problem, deployment))
    return [] if found is None else [replace(found, problem=problem)]


def _variations_tried(
    deployment: Deployment, found: list[_Trial], overheads: str | None, scheduled: int, begin: Begin
) -> Iterator[_Trial]:
    """Variations of the fastest layout so far, each scheduled in full, after `scheduled` others.

    The surrogate knows neither launches nor which kernels wait, so where it only proposes, the
    schedule decides; tries are counted, not timed, so that planning twice gives the same plan.
    """
    best = min(found, key=lambda each: each.result.step_us)
    most = left = _most_variations(deployment)
    seen = {each.deployment.placement for each in found}
    proposed = variations(best.layout)
    while left and (layout := next(proposed, None)) is not None:
        placement = placement_of(deployment, layout)
        if placement in seen:
            continue
        seen.add(placement)
        begin(f"scheduling variation {most - left + 1}", scheduled + most - left, scheduled + most)
        left -= 1
        trial = _trial(deployment, layout, overheads)
        if trial is None:
            continue
        yield trial
        if trial.result.step_us < best.result.step_us:
            best, proposed = trial, variations(layout)


def _most_variations(deployment: Deployment) -> int:
    tables = len(deployment.workload.tables)
    return min(MAX_VARIATIONS, max(MIN_VARIATIONS, SCHEDULED_TABLES // tables))


def _distinct(deployment: Deployment, layouts: list[Layout]) -> list[Layout]:
    """Of layouts that make one placement, the first."""
    found: dict[Placement, Layout] = {}
    for layout in layouts:
        found.setdefault(placement_of(deployment, layout), layout)
    return list(found.values())


def _trial(deployment: Deployment, layout: Layout, overheads: str | None) -> _Trial | None:
    placed = deployment.with_(placement=placement_of(deployment, layout))
    try:
        trial = predict(placed, overheads=overheads)
    except WorkloadError:
        return None
    return _Trial(layout, placed, trial.results[0])


def _plan(deployment: Deployment, estimator: Estimator, trial: list[_Trial]) -> Plan:
    best = min(trial, key=lambda each: each.result.step_us)
    tried = []
    for each in trial:
        names = [each.layout.problem.ways[at].sharding for at in each.layout.chosen.tolist()]
        taken = {"step_us": each.result.step_us, "surrogate_us": each.layout.step_us}
        tried.append({**taken, "sharding": dict(Counter(names))})
    return Plan(
        best.deployment,
        estimator,
        best.result,
        best.layout.step_us,
        min(
            (each.layout for each in trial if each.layout.problem is best.layout.problem),
            key=lambda layout: layout.step_us,
        ),
        best.layout.imbalance,
        best.layout.parts,
        tuple(reasons(best.layout, best.deployment)),
        tuple(tried),
    )


PARTS = {
    "busiest_us": "lookups and updates of the busiest rank",
    "exchange_us": "exchange of rows",
    "summed_us": "sums of replicated tables' gradients",
}
NAMED = 3
"""Tables that are named, at most."""


def differences(ours: Plan, theirs: Plan) -> Iterator[str]:
    """Lines, the largest difference first; parts are of the search's model, steps are not."""
    ratio = theirs.result.step_us / ours.result.step_us
    yield (
        f"{theirs.estimator}'s plan: {_ms(theirs.result.step_us)} per step, {ratio:.2f} times; "
        f"its busiest rank looks up {theirs.imbalance:.2f} times the mean"
    )
    more = {name: theirs.parts[name] - ours.parts[name] for name in PARTS}
    for name in sorted(more, key=lambda each: -abs(more[each])):
        if more[name]:
            yield f"{PARTS[name]}: {_ms(theirs.parts[name])} there, {_ms(ours.parts[name])} here"
    moved = [
        (theirs_row["added_us"] - ours_row["added_us"], ours_row, theirs_row)
        for ours_row, theirs_row in zip(ours.tables, theirs.tables, strict=True)
        if _way(ours_row) != _way(theirs_row)
    ]
    for gained, ours_row, theirs_row in sorted(moved, key=lambda each: -each[0])[:NAMED]:
        if gained > 0:
            yield (
                f"table {ours_row['table']} ({ours_row['rows']:,} rows of {ours_row['dim']}, "
                f"{ours_row['pooling']:g} lookups): {_way(theirs_row)} there, {_way(ours_row)} "
                f"here, which saves {gained:.3g} us"
            )
    if len(moved) > NAMED:
        yield f"{len(moved)} tables are laid out differently"


def _way(row: dict[str, object]) -> str:
    ranks = row["ranks"]
    assert isinstance(ranks, list)
    name = str(row["sharding"])
    name = name if len(ranks) == 1 else f"{name} x{len(ranks)}"
    return name if row["tier"] == "hbm" else f"{name} in {row['tier']} memory"


def _ms(value_us: float) -> str:
    return f"{value_us / US_PER_MS:.3f} ms"

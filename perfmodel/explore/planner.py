"""From a deployment to a sharding plan, searched and verified; why it is shorter than another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from perfmodel.base.answers import Begin, made_by, silent
from perfmodel.base.units import BYTES_PER_GB
from perfmodel.designs.deployment import Deployment
from perfmodel.designs.layouts.default import shortage
from perfmodel.designs.layouts.problem import HBM, Layout
from perfmodel.designs.layouts.search import layout_of, lower_bound, placement_of, search
from perfmodel.designs.layouts.surrogate import problems
from perfmodel.embedding import Placement
from perfmodel.errors import WorkloadError
from perfmodel.explore.torchrec import SCHEMA
from perfmodel.prediction import predict
from perfmodel.prediction.step import fits, in_designs_software, steps_of
from perfmodel.prediction.types import INTERVAL, Result
from perfmodel.workload.step import TIERED, rank_classes

if TYPE_CHECKING:
    import pandas as pd


VERIFIED = 5
"""Layouts whose steps are scheduled in full."""


class _Trial(NamedTuple):
    layout: Layout
    deployment: Deployment
    result: Result


@dataclass(frozen=True)
class Plan:
    """A placement of a deployment's tables, what its step takes, and why it is so.

    `layout` is the plan in the search's own model, `best` the search's best layout by that.
    `tried`: every layout that was scheduled in full. `before` is the step of the layout that it
    started from, in the same software; None where memory does not hold it. `own` is what the
    workload takes by itself, in its own software; None where that is the same software.
    """

    deployment: Deployment
    result: Result
    layout: Layout
    best: Layout
    tables: tuple[dict[str, Any], ...]
    tried: tuple[dict[str, Any], ...]
    before: Result | None = None
    own: Result | None = None

    @property
    def memory(self) -> dict[str, float]:
        """Bytes on the fullest rank's device, in the mean, and left on the fullest."""
        use, held = (self.result.memory or {})["tiers"][0], self.layout.held[:, HBM]
        fullest = use["total_bytes"]
        mean = fullest - float(held.max() - held.mean())
        left = use["capacity_bytes"] - fullest
        return {"fullest_bytes": fullest, "mean_bytes": mean, "left_bytes": left}

    @property
    def placement(self) -> Placement:
        return self.deployment.placement

    @cached_property
    def bound_us(self) -> float:
        """What no layout goes below, on the surrogate; worked out when it is asked for."""
        return lower_bound(self.best.problem)

    @property
    def imbalance(self) -> float:
        """Elements of rows that the busiest rank looks up over the mean."""
        case, tables = self.deployment, self.deployment.workload.tables
        about = case.ranks, case.machine.linked_gpus, case.placement, case.batch
        classes = rank_classes(case.workload, *about)
        pairs = zip(tables, case.placement.tables, strict=True)
        own = sum(t.pooling * t.dim for t, it in pairs if it.sharding == "data_parallel")
        busiest = max(each.looked_up for each in classes) + own / case.ranks
        return busiest * case.ranks / sum(table.pooling * table.dim for table in tables)

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
            **{key: getattr(self.result, key) for key in INTERVAL},
            "surrogate_us": self.layout.step_us,
            "best_us": self.best.step_us,
            "bound_us": self.bound_us,
            "software": TIERED,
            "before_us": self.before and self.before.step_us,
            "own_software": self.deployment.workload.implementation.name,
            "own_us": self.own and self.own.step_us,
            "memory": self.memory,
            "imbalance": self.imbalance,
            "parts": self.layout.parts,
            "tried": list(self.tried),
            "caches": list(map(asdict, self.placement.caches)),
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
    deployment: Deployment, *, verified: int = VERIFIED, begin: Begin = silent
) -> Plan:
    """The deployment with its tables laid out so that a step takes least time.

    The best `verified` layouts of the search, and the deployment's own if its tables are in device
    memory, are scheduled in full; the fastest is taken, so that the plan is never slower than those
    by the same prediction. `begin` gets the search, and each layout before it is scheduled.
    Raises `WorkloadError` where no layout fits, by how much, and what would do.
    """
    placed: dict[Placement, Layout] = {}
    trials: list[_Trial] = []
    for problem in problems(deployment):
        begin("searching", 0, 0)
        placed = {}
        for layout in search(problem):
            placed.setdefault(placement_of(deployment, layout), layout)
        placed = dict([*placed.items()][:verified])
        if not placed:
            break
        if (before := layout_of(problem, deployment.placement)) is not None:
            placed.setdefault(placement_of(deployment, before), before)
        for number, (placement, layout) in enumerate(placed.items()):
            begin(f"scheduling layout {number + 1}", number, len(placed))
            case = deployment.with_(placement=placement)
            with suppress(WorkloadError):  # its step does not fit
                result = predict(case).results[0]
                trials.append(_Trial(layout, case, result))
        if any(each.deployment.placement == next(iter(placed)) for each in trials):
            break
    if not trials:
        raise WorkloadError(shortage(deployment))
    best = min(trials, key=lambda each: each.result.step_us)
    rows = []
    for each in trials:
        mix = Counter(each.layout.problem.ways[at].sharding for at in each.layout.chosen.tolist())
        taken = {"step_us": each.result.step_us, "surrogate_us": each.layout.step_us}
        rows.append({**taken, "sharding": dict(mix)})
    own = replace(deployment, in_own_software=True)
    ((_, step),) = steps_of(own)
    has_own = fits(step) and not in_designs_software(own.workload)
    alike = (each.layout for each in trials if each.layout.problem is best.layout.problem)
    return Plan(
        best.deployment,
        best.result,
        best.layout,
        min(alike, key=lambda layout: layout.step_us),
        tuple(reasons(best.layout, best.deployment)),
        tuple(rows),
        predict(deployment).results[0] if deployment.fits else None,
        predict(own).results[0] if has_own else None,
    )


TERMS = ("lookups", "exchange", "sums of gradients", "balance", "memory")
"""Of an addition: rows looked up and updated; pooled rows exchanged; gradients of replicas; one
shard larger than what a rank has on average; bytes beyond those of a device."""
NEVER = 1e15
TIERS = {"hbm": "", "host": " in host memory"}


def reasons(layout: Layout, deployment: Deployment) -> Iterator[dict[str, Any]]:
    """Per table of the deployment what was chosen, its share of a step of which all ranks have an
    even part, and the runner-up."""
    problem, parts = layout.problem, layout.problem.parts / layout.problem.ranks
    work_us, exchange_us, summed_us, replicas_us = layout.parts.values()
    mean = float(layout.held[:, 0].mean())
    step_us = layout.step_us
    # By how much the step gets longer with one more microsecond of exchange; and whether it waits
    # for communication, not for kernels.
    more = (exchange_us + 1.0, summed_us), (exchange_us, summed_us + 1.0)
    shown, shown_sums = (problem.step_us(work_us, *it, replicas_us) - step_us for it in more)
    terms = np.column_stack(
        [
            problem.work_us * parts,
            shown * (problem.sent_us.sum(axis=0) * parts + problem.shared_us),
            shown_sums * problem.summed_us,
            np.maximum(problem.work_us - mean, 0.0),
            np.where(problem.too_large, NEVER, 0.0),
        ]
    )
    total = terms.sum(axis=1)
    for number, own in enumerate(problem.of_table):
        chosen, table = int(layout.chosen[number]), deployment.workload.tables[number]
        way, placed = problem.ways[chosen], deployment.placement.tables[number]
        row: dict[str, Any] = {
            "table": number,
            "rows": table.rows,
            "dim": table.dim,
            "pooling": table.pooling,
            "sharding": placed.sharding,
            "ranks": list(placed.ranks),
            "tier": placed.tier,
            "dtype": placed.dtype,
            "hot_rows": placed.hot_rows,
            "caches": list(placed.caches),
            "hbm_gb": way.bytes_in("hbm") * way.parts / BYTES_PER_GB,
            "work_us": float(problem.work_us[chosen] * way.parts),
            "added_us": float(total[chosen]),
        }
        if len(others := own[own != chosen]):
            best = int(others[total[others].argmin()])
            other, more = problem.ways[best], terms[best] - terms[chosen]
            name = other.sharding if other.parts == 1 else f"{other.sharding} x{other.parts}"
            name += TIERS[other.tier]
            if other.cached_frac:
                name += f" ({100 * other.cached_frac:.0f} % cached)"
            us, largest = float(more.sum()), TERMS[int(more.argmax())]
            why = f"{name} would add {us:.3g} us, most of it {largest}"
            if us >= NEVER:
                why = f"{name} does not fit"
            elif us < 0:
                why = f"{name} would save {-us:.3g} us by itself, but not beside the other tables"
            row |= {"instead": name, "instead_us": us if us < NEVER else None, "why": why}
        yield row

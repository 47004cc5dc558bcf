"""What a sweep wants of each point, and which way is better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.economics import Activity, Running
from perfmodel.errors import UsageError
from perfmodel.trace.columns import Floats


@dataclass(frozen=True)
class Objective:
    """A column of the results."""

    text: str
    more_is_better: bool = False
    needs_samples: bool = True


STEP, RATE, COST, ENERGY = "step_us", "samples_per_s", "cost_usd_per_million", "energy_j_per_sample"
OBJECTIVES = {
    STEP: Objective("step (us)", needs_samples=False),
    RATE: Objective("samples per second", more_is_better=True),
    COST: Objective("US dollars per million samples"),
    ENERGY: Objective("energy per sample (J)"),
    "power_w": Objective("power (W)", needs_samples=False),
}
ALIASES = {"energy": ENERGY, "cost": COST}


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """The objectives of those names, each once. Raises `UsageError` for an unknown one."""
    found = [ALIASES.get(name, name) for name in names]
    for name in found:
        if name not in OBJECTIVES:
            known = ", ".join([*OBJECTIVES, *ALIASES])
            raise UsageError(f"objective {name!r}: expected one of {known}")
    return tuple(dict.fromkeys(found))


def figures(
    names: Sequence[str],
    step_us: Floats,
    samples: float | None,
    running: Running,
    activity: Activity,
) -> dict[str, Floats]:
    """`names` of one machine at steps of `samples` each; a cost nobody knows a price for is NaN."""
    found = {STEP: step_us}
    found["power_w"] = np.broadcast_to(running.power_w(activity), step_us.shape)
    if samples is not None:
        rate = samples / step_us * 1e6
        told = running.economics(rate, activity)
        usd = told.usd_per_million_samples
        unknown = np.full(len(rate), np.nan)
        found |= {RATE: rate, COST: unknown if usd is None else np.asarray(usd, np.float64)}
        found[ENERGY] = np.asarray(told.energy_j_per_sample, np.float64)
    return {name: np.asarray(found[name], np.float64) for name in names}

"""Parameters of one CPU family from measured rows: robust least squares on relative errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.cpu.call import ALONE, Call, Parameter, values_of
from perfmodel.cost.cpu.family import CpuFamily
from perfmodel.hardware import Device
from perfmodel.ops.rows import Rows

Tables = dict[str, dict[str, float]]
"""Section (the family, or an op of it) to name to value."""

SWEEPS = 4
MIN_ROWS_PER_OP = 6
PRIOR = 0.05
"""Pull of the defaults: a parameter off by a factor e counts as much as one row off by 5 %."""
SOFT = 0.15
"""Residuals (of the logarithm) beyond which a row counts less."""


@dataclass(frozen=True)
class Samples:
    """Rows of one family with their measured durations and weights."""

    rows: Rows
    duration_us: Floats
    weight: Floats

    def take(self, index: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Samples:
        """The samples at `index`."""
        return Samples(self.rows.take(index), self.duration_us[index], self.weight[index])


@dataclass(frozen=True)
class _Section:
    """One op's rows, prepared once, and its log durations."""

    call: Call
    log_us: Floats
    root_weight: Floats

    def residuals(self, model: CpuFamily, values: Mapping[str, float]) -> Floats:
        terms = model.breakdown(replace(self.call, values=values))
        return self.root_weight * (np.log(sum(terms.values())) - self.log_us)


def calibrate(model: CpuFamily, samples: Samples, device: Device) -> Tables:
    """The parameters of `model` on `device` that come closest to `samples`.

    The family's shared parameters and each op's own are improved in turns; ops with few rows
    keep the family's values. `samples` are all of ops called alone, or none is.
    """
    sections: dict[str, _Section] = {}
    alone = False
    for index, call in model.calls(samples.rows, device):
        alone = call.alone
        sections[call.section] = _Section(
            call, np.log(samples.duration_us[index]), np.sqrt(samples.weight[index])
        )
    fitted = model.fitted
    shared = [each for each in fitted if not each.per_op]
    own = [each for each in fitted if each.per_op]
    tables: Tables = {}
    _improve(model, fitted, sections, tables, model.family, device)
    rich = [name for name, it in sections.items() if len(it.call) >= MIN_ROWS_PER_OP]
    for _ in range(SWEEPS):
        for name in rich:
            _improve(model, own, {name: sections[name]}, tables, name, device)
        _improve(model, shared, sections, tables, model.family, device)
    return {f"{ALONE}{name}" if alone else name: values for name, values in tables.items()}


def _improve(
    model: CpuFamily,
    chosen: Sequence[Parameter],
    sections: Mapping[str, _Section],
    tables: Tables,
    target: str,
    device: Device,
) -> None:
    """Fit `chosen` to `sections`, the others as they are, into the table `target`."""
    from scipy.optimize import least_squares

    device = replace(device, calibration=tables)
    current = {name: values_of(model.family, name, model.parameters, device) for name in sections}
    first = values_of(model.family, target, model.parameters, device)
    low = np.log([each.low for each in chosen])
    high = np.log([each.high for each in chosen])
    start = np.clip(np.log([first[each.name] for each in chosen]), low + 1e-6, high - 1e-6)
    usual = np.log([each.default_on(device) for each in chosen])
    names = [each.name for each in chosen]

    def residuals(logs: Floats) -> Floats:
        changed = dict(zip(names, np.exp(logs).tolist(), strict=True))
        parts = [it.residuals(model, current[name] | changed) for name, it in sections.items()]
        return np.concatenate([*parts, PRIOR * (logs - usual)])

    solution = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=SOFT, max_nfev=60
    )
    tables.setdefault(target, {})
    tables[target] |= dict(zip(names, np.exp(solution.x).tolist(), strict=True))

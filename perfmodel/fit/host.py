"""What whole steps say that single operators do not: the host's work, what watching cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.fit.calibrate import Tables
from perfmodel.hardware import Device
from perfmodel.kernels.cpu.call import WATCHED
from perfmodel.kernels.cpu.family import CpuFamily
from perfmodel.kernels.cpu.parameters import section_of
from perfmodel.kernels.model import KERNELS
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS, Floats
from perfmodel.ops.vocabulary.host import CALL, HOST, NODE, STEP, UPDATE, VIEWS

OVERHEAD = "overhead"
COUNTED = (CALL, NODE, UPDATE, STEP)
SOFT = 0.05
PRIOR_RATIO, PRIOR_EACH = 1.0, 0.1
"""Pull towards 1 of a ratio, and towards the usual value of a host cost, per factor of e."""
USUAL_US = {CALL: 1.0, NODE: 2.0, UPDATE: 3.0, STEP: 60.0}


@dataclass(frozen=True)
class StepParts:
    """Per configuration (row) and part (column): predicted time, or a count of host work."""

    names: tuple[str, ...]
    values: NDArray[np.float64]


def parts_of(steps: Sequence[Rows], device: Device) -> StepParts:
    """What each step is made of: overhead of operators, their work by section, host work."""
    sums: list[dict[str, float]] = []
    for rows in steps:
        found: dict[str, float] = {}
        watched = replace(rows, timing=(WATCHED,) * len(rows))
        for family, index in _families(watched).items():
            model = KERNELS[f"cpu/{family}/heuristic"]
            assert isinstance(model, CpuFamily)
            for _, call in model.calls(watched.take(index), device):
                if call.op in COUNTED:
                    counted = float((call.dims["count"] * call.crowding()).sum())
                    found[call.op] = found.get(call.op, 0.0) + counted
                    continue
                for name, term in model.breakdown(call).items():
                    part = (
                        OVERHEAD
                        if name == OVERHEAD or family == HOST
                        else _part(model.family, call.section)
                    )
                    found[part] = found.get(part, 0.0) + float(term.sum())
        sums.append(found)
    names = tuple(sorted({name for found in sums for name in found}))
    return StepParts(names, np.array([[it.get(name, 0.0) for name in names] for it in sums]))


def fit_host(parts: StepParts, step_us: Floats) -> dict[str, float]:
    """A factor for each part: microseconds each of host work, a ratio of everything else."""
    from scipy.optimize import least_squares

    usual = np.log([USUAL_US.get(name, 1.0) for name in parts.names])
    pull = np.array([PRIOR_EACH if name in COUNTED else PRIOR_RATIO for name in parts.names])
    limit = np.array([4.0 if name in (*COUNTED, OVERHEAD) else np.log(3.0) for name in parts.names])
    if OVERHEAD in parts.names:
        pull[parts.names.index(OVERHEAD)] = PRIOR_EACH

    def residuals(logs: Floats) -> Floats:
        predicted = parts.values @ np.exp(logs)
        return np.concatenate([np.log(predicted / step_us), pull * (logs - usual)])

    found = least_squares(
        residuals,
        usual,
        bounds=(usual - limit - 1e-9, usual + limit + 1e-9),
        loss="soft_l1",
        f_scale=SOFT,
    )
    return dict(zip(parts.names, np.exp(found.x).tolist(), strict=True))


def with_host(tables: Tables, factors: Mapping[str, float]) -> Tables:
    """`tables` with the factors in their places."""
    found = {section: dict(values) for section, values in tables.items()}
    for name, factor in factors.items():
        if name in COUNTED:
            found.setdefault(section_of(HOST, name), {})["each_us"] = factor
        elif name == OVERHEAD:
            for family in sorted({OPS[op].family for op in OPS} & set(found)):
                found[family]["overhead_ratio"] = _within(factor, 0.05, 3.0)
            for view in VIEWS:
                section = section_of(HOST, view)
                found.setdefault(section, {})["work_ratio"] = _within(factor, 0.3, 3.0)
        else:
            found.setdefault(name, {})["work_ratio"] = _within(factor, 0.3, 3.0)
    return found


def _part(family: str, section: str) -> str:
    """Embedding ops differ in what surrounds them; other families go as a whole."""
    return section if family == "embedding" else family


def _families(rows: Rows) -> dict[str, NDArray[np.int64]]:
    names = np.array([OPS[op].family for op in rows.op], object)
    return {name: np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())}


def _within(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)

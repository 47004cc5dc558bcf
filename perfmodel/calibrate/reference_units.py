"""The tables of a fit as if all had been measured at one speed of the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.calibrate.cpu_step import steps_us
from perfmodel.calibrate.device_data import IN_STEP, DeviceData, Measured, joined
from perfmodel.calibrate.drift import (
    level_of,
    ratio_of,
    shares_of,
    unlike,
    without_reference,
)
from perfmodel.calibrate.step_table import MeasuredStep, steps_of
from perfmodel.collect.records import PARTS
from perfmodel.cost.contract import KERNELS
from perfmodel.cost.cpu.drift import LEVELS, SPREAD, Drift
from perfmodel.cost.cpu.family import CpuFamily
from perfmodel.hardware import Device


@dataclass(frozen=True)
class Referenced:
    """Rows and steps at one speed; what the device's file keeps of the reference; remarks."""

    measured: Measured
    steps: list[MeasuredStep]
    reference: Mapping[str, float]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Table:
    """The reference's readings beside each row of a table, and what predicts its rows.

    Rounds over all configurations of steps leave one reading to all rows; kernels, which are
    measured block after block, have each their own.
    """

    run: Path
    readings: Floats
    times: Callable[[Device], Floats]
    in_rounds: bool

    def ratio(self, level: Floats, base: Device) -> Floats:
        """By how much longer each row took than it would have at `level`."""
        usual = level_of(self.readings)
        if usual is None:
            return np.ones(len(self.readings))
        readings = np.tile(usual, (len(self.readings), 1)) if self.in_rounds else self.readings
        return ratio_of(shares_of(self.times, base), np.log(readings / level))


def in_reference_units(data: DeviceData, base: Device) -> Referenced:
    """`data` with what changed on the machine meanwhile taken out, as far as its reference says.

    The level is that of the first table that holds a reference; without any, nothing is changed.
    """
    lists = [
        steps_of(frame, run.name) for frame, run in zip(data.steps, data.step_runs, strict=True)
    ]
    tables = [
        *(
            _Table(run, it.reference_us, partial(row_times_us, it), IN_STEP in it.kind)
            for run, it in zip(data.measured_runs, data.measured, strict=True)
        ),
        *(
            _Table(run, np.array([it.reference_us for it in steps]), partial(steps_us, steps), True)
            for run, steps in zip(data.step_runs, lists, strict=True)
        ),
    ]
    level = next((it for each in tables if (it := level_of(each.readings)) is not None), None)
    silent = dict.fromkeys(it.run.name for it in tables if level_of(it.readings) is None)
    notes = [without_reference(list(silent))] if silent else []
    if level is None:
        return Referenced(data.all, [it for steps in lists for it in steps], {}, tuple(notes))
    kept = dict(zip(LEVELS, level.tolist(), strict=True))
    logs = {
        it.run: np.log(it.readings / level) for it in tables if level_of(it.readings) is not None
    }
    spread = max(unlike(each) for each in logs.values())
    first = next(iter(logs)).name
    for run, each in logs.items():
        usual = np.nanmedian(each, axis=0)
        drift = Drift(dict(zip(PARTS, np.exp(usual), strict=True)), unlike(each - usual))
        notes += [f"{run.name}: the machine {drift} as for {first}"] if run.name != first else []
    notes.append(
        f"the reference work moved by {100 * np.expm1(spread):.1f} % while it was calibrated"
    )
    longer = [it.ratio(level, base) for it in tables]
    rows = zip(data.measured, longer, strict=False)
    timed = zip(lists, longer[len(data.measured) :], strict=True)
    return Referenced(
        joined([replace(it, duration_us=it.duration_us / ratio) for it, ratio in rows]),
        [
            replace(step, step_us=step.step_us / by)
            for steps, ratio in timed
            for step, by in zip(steps, ratio.tolist(), strict=True)
        ],
        kept | {SPREAD: float(np.expm1(spread))},
        tuple(notes),
    )


def row_times_us(measured: Measured, device: Device) -> Floats:
    """What the CPU models say of every row; 1 where there is none for its family."""
    times_us = np.ones(len(measured))
    for family, index in measured.families().items():
        model = KERNELS.get(f"cpu/{family}/heuristic")
        if isinstance(model, CpuFamily):
            times_us[index] = model.estimate(measured.rows.take(index), device).duration_us
    return times_us

"""A CPU that changed its speed: its parts, its steps, its intervals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cost.kernels.cpu_machine import ALONE, MACHINE

from perfmodel.collect.records import PARTS
from perfmodel.cost.contract import KERNELS
from perfmodel.cost.cpu.drift import Drift, drift_since, drifted, drifted_values, interval_ratio
from perfmodel.cost.cpu.family import CpuFamily
from perfmodel.cost.durations import durations_of
from perfmodel.ops.rows import Rows

THEN = {"compute_us": 200.0, "cache_us": 100.0, "memory_us": 800.0, "python_us": 300.0}
TIMES = ("_us", "_ns")
SAME = dict.fromkeys(PARTS, 1.0)


def _rows() -> Rows:
    dims = {"b": 1, "m": 300, "n": 300, "k": 300}
    elements = {"rows": 2000, "cols": 2000}
    kinds = {"dtype": "fp32", "direction": "fwd", "timing": ALONE}
    return Rows.of([{"op": "mm", **dims, **kinds}, {"op": "relu", **elements, **kinds}])


def _times(**changed: float) -> np.ndarray:
    device = drifted(MACHINE, Drift(SAME | changed, 0.0))
    return durations_of(_rows(), device).duration_us / durations_of(_rows(), MACHINE).duration_us


def test_a_machine_that_is_slower_in_all_parts_takes_that_much_longer() -> None:
    assert _times(**dict.fromkeys(PARTS, 1.3)) == pytest.approx([1.3, 1.3])


def test_a_slower_part_slows_what_is_made_of_it() -> None:
    product, stream = _times(memory=2.0)
    assert product < 1.2 < stream
    product, stream = _times(compute=2.0)
    assert stream < 1.2 < product


def test_every_time_and_rate_of_the_models_has_a_part() -> None:
    """What no drift reaches is a share, a ratio or a size."""
    slow = drifted(MACHINE, Drift(dict.fromkeys(PARTS, 2.0), 0.0))
    models = [KERNELS[name] for name in KERNELS if name.startswith("cpu/")]
    names = {each.name for it in models if isinstance(it, CpuFamily) for each in it.parameters}
    assert len(names) > 40
    for name in names:
        value = drifted_values({name: 1.0}, slow)[name]
        assert value == (0.5 if name.endswith("_s") else 2.0 if name[-3:] in TIMES else 1.0), name


def test_the_reference_then_and_now() -> None:
    machine = replace(MACHINE, calibration={"reference": THEN})
    now = {"compute": 200.0, "cache": 100.0, "memory": 1200.0, "python": 300.0}
    found = drift_since(machine, now, 0.02)
    assert found is not None
    assert found.ratios == pytest.approx(SAME | {"memory": 1.5})
    assert found.ratio == pytest.approx(1.5**0.25)
    assert found.changed == ["memory"]
    assert str(found).endswith("memory 1.50, python 1.00; changed: memory; spread 2 %)")
    assert drift_since(MACHINE, now, 0.02) is None


def test_intervals_are_wider_by_what_the_reference_saw() -> None:
    assert interval_ratio(MACHINE, 0.2) == pytest.approx(1.2)
    during = replace(MACHINE, calibration={"reference": {**THEN, "spread_frac": 0.1}})
    assert 1.2 < interval_ratio(during, 0.2) < 1.4
    since = drifted(during, Drift(SAME, 0.0))
    assert interval_ratio(since, 0.2) == pytest.approx(1.2)

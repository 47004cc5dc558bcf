"""Which axes the spread of an objective comes from: Sobol indices, by SALib."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from perfmodel.errors import UsageError
from perfmodel.explore.around import base_of, bounds_of, figures_at, is_number
from perfmodel.explore.spec import Spec


def sobol(spec: Spec, samples: int, seed: int = 0) -> list[dict[str, Any]]:
    """Per objective and numeric axis: share of the variance by the axis alone (`first`) and with
    all that it does together with others (`total`), each with a 95 % half-width.

    Axes vary evenly between their ends; others stay at the base. It takes `samples` (a power of
    two) times the number of axes plus 2 points. Raises `UsageError` where SALib is not installed.

    Source: Saltelli et al. 2010, as SALib has them.
    """
    try:
        from SALib.analyze import sobol as analysis
        from SALib.sample import sobol as drawn
    except ImportError:
        raise UsageError("--sobol needs SALib: pip install 'perfmodel[sobol]'") from None
    if samples < 2 or samples & (samples - 1):
        raise UsageError(f"--sobol {samples}: expected a power of two, at least 2")
    base = base_of(spec)
    axes = [axis for axis in spec.space.axes if is_number(base[axis])]
    bounds = {axis: bounds_of(spec, axis) for axis in axes}
    axes = [axis for axis in axes if bounds[axis][0] < bounds[axis][1]]
    if len(axes) < 2:
        raise UsageError(f"{spec.where}: Sobol indices need two axes with numbers")
    problem = {
        "num_vars": len(axes),
        "names": axes,
        "bounds": [list(bounds[axis][:2]) for axis in axes],
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        points = drawn.sample(problem, samples, calc_second_order=False, seed=seed)
        rows = [
            base
            | {
                axis: round(value) if bounds[axis][2] else value
                for axis, value in zip(axes, point, strict=True)
            }
            for point in points.tolist()
        ]
        found = []
        for name, values in figures_at(spec, rows).items():
            if np.ptp(values) == 0 or np.isnan(values).any():
                raise UsageError(f"{name} does not vary, or is not known: it has no indices")
            told = analysis.analyze(problem, values, calc_second_order=False, seed=seed)
            found += [
                {
                    "objective": name,
                    "axis": axis,
                    "first": float(told["S1"][at]),
                    "first_pm": float(told["S1_conf"][at]),
                    "total": float(told["ST"][at]),
                    "total_pm": float(told["ST_conf"][at]),
                }
                for at, axis in enumerate(axes)
            ]
    return found

"""How far rounding to a number type moves values, and which types keep within a budget."""

from __future__ import annotations

from math import sqrt

from perfmodel.errors import WorkloadError

ERRORS = {
    "fp32": 2.0**-24 / sqrt(3),
    "tf32": 2.0**-11 / sqrt(3),
    "fp16": 2.0**-11 / sqrt(3),
    "bf16": 2.0**-8 / sqrt(3),
    "fp8": 2.0**-4 / sqrt(3),
    "int8": 1 / (2.0**8 - 1),
    "int4": 1 / (2.0**4 - 1),
}
"""Root mean square of the error over that of the values. Floating point: half a unit in the last
place, evenly spread (fp8: e4m3). Integers: as many steps over the range of a row, values spread
evenly over it (a long-tailed row rounds worse: scale the budget)."""
WIDEST = "fp32"


def error_of(dtype: str) -> float:
    """Relative error of rounding to `dtype`; `WorkloadError` for an unknown type."""
    if dtype not in ERRORS:
        raise WorkloadError(f"low_precision: dtype {dtype!r}: expected one of {', '.join(ERRORS)}")
    return ERRORS[dtype]


def require_budget(budget: float) -> None:
    """Raises `WorkloadError` for what is no error budget."""
    if not budget >= 0:
        raise WorkloadError(f"low_precision: an error budget of {budget:g}: expected 0 or more")


def within(budget: float, dtypes: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `dtypes` whose error is at most `budget`; fp32 where none is."""
    require_budget(budget)
    return tuple(dtype for dtype in dtypes if error_of(dtype) <= budget) or (WIDEST,)

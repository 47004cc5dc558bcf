"""Errors of a group of kernels: how far predictions are from what was measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.ops.spec import Floats

DECIMALS = 4
GMAE_OFFSET = 4e-4
"""Keeps single exact rows from deciding a geometric mean. Source: Lin et al. 2022."""


@dataclass(frozen=True)
class KernelErrors:
    """Errors of `n` rows of one op, device and dtype; percents of what was measured.

    `gmae_pct` is the geometric mean of absolute errors, `median_pct` their median, `bias_pct` the
    mean error with its sign; `coverage_frac` the share of rows within their 90 % interval, and
    `width_frac` the mean width of the intervals over the prediction.
    """

    op: str
    device: str
    dtype: str
    n: int
    mape_pct: float
    gmae_pct: float
    median_pct: float
    bias_pct: float
    coverage_frac: float
    width_frac: float


def errors_of(
    what: tuple[str, str, str], measured_us: Floats, predicted_us: Floats, low: Floats, high: Floats
) -> KernelErrors:
    """Errors of one group `what` (op, device, dtype); all arrays `[n]` in microseconds."""
    error = predicted_us / measured_us - 1.0
    size = np.abs(error)
    op, device, dtype = what
    inside = (low <= measured_us) & (measured_us <= high)
    figures = (
        mape_pct(measured_us, predicted_us),
        100.0 * np.exp(np.log(size + GMAE_OFFSET).mean()),
        100.0 * np.median(size),
        100.0 * error.mean(),
        inside.mean(),
        ((high - low) / predicted_us).mean(),
    )
    return KernelErrors(
        op, device, dtype, len(error), *(round(float(figure), DECIMALS) for figure in figures)
    )


def mape_pct(measured_us: Floats, predicted_us: Floats) -> float:
    """The mean absolute error in percent of what was measured; both `[n]`."""
    from sklearn.metrics import mean_absolute_percentage_error

    return float(100.0 * mean_absolute_percentage_error(measured_us, predicted_us))

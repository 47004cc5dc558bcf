"""From which share of popular samples on a deployment is faster than another."""

from __future__ import annotations

from collections.abc import Callable

from perfmodel.designs import Deployment
from perfmodel.errors import UsageError
from perfmodel.prediction.deployment import predict_deployment

_LEAST_FRAC = 1e-3
_STEPS = 12


def break_even_frac(
    with_share: Callable[[float], Deployment], baseline: Deployment, most_frac: float = 1.0
) -> float | None:
    """The least share of popular samples, within 1/1000, with which a step takes no longer than
    the baseline's; None where `most_frac` is not enough.

    More popular samples are taken to make no step longer. Raises `UsageError` for a share that
    cannot be.
    """
    if not _LEAST_FRAC <= most_frac <= 1.0:
        raise UsageError(f"break-even: at most {most_frac:g} of the samples popular")
    limit_us = predict_deployment(baseline).results[0].step_us

    def is_enough(share: float) -> bool:
        return predict_deployment(with_share(share)).results[0].step_us <= limit_us

    if is_enough(_LEAST_FRAC):
        return _LEAST_FRAC
    if not is_enough(most_frac):
        return None
    low, high = _LEAST_FRAC, most_frac
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
        if high - low < _LEAST_FRAC:
            break
    return high

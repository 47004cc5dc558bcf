"""How ops go on beyond the largest rows measured: from the larger half of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.fit.kernel_samples import Samples
from perfmodel.kernels.learned.devices import describe
from perfmodel.kernels.learned.growth import Extension, Growth, carried, rate_of_growth
from perfmodel.ops.spec import Floats

BUILDS_THAT_GROW = ("stream",)
"""Time beyond the domain is a matter of size alone, not of how tiles fall."""
_FEWEST = 40
_TRUSTS = (0.0, 0.5, 1.0)
Growths = Mapping[tuple[str, str], Growth]
"""By op and device."""


def growths(data: Samples, among: np.ndarray) -> Growths:
    """Of every op and device with enough rows `among` `[n]` (bool)."""
    kernel_us = data.base_us * np.exp(data.target)
    found = {}
    for (op, device), index in data.frame.groupby(["op", "device"], sort=True).indices.items():
        index = index[among[index]]
        if len(index) < _FEWEST:
            continue
        work = data.work[index]
        top = index[work >= np.median(work)]
        rate = rate_of_growth(data.base_us[top], kernel_us[top])
        if rate > 0.0:
            found[op, device] = Growth(describe(data.known[device]), float(work.max()), rate)
    return found


def trusts(data: Samples, answers: Floats, held: np.ndarray, found: Growths) -> dict[str, float]:
    """Per op, the trust in `found` under which the rows `held` out are predicted best.

    `answers` `[n]` are of trees that saw none of them; each device counts once.
    """
    ops = sorted({op for op, _ in found})
    return {
        op: min(_TRUSTS, key=lambda trust: _error(data, answers, held, found, op, trust))
        for op in ops
    }


def _error(
    data: Samples, answers: Floats, held: np.ndarray, found: Growths, op: str, trust: float
) -> float:
    errors = []
    for (each, device), growth in found.items():
        index = np.flatnonzero(held & (data.devices == device) & (data.ops == op))
        if each == op and len(index):
            own = carried(answers[index], data.work[index], growth, trust)
            off = np.abs(data.target[index] - own)
            errors.append(float(np.average(off, weights=data.weight[index])))
    return float(np.mean(errors)) if errors else 0.0


def carried_on(
    data: Samples, answers: Floats, found: Growths, trust: Mapping[str, float]
) -> Floats:
    """`answers` `[n]`, carried on beyond each op's and device's largest row."""
    result = answers.copy()
    for (op, device), growth in found.items():
        index = np.flatnonzero((data.devices == device) & (data.ops == op))
        result[index] = carried(answers[index], data.work[index], growth, trust[op])
    return result


def extensions(found: Growths, trust: Mapping[str, float]) -> dict[str, Extension]:
    """What a model keeps: per op that is trusted, the growth on every device."""
    return {
        op: Extension(share, tuple(each for (own, _), each in found.items() if own == op))
        for op, share in trust.items()
        if share > 0.0
    }

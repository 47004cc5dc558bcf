"""How much trees without physics may say beside those with it: as much as devices left out show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from perfmodel.fit.kernel_samples import Samples
from perfmodel.fit.kernel_trees import GENERAL_TREES, answers, grown
from perfmodel.kernels.learned.devices import COLUMNS
from perfmodel.kernels.learned.plain import Plain, above_bound, has_say, kinds
from perfmodel.kernels.learned.store import packed
from perfmodel.ops.spec import Floats

_SHARES = (0.0, 0.25, 0.5, 0.75)
_FEWEST_DEVICES = 2
_WORST = 2.0
LeftOut = Mapping[str, Floats]
"""Per device left out, log factors over the base."""


@dataclass(frozen=True)
class Blend:
    """The trees and their share (none: no say), and what both together say of devices left out.

    Of each device with the share that the others chose.
    """

    plain: Plain | None
    left_out: LeftOut


def fitted_blend(
    data: Samples,
    weight: Floats,
    general: LeftOut,
    name: str,
    build: str,
    *,
    seed: int,
    asks: bool,
) -> Blend:
    """`general` are what the trees with physics say of devices left out.

    Without `asks` they told nothing from one device to another, nor will trees without physics.
    """
    says = np.array([has_say(build, op) for op in data.ops], bool)
    if not asks or len(general) < _FEWEST_DEVICES or not says.any():
        return Blend(None, general)
    names = data.sizes + kinds(data.figures) + COLUMNS
    matrix = np.hstack([data.size_matrix, _kinds_and_devices(data)])
    above = above_bound(data.base_us, data.bound_us)
    told = np.sqrt(weight)

    def trees(among: np.ndarray) -> object:
        target = data.target[among] + above[among]
        return grown(matrix[among], target, told[among], GENERAL_TREES, seed=seed)

    plain = {}
    for device in general:
        own = data.devices == device
        answer = answers(trees(~own), matrix[own]) - above[own]
        plain[device] = np.where(says[own], answer, general[device])
    errors = {
        device: [_error(data, device, _blended(share, general, plain, device)) for share in _SHARES]
        for device in general
    }
    found = {}
    for device in general:
        share = _best(errors[each] for each in general if each != device)
        found[device] = _blended(share, general, plain, device)
    share = _best(errors.values())
    if not share:
        return Blend(None, found)
    everything = trees(np.ones(len(data.target), bool))
    return Blend(Plain(packed(everything, name), names, share), found)


def _kinds_and_devices(data: Samples) -> np.ndarray:
    kept = [data.figures.index(name) for name in kinds(data.figures)]
    figures = len(data.figures)
    whole = data.with_devices(COLUMNS)
    return whole[:, [*kept, *range(figures, whole.shape[1])]]


def _blended(share: float, general: LeftOut, plain: LeftOut, device: str) -> Floats:
    return np.asarray((1.0 - share) * general[device] + share * plain[device])


def _error(data: Samples, device: str, factors: Floats) -> float:
    own = data.devices == device
    off = np.abs(data.target[own] - factors)
    return float(np.average(np.minimum(off, _WORST), weights=data.weight[own]))


def _best(errors: Iterable[list[float]]) -> float:
    """The share under which devices are predicted best, each counted once; ties to physics."""
    each = np.array(list(errors))
    return _SHARES[int(np.argmin(np.median(each, axis=0) + each.mean(axis=0)))]

"""Closed forms: a row's chance to be there by its popularity, and by measured reuse."""

from __future__ import annotations

import numpy as np

from perfmodel.locality.cache import shared_classes
from perfmodel.locality.policies import POLICIES
from perfmodel.locality.popularity import Floats
from perfmodel.tiers.nic.cache import NIC_CACHES, NicLoad, accesses
from perfmodel.tiers.nic.footprint import footprint

BY_RECENCY = ("lru", "set_associative")
"""Policies for which it matters in which order queries come."""
_LEAST, _FURTHEST, _HALVINGS = 1e-9, 45.0, 60


class ClosedForm:
    """That of the policy; with measured reuse, of the cache in which
    independent lookups would hit as often as the footprint says of these."""

    def residency(self, load: NicLoad) -> Floats:
        tables, capacity = accesses(load.tables), load.capacity_bytes
        if load.reuse and load.policy in BY_RECENCY:
            alone = footprint(tables, load.queries)
            capacity = alone.finding(footprint(tables, load.queries, load.reuse), capacity)
        classes, _ = shared_classes(tables)
        return POLICIES[load.policy]().residency(classes, capacity)


def logit(chance: float | Floats) -> Floats:
    """Log odds of chances, kept off 0 and 1."""
    kept = np.clip(chance, _LEAST, 1.0 - _LEAST)
    return np.asarray(np.log(kept) - np.log1p(-kept))


def share(odds: float | Floats) -> Floats:
    """Chances of log odds."""
    return np.asarray(1.0 / (1.0 + np.exp(-np.asarray(odds))))


def moved_to(residency: Floats, mass: Floats, hit_frac: float | Floats) -> Floats:
    """Residencies whose log odds are all moved alike so that they sum to `hit_frac` over `mass`."""
    odds, low, high = logit(residency), -_FURTHEST, _FURTHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = float(np.dot(share(odds + middle), mass))
        low, high = (middle, high) if found < hit_frac else (low, middle)
    return share(odds + high)


NIC_CACHES.register("heuristic")(ClosedForm())

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
    """That of the policy (LRU: Che's approximation); measured reuse moves all rows alike, until
    they hit as often as the footprint of such lookups says."""

    def residency(self, load: NicLoad) -> Floats:
        tables = accesses(load.tables)
        classes, _ = shared_classes(tables)
        found = POLICIES[load.policy]().residency(classes, load.capacity_bytes)
        if not load.reuse or load.policy not in BY_RECENCY:
            return found
        alone = footprint(tables, load.queries).hit_frac(load.capacity_bytes)
        together = footprint(tables, load.queries, load.reuse).hit_frac(load.capacity_bytes)
        mass = classes.rows * classes.rate
        hit = float(np.dot(found, mass) / mass.sum())
        return moved_to(
            found, mass / mass.sum(), share(logit(hit) + logit(together) - logit(alone))
        )


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

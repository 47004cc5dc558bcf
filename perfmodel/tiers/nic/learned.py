"""The closed form, corrected by trees that were fitted to exact replays.

They know what the closed form does not: how queries that share rows are spread over a batch, and
what small caches lose of them. Independent lookups, and policies other than LRU, keep their closed
form, which is exact to a few thousandths.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np

from perfmodel.errors import ModelError, PerfmodelError
from perfmodel.files import read_bytes
from perfmodel.locality.cache import shared_classes
from perfmodel.locality.popularity import Floats
from perfmodel.tiers.nic.cache import NIC_CACHES, NicLoad, accesses
from perfmodel.tiers.nic.features import FEATURES, features_of
from perfmodel.tiers.nic.heuristic import ClosedForm, moved_to, share
from perfmodel.tiers.nic.trees import Trees

SCHEMA = "perfmodel.nic_cache/1"
BUNDLED = Path(__file__).with_name("cache.json")
FITTED_POLICIES = ("lru",)
CLOSED_FORM_SLOPE = 0.8
"""Share of the closed form's log odds that the trees are added to."""
_MOST_BYTES = 64_000_000


class Learned:
    """Every class's log odds to be found, moved alike until all together hit as often as fitted."""

    def residency(self, load: NicLoad) -> Floats:
        closed = ClosedForm().residency(load)
        classes, _ = shared_classes(accesses(load.tables))
        mass = classes.rows * classes.rate
        hit = float(np.dot(closed, mass) / mass.sum())
        if load.policy not in FITTED_POLICIES or not load.reuse or not 0.0 < hit < 1.0:
            return closed
        fitted = fitted_hit_frac(bundled(), features_of(load, hit)[None, :])
        return moved_to(closed, mass / mass.sum(), float(fitted[0]))


def fitted_hit_frac(trees: Trees, features: Floats) -> Floats:
    """Share of the lookups that hit, of loads `[loads, features]`.

    What the trees add to part of the closed form's log odds never falls with the capacity, so a
    larger cache never finds less.
    """
    closed = features[:, FEATURES.index("hit_logit")]
    return share(CLOSED_FORM_SLOPE * closed + trees(features))


def read_trees(path: Path) -> Trees:
    """Trees of a file that `perfmodel.fit.nic_cache` wrote; `ModelError` for anything else."""
    try:
        document = json.loads(read_bytes(path, max_bytes=_MOST_BYTES))
    except (ValueError, RecursionError, PerfmodelError) as error:
        raise ModelError(f"{path}: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ModelError(f"{path}: expected a file of schema {SCHEMA}")
    if tuple(document.get("features", ())) != FEATURES:
        raise ModelError(f"{path}: trees of other features than {', '.join(FEATURES)}")
    return Trees.from_document(document, str(path))


@cache
def bundled() -> Trees:
    """Those that come with the package."""
    return read_trees(BUNDLED)


NIC_CACHES.register("learned")(Learned())

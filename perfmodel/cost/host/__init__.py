"""The five host-overhead types: measured on a trace, kept as profiles, looked up by predictions."""

from __future__ import annotations

from perfmodel.cost.host.measure import measure
from perfmodel.cost.host.profile import Profile, load_profile
from perfmodel.cost.host.profile_file import Provenance
from perfmodel.cost.host.samples import DESCRIPTIONS, TYPES, Samples, Statistic

__all__ = [
    "DESCRIPTIONS",
    "TYPES",
    "Profile",
    "Provenance",
    "Samples",
    "Statistic",
    "load_profile",
    "measure",
]

"""The five host-overhead types: measured on a trace, kept as profiles, looked up by predictions."""

from perfmodel.overheads.kinds import DESCRIPTIONS, TYPES
from perfmodel.overheads.measure import measure
from perfmodel.overheads.profile import Profile, load_profile
from perfmodel.overheads.provenance import Provenance
from perfmodel.overheads.samples import Samples
from perfmodel.overheads.statistic import Statistic

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

"""The five host-overhead types: measured on a trace, kept as profiles, looked up by predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.lazy import exports

if TYPE_CHECKING:
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
]


_SAMPLES = ("DESCRIPTIONS", "TYPES", "Samples", "Statistic")

__getattr__ = exports(
    __name__,
    {
        "Profile": "perfmodel.cost.host.profile",
        "Provenance": "perfmodel.cost.host.profile_file",
        "load_profile": "perfmodel.cost.host.profile",
        **dict.fromkeys(_SAMPLES, "perfmodel.cost.host.samples"),
    },
)

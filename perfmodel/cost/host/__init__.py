"""The five host-overhead types: measured on a trace, kept as profiles, looked up by predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.lazy import exports

if TYPE_CHECKING:
    from perfmodel.cost.host.profile import Profile as Profile
    from perfmodel.cost.host.profile import Provenance as Provenance
    from perfmodel.cost.host.profile import load_profile as load_profile
    from perfmodel.cost.host.samples import DESCRIPTIONS as DESCRIPTIONS
    from perfmodel.cost.host.samples import TYPES as TYPES
    from perfmodel.cost.host.samples import Samples as Samples
    from perfmodel.cost.host.samples import Statistic as Statistic

__getattr__, __all__ = exports(__name__)

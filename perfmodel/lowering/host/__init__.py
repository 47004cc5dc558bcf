"""The five host-overhead types: measured on a trace, kept as profiles, looked up by predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.base.registry import exports

if TYPE_CHECKING:
    from perfmodel.lowering.host.measure import DESCRIPTIONS as DESCRIPTIONS
    from perfmodel.lowering.host.measure import TYPES as TYPES
    from perfmodel.lowering.host.measure import Samples as Samples
    from perfmodel.lowering.host.measure import Statistic as Statistic
    from perfmodel.lowering.host.profile import Profile as Profile
    from perfmodel.lowering.host.profile import Provenance as Provenance
    from perfmodel.lowering.host.profile import load_profile as load_profile

__getattr__, __dir__, __all__ = exports(__name__)

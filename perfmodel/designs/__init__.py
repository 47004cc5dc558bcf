"""Published co-designs: edits of where tables are and how a step is laid out.

A design by its name is `DESIGNS["neo"]`, a class whose arguments are its settings; what only some
of them have beside that loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.base.registry import exports

if TYPE_CHECKING:
    from perfmodel.designs.deployment import DESIGNS as DESIGNS
    from perfmodel.designs.deployment import Deployment as Deployment
    from perfmodel.designs.deployment import Design as Design
    from perfmodel.designs.deployment import Phase as Phase
    from perfmodel.designs.layouts.default import deployment_of as deployment_of
    from perfmodel.designs.low_precision import ROUNDING_ERRORS as ROUNDING_ERRORS
    from perfmodel.designs.popular_samples import choose_hot_rows as choose_hot_rows

__getattr__, __dir__, __all__ = exports(__name__)

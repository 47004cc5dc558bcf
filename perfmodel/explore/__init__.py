"""Sweeps: thousands of settings of hardware, workloads and designs, and what they show."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from perfmodel.base.registry import exports

if TYPE_CHECKING:
    from perfmodel.explore.planner import plan_deployment as plan_deployment
    from perfmodel.explore.result import Sweep as Sweep
    from perfmodel.explore.result import sensitivity as sensitivity
    from perfmodel.explore.result import sweep as sweep
    from perfmodel.explore.spec import Spec as Spec
    from perfmodel.explore.spec import load_spec as load_spec


class _Explore(ModuleType):
    def __call__(self, source: Any, across: str | None = None) -> Any:
        """Controls for a model's batch, machine, adapter, cache and precision, and live the steps
        that they lead to, with 90 % intervals, beside those before the last change.

        Parameters:
            source: a workload (its name or file, a trace, or itself) with the usual axes, or the
                mapping or TOML file that `sweep` takes: each of its axes is a control.
            across: the axis to draw along; by default the batch.

        Returns: a widget of `ipywidgets`, which a notebook shows.
        Raises: `PerfmodelError` where that is not installed, and as of `sweep`.
        """
        from perfmodel.explore.widget import explorer

        return explorer(source, across)


# `perfmodel.explore(...)`: a function of that name would hide this package.
sys.modules[__name__].__class__ = _Explore
__getattr__, __dir__, __all__ = exports(__name__)

"""The dense part of a model: both MLPs, and the cross layers between them."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.model import Workload
from perfmodel.workload.parts.interaction import Cross, cross_layers, cross_parameters
from perfmodel.workload.parts.mlp import Layer, layers, parameters


@dataclass(frozen=True)
class Dense:
    """Its layers, in the order in which they run."""

    bottom: tuple[Layer, ...]
    crosses: tuple[Cross, ...]
    top: tuple[Layer, ...]

    @property
    def modules(self) -> list[list[Tensor]]:
        """The parameters of each of the three."""
        return [parameters(self.bottom), cross_parameters(self.crosses), parameters(self.top)]

    @property
    def parameters(self) -> list[Tensor]:
        """All parameters."""
        return [tensor for module in self.modules for tensor in module]


def dense_layers(r: Recorder, workload: Workload, dtype: str = "fp32") -> Dense:
    """The layers of `workload`, stored as `dtype`."""
    bottom = len(workload.model.bottom_mlp)
    own = workload.implementation.layer_precisions
    return Dense(
        layers(r, workload.bottom_widths, dtype, own[:bottom]),
        cross_layers(r, workload, dtype),
        layers(r, workload.top_widths, dtype, own[bottom:]),
    )

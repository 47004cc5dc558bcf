"""Software that runs a workload's step, and what each can do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from perfmodel.registry import Registry

RecordStep: TypeAlias = Callable[..., None]
"""Records one rank's ops: of a `perfmodel.workload.eager.recorder.Recorder`, what it is told to run
by a `perfmodel.workload.step.Run`."""


@dataclass(frozen=True)
class Software:
    """`record` records a step; the rest says which workloads it cannot run.

    `mixed_dims`: tables of several dims; `layer_precisions`: a precision per layer;
    `fused_optimizers`: rows are updated in the backward pass, by any optimizer; else by SGD alone;
    `int32_keys`: indices of 32 bits on the wire; `fp8`: products of it. Software of
    `placements` runs a placement of tables, and cannot be asked for by name. `groups_by_node`: a
    group of linked ranks is a node, also where links join several nodes.
    """

    record: RecordStep
    mixed_dims: bool = True
    layer_precisions: bool = True
    fused_optimizers: bool = True
    int32_keys: bool = True
    fp8: bool = False
    placements: bool = False
    groups_by_node: bool = False


IMPLEMENTATIONS: Registry[Software] = Registry(
    "implementation", "perfmodel.implementations", "perfmodel.workload.implementations"
)
"""By `implementation.name` of a workload."""


def implementation(name: str, **limits: Any) -> Callable[[RecordStep], RecordStep]:
    """A decorator that files a function as the software `name`; `limits` as in `Software`."""

    def add(record: RecordStep) -> RecordStep:
        IMPLEMENTATIONS.register(name)(Software(record, **limits))
        return record

    return add


def implementation_names() -> list[str]:
    """Those that a workload may ask for."""
    return [name for name in IMPLEMENTATIONS if not IMPLEMENTATIONS[name].placements]

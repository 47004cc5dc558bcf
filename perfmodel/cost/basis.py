"""What durations of a family follow from: kinds of parts of a machine, groups of coefficients."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from perfmodel.cost.coefficients import Coefficient, document, listed
from perfmodel.cost.contract import TIERS
from perfmodel.hardware import Device
from perfmodel.ops.vocabulary.movement import TRANSFER
from perfmodel.ops.vocabulary.tiers import ACCELERATOR, STORAGE

COLLECTIVE = "collective"
WIRES = (
    *("cluster", "node", "link", "nic"),
    *("device.architecture", "device.target", "device.link_gb_per_s", "device.pcie_gb_per_s"),
)
"""Parts, and single figures of others, that collectives use."""
LOWERING = ("device.target", "device.tf32_tflop_per_s", "device.fp32_tflop_per_s")
"""What decides which kernels an op becomes."""
_HOST = ("host", "node", "device")
_PARTS = {
    COLLECTIVE: WIRES,
    TRANSFER: ("device", "node"),
    STORAGE: (*_HOST, "storage", "expansion"),
    ACCELERATOR: (*_HOST, "accelerator"),
    "nic": (*_HOST, "nic"),
}
_OF_EVERY_GPU_KERNEL = ("heuristic", "kernel", "program", "rates")
_GPU_GROUPS = {
    "attention": ("attention", "streaming"),
    "channel": ("streaming", "reductions"),
    "convolution": ("convolution", "matmul", "streaming"),
    "embedding": ("embedding", "streaming"),
    "jagged": ("jagged", "streaming"),
    "jagged_attention": ("attention", "streaming"),
    "matmul": ("matmul",),
    "pooling": ("convolution", "streaming"),
    "recurrent": ("recurrent", "matmul"),
    "sort": ("jagged", "streaming"),
}
"""Of a family, groups of `coefficients/gpu.toml` besides; of others, those of vectors."""


def parts_of(family: str) -> tuple[str, ...]:
    """The kinds of parts that the pieces of a family use."""
    return _PARTS.get(family, _HOST if family in TIERS else ("device",))


def coefficients_of(family: str, target: str) -> tuple[Coefficient, ...]:
    """Those of the models that answer for a family on devices of `target`."""
    if family == COLLECTIVE or family in TIERS:
        package = "collectives" if family == COLLECTIVE else "tiers"
        return listed(package, document(package))
    if target == "cpu":
        return listed("cpu", document("cpu"))
    own = _GPU_GROUPS.get(family, ("streaming", "reductions"))
    return listed("gpu", (*_OF_EVERY_GPU_KERNEL, *own))


@dataclass(frozen=True)
class OfDevice:
    """What is asked about a device, told from other questions by `content`: a key of caches."""

    content: tuple[Hashable, ...]
    device: Device
    by: Any = field(default=None, compare=False)
    """What answers; it lives as long as the answer is known, so `content` may name its `id`."""

"""The contract of everything that says what a piece takes, where models register, and what they
follow from: kinds of parts of a machine, groups of coefficients. What is wrong with a model of a
user's, or with its answer, is an error that names it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Mask
from perfmodel.base.registry import Registry
from perfmodel.cost.coefficients import Coefficient, document, listed
from perfmodel.errors import ModelError, PerfmodelError
from perfmodel.hardware import Cluster, Device
from perfmodel.ops.rows import Rows
from perfmodel.ops.vocabulary.embedding import ACCELERATOR, STORAGE
from perfmodel.ops.vocabulary.streaming import TRANSFER


@dataclass(frozen=True)
class Estimate:
    """Per row: duration and its 90 % interval in microseconds, and who says so.

    `model` names the model (`matmul/heuristic`); `source` what it rests on (the device was in
    its training data, a calibration, datasheet figures).
    """

    duration_us: Floats
    low_us: Floats
    high_us: Floats
    model: str
    source: str | NDArray[np.object_]
    measured_frac: Floats | float = 0.0
    """How far measurements of a row's op in its dtype tell of the device: 1 of it, 0 not at all."""
    by_physics: Mask | bool = False
    """Whether nothing but physics answers, which knows no cold caches of calls in turn."""


@dataclass(frozen=True)
class Explanation:
    """Why one row takes what it takes."""

    duration_us: float
    bound_by: str
    """`compute`, `memory`, `cache`, `latency`, …"""
    flop: float
    read_bytes: float
    written_bytes: float
    utilisation_frac: float
    """Of the resource that bounds it, against its peak."""
    terms: dict[str, float] = field(default_factory=dict)
    """What the duration is made of, microseconds each, and shares that entered it (`_frac`)."""
    formula: str = ""
    """How the duration follows from the terms, in words."""


def explanations(
    duration_us: Floats,
    bound_by: Sequence[str],
    work: Sequence[Floats],
    utilisation_frac: Floats,
    terms: Mapping[str, Floats],
    formula: str,
) -> list[Explanation]:
    """Why each row takes what it takes, from columns `[n]`; `work` is FLOP, bytes read, written."""
    numbers = np.stack([duration_us, *work, utilisation_frac], axis=1).tolist()
    told = np.stack(np.broadcast_arrays(duration_us, *terms.values())[1:], axis=1).tolist()
    return [
        Explanation(us, by, flop, read, written, used, dict(zip(terms, each, strict=True)), formula)
        for (us, flop, read, written, used), by, each in zip(numbers, bound_by, told, strict=True)
    ]


class CostModel(Protocol):
    """Answers for the rows of one family on a machine; whole columns at once. The one contract of
    `cost`: what one rank's op takes while all ranks of its node do the same."""

    def estimate(self, rows: Rows, machine: Cluster) -> Estimate:
        """Durations of `rows`, all of the family; `ModelError` on impossible rows."""
        ...

    def explain(self, rows: Rows, machine: Cluster) -> list[Explanation]: ...


TIERS: Registry[CostModel] = Registry("memory tier", "perfmodel.tiers", "perfmodel.cost.tiers")
"""By the family of their ops: `host_memory`, …"""


class KernelModel(Protocol):
    """Answers for kernels of its family on one device, called over and over; what a program and a
    machine add is `perfmodel.cost.durations`'."""

    def estimate(self, rows: Rows, device: Device) -> Estimate:
        """Durations of `rows`, all of the model's family; `ModelError` on impossible rows."""
        ...

    def explain(self, rows: Rows, device: Device) -> list[Explanation]: ...


KERNELS: Registry[KernelModel] = Registry(
    "kernel model", "perfmodel.kernels", "perfmodel.cost.models"
)
"""By `TARGET/FAMILY/NAME`: `gpu/matmul/heuristic`, `cpu/embedding/heuristic`, …"""


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
    STORAGE: (*_HOST, "storage"),
    ACCELERATOR: (*_HOST, "accelerator"),
    "nic": (*_HOST, "nic"),
}
_OF_EVERY_GPU_KERNEL = ("heuristic", "kernel", "program", "rates")
_GPU_GROUPS = {
    "attention": ("attention", "streaming"),
    "channel": ("streaming", "reductions"),
    "convolution": ("convolution", "matmul", "streaming"),
    "embedding": ("embedding", "streaming"),
    "experts": ("experts", "matmul"),
    "jagged": ("embedding", "jagged", "streaming"),
    "jagged_attention": ("attention", "streaming"),
    "matmul": ("matmul",),
    "pooling": ("convolution", "streaming"),
    "recurrent": ("recurrent", "matmul"),
    "sort": ("jagged", "reductions", "streaming"),
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


_KNOWN: dict[tuple[int, str], OfUser] = {}
"""By the id of the model that each holds and its name: one object, as answers are kept by it."""


def checked(model: KernelModel, name: str) -> KernelModel:
    """`model` as it is where it is ours, else one whose answers are checked.

    Raises `ModelError` for what has not the two methods of a `KernelModel`.
    """
    if type(model).__module__.startswith("perfmodel."):
        return model
    if isinstance(model, type):
        raise ModelError(f"kernel model {name}: {model.__name__} is a class, expected an object")
    for method in ("estimate", "explain"):
        if not callable(getattr(model, method, None)):
            raise ModelError(f"kernel model {name}: {type(model).__name__} has no method {method}")
    return _KNOWN.setdefault((id(model), name), OfUser(model, name))


@dataclass(frozen=True)
class OfUser:
    """A model and the name that errors call it by."""

    model: KernelModel
    name: str

    def estimate(self, rows: Rows, device: Device) -> Estimate:
        with self._blamed():
            found = self.model.estimate(rows, device)
            us = np.array([found.duration_us, found.low_us, found.high_us], float)
            if us.shape != (3, len(rows)):
                raise ModelError(f"columns of {us.shape[1:]} values for {len(rows)} rows")
            for row in np.flatnonzero(~((us > 0) & np.isfinite(us)).all(axis=0)).tolist():
                what = f"{rows.op[row]} {rows.dims_text(row)}"
                raise ModelError(f"{what}: expected microseconds above 0")
            return found

    def explain(self, rows: Rows, device: Device) -> list[Explanation]:
        with self._blamed():
            found = list(self.model.explain(rows, device))
            if len(found) != len(rows):
                raise ModelError(f"{len(found)} explanations of {len(rows)} rows")
            return found

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            kind = "" if isinstance(error, PerfmodelError) else f"{type(error).__name__}: "
            raise ModelError(f"kernel model {self.name}: {kind}{error}") from error

"""Durations of pieces: each row to the registered model of its family, on a device or beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.collectives.durations import collective_durations, explain_collectives
from perfmodel.cost.contract import KERNELS, TIERS, Estimate, Explanation, KernelModel
from perfmodel.cost.gpu.program import in_program
from perfmodel.cost.learned.devices import describe, kinship, nearest
from perfmodel.cost.learned.model import Learned
from perfmodel.cost.learned.store import default_models, load_models
from perfmodel.errors import ModelError, UsageError
from perfmodel.hardware import Cluster, Device, Node, cluster, load
from perfmodel.ops.rows import Rows, with_small_operands
from perfmodel.ops.spec import OPS, VECTOR

if TYPE_CHECKING:
    import pandas as pd


STREAM = "add"
"""The op whose largest rows tell a device's bandwidth."""
_LEAST, _MOST = 0.9, 2.0


def streaming_pace(model: KernelModel, device: Device) -> float:
    """Time of long streams on `device` over that at the usual share of the peak; 1 if not known."""
    description = describe(device)
    for part in model.parts if isinstance(model, Learned) else ():
        extension = part.extensions.get(STREAM)
        if extension is None:
            continue
        near, away = nearest(description, [each.device for each in extension.known])
        weight = kinship(away)
        if weight > 0.0:
            growth = next(each for each in extension.known if each.device == near)
            return float(np.clip(growth.per_base**weight, _LEAST, _MOST))
    return 1.0


def measured_share(model: KernelModel, rows: Rows, device: Device) -> Floats:
    """Per row, how much measurements of its op in its dtype tell of `device`, 0 to 1."""
    description = describe(device)
    keys = list(zip(rows.op, rows.dtype, strict=True))
    shares = dict.fromkeys(keys, 0.0)
    for part in model.parts if isinstance(model, Learned) else ():
        for op, dtype in shares:
            if op in part.ops and dtype in part.dtypes:
                known = [part.devices[place] for place in part.known_to(op, dtype)]
                away = nearest(description, known)[1] if known else np.inf
                shares[op, dtype] = max(shares[op, dtype], kinship(away))
    return np.array([shares[key] for key in keys], np.float64)


HEURISTIC = "heuristic"
COLLECTIVE = "collective"
GPU, CPU = "gpu", "cpu"
_KIND = {"cuda": GPU, "rocm": GPU, "cpu": CPU}
COLD = "memory (cold cache)"
"""What bounds a kernel that would be faster if it were called over and over (`repeated_us`)."""
NETWORK = "network"
"""What bounds a collective of CPUs that also crosses from host to host."""
_REST = {COLD: "repeated_us", NETWORK: "within_host_us"}
_MORE = {
    COLD: "what moving every operand from and to memory once takes, which is longer than",
    NETWORK: "the way between hosts, on top of",
}
ROUNDING_FRAC = 1e-9
Models = Mapping[str, KernelModel]
"""Family to the model that answers for it; families that are not in it have their default."""


@dataclass(frozen=True)
class Durations:
    """Per row: duration, 90 % interval (microseconds), which model said so and on what grounds."""

    duration_us: Floats
    low_us: Floats
    high_us: Floats
    model: tuple[str, ...]
    source: tuple[str, ...]

    @classmethod
    def joined(cls, parts: Sequence[Durations]) -> Durations:
        """The rows of all `parts`, in turn."""
        return cls(
            np.concatenate([part.duration_us for part in parts]),
            np.concatenate([part.low_us for part in parts]),
            np.concatenate([part.high_us for part in parts]),
            tuple(model for part in parts for model in part.model),
            tuple(source for part in parts for source in part.source),
        )

    def to_frame(self, index: pd.Index | None = None) -> pd.DataFrame:
        """The columns as a pandas frame, of these arrays, under `index`."""
        import pandas as pd

        columns = {
            "duration_us": self.duration_us,
            "low_us": self.low_us,
            "high_us": self.high_us,
            "model": self.model,
            "source": self.source,
        }
        return pd.DataFrame(columns, index, copy=False)


def model_of(family: str, device: Device, models: Models | None = None) -> KernelModel:
    """The model that answers for `family` on `device`; `ModelError` where there is none."""
    if models and family in models:
        return models[family]
    kind = _KIND[device.target]
    if kind == GPU and family in (fitted := default_models()):
        return fitted[family]
    name = f"{kind}/{family}/{HEURISTIC}"
    if name not in KERNELS:
        raise ModelError(f"no kernel model for the family {family!r} on a {device.target} device")
    return KERNELS[name]


def durations_of(
    rows: Rows, hardware: Device | Node | Cluster, models: Models | None = None
) -> Durations:
    """Durations of `rows`, family by family; collectives among the ranks of `hardware`.

    Of a device alone, collectives take the node that it usually sits in. Raises `ModelError`.
    """
    device = device_of(hardware)
    duration, low, high = (np.empty(len(rows)) for _ in range(3))
    model, source = np.empty(len(rows), object), np.empty(len(rows), object)
    families = np.array([OPS[op].family for op in rows.op], object)
    for family in dict.fromkeys(families.tolist()):
        index = np.flatnonzero(families == family)
        own = rows.take(index)
        if family == COLLECTIVE and _is_gpu(device):
            found = collective_durations(own, cluster(hardware))
        elif family in TIERS:
            found = TIERS[family].estimate(own, cluster(hardware))
        else:
            found = model_of(family, device, models).estimate(own, device)
            if family == COLLECTIVE:
                found = _across_nodes(own, cluster(hardware), found)
            if _is_gpu(device):
                streams = model_of(VECTOR, device, models)
                pace = streaming_pace(streams, device)
                share = measured_share(streams, own, device)
                found = in_program(own, device, found, pace=pace, measured_share=share)
        duration[index], low[index], high[index] = found.duration_us, found.low_us, found.high_us
        model[index], source[index] = found.model, found.source
    return Durations(duration, low, high, tuple(model), tuple(source))


def _across_nodes(rows: Rows, machine: Cluster, within: Estimate) -> Estimate:
    """Collectives of CPUs: `within` a host's memory, and between nodes through the network too."""
    nodes = rows.dims.get("nodes", np.ones(len(rows)))
    index = np.flatnonzero(np.nan_to_num(nodes, nan=1.0) > 1)
    if machine.nodes == 1 or not len(index):
        return within
    beyond = collective_durations(rows.take(index), machine)
    more = np.zeros((3, len(rows)))
    more[:, index] = beyond.duration_us, beyond.low_us, beyond.high_us
    return replace(
        within,
        duration_us=within.duration_us + more[0],
        low_us=within.low_us + more[1],
        high_us=within.high_us + more[2],
    )


def explanations_of(
    rows: Rows, hardware: Device | Node | Cluster, models: Models | None = None
) -> list[Explanation]:
    """Why `rows`, all of one family, take what they take. Raises `ModelError`."""
    family = OPS[rows.op[0]].family
    device = device_of(hardware)
    if family == COLLECTIVE and _is_gpu(device):
        return explain_collectives(rows, cluster(hardware))
    if family in TIERS:
        return TIERS[family].explain(rows, cluster(hardware))
    why = model_of(family, device, models).explain(rows, device)
    taken = durations_of(rows, hardware, models).duration_us.tolist()
    beyond = NETWORK if family == COLLECTIVE else COLD
    return [_as_taken(each, us, beyond) for each, us in zip(why, taken, strict=True)]


def _as_taken(why: Explanation, duration_us: float, beyond: str) -> Explanation:
    """The model's explanation of a duration that a program's cold cache, or the way `beyond` the
    host, may have raised."""
    if duration_us <= why.duration_us * (1 + ROUNDING_FRAC):
        return why
    return replace(
        why,
        duration_us=duration_us,
        bound_by=beyond,
        utilisation_frac=why.utilisation_frac * why.duration_us / duration_us,
        terms={**why.terms, _REST[beyond]: why.duration_us},
        formula=f"{_MORE[beyond]}: {why.formula}",
    )


def _is_gpu(device: Device) -> bool:
    """Whether ranks meet over links and adapters; those of one CPU do in its memory."""
    return _KIND[device.target] == GPU


def device_of(hardware: Device | Node | Cluster) -> Device:
    """The device that kernels run on."""
    if isinstance(hardware, Cluster):
        return hardware.node.device
    return hardware.device if isinstance(hardware, Node) else hardware


def durations(
    ops: pd.DataFrame,
    hardware: str | Path | Device | Node | Cluster,
    *,
    models: Models | str | Path | None = None,
) -> pd.DataFrame:
    """Durations of a frame in the measurement-table schema on a device, node or cluster.

    `hardware` is a name of the catalogue, a TOML file or a part; `models` are kernel models by
    family, or a directory that `perfmodel fit kernels` wrote. Of a table of graphs (columns `graph
    node_idx`, rows in order) operands that cannot be of full size are taken for numbers
    (`perfmodel.ops.rows`). Returns `duration_us low_us high_us model source` under the index of
    `ops`: microseconds, a 90 % interval, the model and what it rests on. Raises `ModelError` for an
    unknown op or dtype and for dims that are missing, zero, negative or not finite, `HardwareError`
    for unknown hardware.
    """
    part = load(hardware) if isinstance(hardware, (str, Path)) else hardware
    if not isinstance(part, (Device, Node, Cluster)):
        raise UsageError(f"{part.name}: kernels run on a device, a node or a cluster")
    chosen = load_models(models) if isinstance(models, (str, Path)) else models
    rows = Rows.from_frame(with_small_operands(ops))
    return durations_of(rows, part, chosen).to_frame(ops.index)

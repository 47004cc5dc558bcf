"""Time on another machine over time on one: by models of its op's pieces, or by its name.

Ratios by name are peak rate over peak rate, bandwidth over bandwidth. They are the fallback where
no shapes are known, counted apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.base.arrays import Floats, Ints
from perfmodel.cost.durations import durations_of
from perfmodel.cost.gpu.program import ROWS_ANYWHERE
from perfmodel.cost.learned.features import describe, distance, similarity
from perfmodel.errors import UsageError
from perfmodel.hardware import Cluster, Device
from perfmodel.lowering import lower
from perfmodel.ops.families import (
    CLASS_OF_FAMILY,
    COMMUNICATION,
    COMPUTE_BOUND,
    HOST_COPY,
    MEMORY_BOUND,
)
from perfmodel.ops.graph import NO_OP, OpGraph
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.movement import UNKNOWN
from perfmodel.prediction.scheduled import place_collectives
from perfmodel.timeline.graph.kinds import NodeKind

_DEFAULT_DTYPE = {"attention": "fp16"}
"""The type of a kernel whose name tells none: fused attention has no fp32 in practice."""

_RATE: dict[str, Callable[[Device, str | None], float]] = {
    COMPUTE_BOUND: lambda device, dtype: device.matrix_tflop_per_s(dtype) * device.gemm_peak_frac,
    MEMORY_BOUND: lambda device, dtype: device.hbm_gb_per_s,
    COMMUNICATION: lambda device, dtype: device.peer_gb_per_s,
    HOST_COPY: lambda device, dtype: device.host_gb_per_s,
}
"""Per class, the rate of a device whose ratio is the ratio of times."""

_CARRIED_FRAC = 0.5
"""How much of what a kernel takes beyond its model on one device it also takes on an unrelated one,
as a power. Source: rows of the same shapes on pairs of devices, the target left out of the fits,
mean logarithmic error at 0, 0.25, 0.5, 0.75 and 1: 29, 29, 30, 32, 34 % between NVIDIA and AMD."""

RATIO_SPREAD: dict[str, float] = {
    COMPUTE_BOUND: 1.75,
    MEMORY_BOUND: 1.3,
    COMMUNICATION: 1.8,
    HOST_COPY: 1.2,
}
"""Per class, the factor within which the ratio of its time between two devices lies from the
modelled one in 90 % of pairs. Source: sums over equal rows of the measured tables against ratios
of the physics: 18 of 21 pairs of P100, V100, T4, P4, A100, H100, B200 and L40S (products and
convolutions; int8 1 of 3), 10 of 10 (elementwise). assumed: communication, copies to the host."""
HOST_SPREAD = 1.3
"""Likewise of host time. Source: three programs on two machines: 0.90, 0.93 and 1.25 times what
single-thread speed says."""


def transfer_ratio(
    families: Sequence[str],
    dtypes: Sequence[str | None],
    source: Device,
    target: Device,
    *,
    duration_us: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Time on `target` divided by time on `source`, per kernel.

    `families` and `dtypes` (None where unknown) are what `perfmodel.ops` reads from the kernels'
    names. `duration_us` (microseconds on `source`) keeps tiny kernels from scaling: only what is
    above the shortest kernel of the source scales with the rate, and what is left is the shortest
    kernel of the target,

        t_target = floor_target + (t_source - floor_source) x rate_source / rate_target,

    and in proportion to the floors below `floor_source`. Rates: peak of the type's units times the
    share that the best matrix product reaches (matmul, convolution, attention), memory bandwidth,
    links to the peers (communication, which still contains its waiting), PCIe (host copies).

    Raises `UsageError` between a GPU and a CPU, whose kernels have nothing in common.
    Source: roofline; floors and shares of peak are figures of the hardware catalogue.
    """
    if (source.target == "cpu") != (target.target == "cpu"):
        raise UsageError(
            f"kernels of {source.name} cannot be transferred to {target.name}: one is a GPU, the "
            "other a CPU, and their kernels have nothing in common"
        )
    pairs, of_pair = list(zip(families, dtypes, strict=True)), {}
    for family, dtype in set(pairs):
        rate, known = _RATE[CLASS_OF_FAMILY[family]], dtype or _DEFAULT_DTYPE.get(family)
        of_pair[family, dtype] = rate(source, known) / rate(target, known)
    ratio = np.fromiter((of_pair[pair] for pair in pairs), np.float64, len(pairs))
    if duration_us is None or source == target:
        return ratio
    measured = np.asarray(duration_us, np.float64)
    above_us = np.maximum(measured - source.kernel_floor_us, 0.0)
    above_frac = np.divide(above_us, measured, out=np.zeros_like(measured), where=measured > 0)
    floors = target.kernel_floor_us / source.kernel_floor_us
    return floors + above_frac * (ratio - floors)


def carried_frac(source: Device, target: Device) -> float:
    """How much of what is unexplained of a kernel on `source` holds on `target`, 0.5 to 1.

    1 for boards of one chip, with the same library, falling to a half.
    """
    near = similarity(distance(describe(source), describe(target)))
    return _CARRIED_FRAC + (1.0 - _CARRIED_FRAC) * near


KERNEL, COPY, COLLECTIVE = KINDS = ("kernel", "copy", "collective")
_BY_SHAPES = ("matmul", "convolution", "attention", "vector")
"""Families whose shapes say all of the work, unlike lookups, waits and copies."""
KIND_OF_NODE = {NodeKind.KERNEL: KERNEL, NodeKind.COPY: COPY, NodeKind.COLLECTIVE: COLLECTIVE}


class ComparedOps(NamedTuple):
    """By which op two machines are compared, alone or with all it calls, and by which kinds."""

    op: int
    whole: bool
    kinds: tuple[int, ...]

    def sum_us(self, sums_us: Floats) -> float:
        """What it takes, of sums by op (`sums_by_op`)."""
        return float(sums_us[int(self.whole), list(self.kinds), self.op].sum())


def sums_by_op(graph: OpGraph, kind: Ints, owner: Ints, taken_us: Floats) -> Floats:
    """Sums of `taken_us`, each of a kind (its place in `KINDS`) and of the op that owns it: of each
    op alone and with all it calls, `[2, kinds, ops]`."""
    own = np.zeros((len(KINDS), len(graph)))
    np.add.at(own, (kind, owner), taken_us)
    whole = own.copy()
    for index in range(len(graph) - 1, -1, -1):
        if (parent := graph.ops[index].parent) != NO_OP:
            whole[:, parent] += whole[:, index]
    return np.stack([own, whole])


@dataclass(frozen=True)
class OpPieces:
    """What the ops of a graph become on a machine: pieces that models know, and whose they are."""

    graph: OpGraph
    rows: Rows
    """Collectives among as many nodes as their ranks fill."""
    kind: Ints
    """Per piece, its place in `KINDS`."""
    owner: Ints

    @classmethod
    def on(cls, graph: OpGraph, machine: Cluster, *, tf32_matmul: bool = False) -> OpPieces:
        """Those of `graph` on `machine`."""
        device = machine.node.device
        lowered = lower(graph, device.target, device=device, tf32_matmul=tf32_matmul)
        known = [at for at, piece in enumerate(lowered.pieces) if piece.op != UNKNOWN]
        index = np.array(known, np.int64)
        kind = np.array([KINDS.index(lowered.pieces[at].kind) for at in known], np.int64)
        return cls(graph, lowered.rows.take(index), kind, lowered.owner[index])

    def duration_us(self, machine: Cluster) -> Floats:
        """Per piece, on `machine`."""
        if not len(self.owner):
            return np.zeros(0)
        return durations_of(place_collectives(self.rows, machine), machine).duration_us

    def by_op(self, taken_us: Floats) -> Floats:
        """Sums of what each piece takes."""
        return sums_by_op(self.graph, self.kind, self.owner, taken_us)

    def counted(self, chosen: ComparedOps) -> Ints:
        """The pieces that `chosen` sums up."""
        fits = np.isin(self.kind, chosen.kinds)
        if chosen.whole:
            fits &= np.array([chosen.op in callers for callers in self._callers], bool)
        else:
            fits &= self.owner == chosen.op
        return np.flatnonzero(fits)

    @cached_property
    def _callers(self) -> list[set[int]]:
        """Per piece, its owner and all ops that call it."""
        around: list[set[int]] = []
        for index, op in enumerate(self.graph.ops):
            around.append({index} | (around[op.parent] if op.parent != NO_OP else set()))
        return [around[owner] for owner in self.owner.tolist()]


@dataclass(frozen=True)
class Source:
    """The ops of a graph on the machine of the trace; sums by op."""

    pieces: OpPieces
    modelled: Floats
    by_shapes: Floats
    """Of `modelled`, the pieces whose shapes say all of their work."""
    measured: Floats

    @classmethod
    def of(cls, pieces: OpPieces, machine: Cluster, measured: Floats) -> Source:
        """`pieces` on `machine`, with what the operations of their ops took."""
        taken, ops = pieces.duration_us(machine), pieces.rows.op
        of_op = {op: OPS[op].family in _BY_SHAPES and op not in ROWS_ANYWHERE for op in set(ops)}
        by_shapes = taken * np.array([of_op[op] for op in ops], bool)
        return cls(pieces, pieces.by_op(taken), pieces.by_op(by_shapes), measured)

    def unexplained_log(self, chosen: ComparedOps) -> float:
        """Logarithm of measured over modelled time of `chosen`, by the share that shapes say all
        of; 0 where nothing was measured."""
        modelled, measured = chosen.sum_us(self.modelled), chosen.sum_us(self.measured)
        if modelled <= 0 or measured <= 0:
            return 0.0
        return chosen.sum_us(self.by_shapes) / modelled * float(np.log(measured / modelled))

    def compared(self, op: int, kind: str, after: Floats) -> ComparedOps | None:
        """What an operation of that kind, which `op` launched, goes by where the target takes
        `after`: its own pieces of that kind, else those of the innermost op around it that has some
        on both machines, calls included. A copy that is a kernel on the other machine goes by both
        kinds. None where no model knows any."""
        kinds = (KINDS.index(kind),)
        ways = [kinds] if kind == COLLECTIVE else [kinds, (KINDS.index(KERNEL), KINDS.index(COPY))]
        at = op
        while at != NO_OP:
            for way in ways:
                for whole in (False, True) if at == op else (True,):
                    chosen = ComparedOps(at, whole, way)
                    if chosen.sum_us(self.modelled) > 0 and chosen.sum_us(after) > 0:
                        return chosen
            at = self.pieces.graph.ops[at].parent
        return None

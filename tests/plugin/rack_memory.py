"""A package of a user's own: memory of a rack as a tier, a kernel model, software, a generation, a
trace format.

`pyproject.toml` names what each of these is to perfmodel; nothing of perfmodel is edited.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.cost.contract import Estimate, Explanation
from perfmodel.designs.deployment import Deployment
from perfmodel.embedding.placement import Memory
from perfmodel.hardware import Cluster, Device
from perfmodel.hardware.catalogue import Generation
from perfmodel.lowering.piece import Piece
from perfmodel.ops.graph import Op, Tensor
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS, OpSpec
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.files import TraceFormat
from perfmodel.trace.kineto import decode_kineto
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.implementations.pytorch import pytorch
from perfmodel.workload.jagged import Jagged, record_row_op
from perfmodel.workload.settings import Software
from perfmodel.workload.step import Run
from perfmodel.workload.tiered.source import Group, row_dims

# A memory: every node reaches 4 TB in its rack, over 50 GB/s.
RACK_GB_PER_S = 50.0
RACK = Memory("memory of the rack", lambda _: 4e12, lambda _: 1)

# What a step does there: one op, which reads and adds up rows.
RACK_POOL = OpSpec(
    family="rack",
    dims=("lookups", "row_bytes", "bags", "dim"),
    defaults={"unique_rows": 0.0, "state_bytes": 0.0},
    flop=lambda d: d["lookups"] * d["dim"],
    read_bytes=lambda d, item: d["lookups"] * d["row_bytes"] + 0.0 * item,
    written_bytes=lambda d, item: d["bags"] * d["dim"] * item,
)


@dataclass(frozen=True)
class InRack:
    """Where a group's rows are, and how a step gets them pooled (inference only)."""

    weights: Tensor

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """Rows are not trained."""
        return ()

    def fetch(self, r: Recorder, group: Group, keys: Jagged) -> None:
        """Rows stay where they are."""

    def look_up(self, r: Recorder, group: Group, keys: Jagged) -> Tensor:
        """Pooled rows in device memory."""
        out = r.tensor((group.samples, group.total_dim))
        given = (self.weights, keys.values)
        record_row_op(r, "rack_pool", given, out, stream="rack", dims=row_dims(group), blocks=True)
        return out


def rack_tables(r: Recorder, group: Group) -> InRack:
    """Weights in the rack."""
    elements = sum(table.rows * table.dim for table in group.tables)
    return InRack(r.tensor((elements,), group.placed.dtype, place="cpu"))


# What it takes.
class _RackTier:
    def estimate(self, rows: Rows, machine: Cluster) -> Estimate:
        """Bytes over the rack's bandwidth."""
        moved = np.zeros(len(rows))
        for op, index in rows.groups():
            dims = rows.dims_of(op, index)
            moved[index] = dims["lookups"] * dims["row_bytes"]
        us = moved / RACK_GB_PER_S / 1e3
        return Estimate(us, us / 1.5, us * 1.5, "rack/heuristic", "50 GB/s")

    def explain(self, rows: Rows, machine: Cluster) -> list[Explanation]:
        """Its bytes."""
        taken = self.estimate(rows, machine).duration_us.tolist()
        return [Explanation(us, "memory", 0.0, us * RACK_GB_PER_S * 1e3, 0.0, 1.0) for us in taken]


RackTier = _RackTier()


@dataclass(frozen=True)
class Rack:
    """All tables in the memory of the rack."""

    def apply(self, deployment: Deployment) -> Deployment:
        """Every table where it was, but in the rack."""
        edited = deployment.placement.edited(lambda *_: {"tier": "rack"})
        return deployment.with_(placement=edited)


# Matrix products: another model of a family that has one, chosen by --kernels matmul=at_peak.
class _AtPeak:
    def estimate(self, rows: Rows, device: Device) -> Estimate:
        """FLOP over the peak of the vector units, whatever the dtype."""
        flop = np.zeros(len(rows))
        for op, index in rows.groups():
            flop[index] = OPS[op].flop(rows.dims_of(op, index))
        us = flop / (device.fp32_tflop_per_s * 1e6)
        return Estimate(us, us, us, "at peak", "its data sheet", measured_frac=1.0)

    def explain(self, rows: Rows, device: Device) -> list[Explanation]:
        """Its FLOP."""
        taken = self.estimate(rows, device).duration_us.tolist()
        peak = device.fp32_tflop_per_s * 1e6
        return [Explanation(us, "compute", us * peak, 0.0, 0.0, 1.0) for us in taken]


AT_PEAK = _AtPeak()


# Software: the forward pass of PyTorch, run twice.
def _forward_twice(r: Recorder, run: Run) -> None:
    pytorch(r, run)
    pytorch(r, run)


FORWARD_TWICE = Software(_forward_twice, mixed_dims=False)


# An op that is lowered by an attribute that nobody else reads.
def heads(op: Op) -> Sequence[Piece]:
    """As many elements as the attribute says."""
    return [Piece("fill", {"elements": 1024.0 * float(op.attributes["heads"])})]


# A generation of GPUs that behaves as Hopper does where nothing was measured on it.
FEYNMAN = Generation("nvidia", like="hopper")


# A trace format: a line of "name start_us duration_us" per host operator, after a line "spans".
def _decode(content: bytes, where: str) -> RankTrace:
    events = []
    for line in content.decode().splitlines()[1:]:
        name, start_us, duration_us = line.split()
        about = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "args": {}}
        events.append({**about, "name": name, "ts": float(start_us), "dur": float(duration_us)})
    document = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
    return decode_kineto(iter((document,)), where)


SPANS = TraceFormat(lambda content: content.startswith(b"spans\n"), _decode, (".spans",))

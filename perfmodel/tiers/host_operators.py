"""PyTorch's operators on rows in host memory: as long as on a process's share of the node's CPUs.

All processes of a node do the same at the same time, so each has its share of cores, caches and
bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from perfmodel.errors import HardwareError
from perfmodel.hardware import Cluster, Device, Node, device
from perfmodel.kernels.model import KERNELS, Estimate, Explanation, KernelModel
from perfmodel.ops.rows import Ints, Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.host_operators import HOST_OPERATORS, OPERATOR, PROCESSES
from perfmodel.tiers.model import TIERS

PLAIN_CPU = "generic-cpu"


class HostOperators:
    """See the module."""

    def estimate(self, rows: Rows, machine: Cluster) -> Estimate:
        low, duration, high = (np.empty(len(rows)) for _ in range(3))
        for index, cpu in _parts(rows, machine.node):
            found = _model().estimate(_on_cpu(rows.take(index)), cpu)
            low[index], duration[index] = found.low_us, found.duration_us
            high[index] = found.high_us
        return Estimate(duration, low, high, found.model, found.source)

    def explain(self, rows: Rows, machine: Cluster) -> list[Explanation]:
        found: dict[int, Explanation] = {}
        for index, cpu in _parts(rows, machine.node):
            told = _model().explain(_on_cpu(rows.take(index)), cpu)
            found |= dict(zip(index.tolist(), told, strict=True))
        return [found[row] for row in range(len(rows))]


def _model() -> KernelModel:
    return KERNELS[f"cpu/{OPS[OPERATOR].family}/heuristic"]


def _parts(rows: Rows, node: Node) -> Iterator[tuple[Ints, Device]]:
    """Rows by how many processes share the node, and what each has of it."""
    given = np.nan_to_num(rows.dims.get(PROCESSES, np.zeros(len(rows))))
    for processes in np.unique(given).tolist():
        yield np.flatnonzero(given == processes), cpu_share(node, int(processes))


def _on_cpu(rows: Rows) -> Rows:
    return replace(rows, op=(OPERATOR,) * len(rows))


def cpu_share(node: Node, processes: int = 0) -> Device:
    """What one of so many processes (0: one per device) has of the node's sockets, as a CPU."""
    try:
        part = device(node.host.name)
    except HardwareError:
        part = device(PLAIN_CPU)
    share = node.sockets / (processes or node.gpus)
    cores = max(round(node.host.cores * share), 1)
    of_socket = node.host.cores / part.sm_count * share
    return replace(
        part,
        sm_count=cores,
        boost_mhz=max(node.host.boost_mhz, part.base_mhz or 0.0),
        hbm_gb_per_s=node.host.dram_gb_per_s * share,
        l2_bytes=max(round(part.l2_bytes * of_socket), 1),
        llc_bytes=None if part.llc_bytes is None else max(round(part.llc_bytes * of_socket), 1),
        fp32_tflop_per_s=part.fp32_tflop_per_s * of_socket,
    )


TIERS.register(HOST_OPERATORS)(HostOperators())

"""PyTorch's operators on rows in host memory: as long as on a CPU with a rank's share of the node.

All ranks of a node do the same at the same time, so each has its share of cores, caches and
bandwidth.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.errors import HardwareError
from perfmodel.hardware import Cluster, Device, Node, load
from perfmodel.kernels.model import KERNELS, Estimate, Explanation
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.host_operators import HOST_OPERATORS, OPERATOR
from perfmodel.tiers.model import TIERS

PLAIN_CPU = "generic-cpu"


class HostOperators:
    """See the module."""

    def estimate(self, rows: Rows, machine: Cluster) -> Estimate:
        model = KERNELS[f"cpu/{OPS[OPERATOR].family}/heuristic"]
        return model.estimate(_on_cpu(rows), cpu_share(machine.node))

    def explain(self, rows: Rows, machine: Cluster) -> list[Explanation]:
        model = KERNELS[f"cpu/{OPS[OPERATOR].family}/heuristic"]
        return model.explain(_on_cpu(rows), cpu_share(machine.node))


def _on_cpu(rows: Rows) -> Rows:
    return replace(rows, op=(OPERATOR,) * len(rows))


def cpu_share(node: Node) -> Device:
    """What one of the node's ranks has of its sockets, as a CPU."""
    try:
        part = load(node.host.name, "device")
    except HardwareError:
        part = load(PLAIN_CPU, "device")
    assert isinstance(part, Device)
    share = node.sockets / node.gpus
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

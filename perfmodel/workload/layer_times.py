"""What layers take by themselves: those of MLPs by their widths, others by the ops that run."""

from __future__ import annotations

from itertools import chain, pairwise

from perfmodel.base.arrays import Floats
from perfmodel.cost.durations import durations_of
from perfmodel.hardware import Cluster
from perfmodel.lowering import lower
from perfmodel.lowering.build_cpu import cpu_steps, rows_of
from perfmodel.lowering.lower import CPU
from perfmodel.ops.graph import Op, OpGraph
from perfmodel.ops.rows import Rows
from perfmodel.workload import Workload


def mlp_us(workload: Workload, machine: Cluster, samples: int, dtype: str) -> Floats:
    """Microseconds of the forward product of each layer in `dtype`: of the bottom MLP, then of the
    top; `samples` of one device. Casts between layers of several types are left out."""
    widths = (*pairwise(workload.bottom_widths), *pairwise(workload.top_widths))
    linear = {"op": "linear", "m": float(samples), "dtype": dtype}
    rows = Rows.of([{**linear, "n": float(n), "k": float(k)} for k, n in widths])
    return durations_of(rows, machine).duration_us


def rows_of_ops(ops: tuple[Op, ...], workload: Workload, machine: Cluster) -> Rows:
    """The pieces of `ops` on the device of `machine`."""
    device, graph = (
        machine.node.device,
        OpGraph(ops, tf32=workload.implementation.precision == "tf32"),
    )
    if device.target == CPU:
        return rows_of(list(chain.from_iterable(cpu_steps(graph))))
    return lower(graph, device.target, device=device).rows

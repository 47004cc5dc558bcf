"""What layers of MLPs take by themselves, by their widths."""

from __future__ import annotations

from itertools import pairwise

from perfmodel.base.arrays import Floats
from perfmodel.cost.durations import durations_of
from perfmodel.hardware import Cluster
from perfmodel.ops.rows import Rows
from perfmodel.workload import Workload


def mlp_us(workload: Workload, machine: Cluster, samples: int, dtype: str) -> Floats:
    """Microseconds of the forward product of each layer in `dtype`: of the bottom MLP, then of the
    top; `samples` of one device. Casts between layers of several types are left out."""
    widths = (*pairwise(workload.bottom_widths), *pairwise(workload.top_widths))
    linear = {"op": "linear", "m": float(samples), "dtype": dtype}
    rows = Rows.of([{**linear, "n": float(n), "k": float(k)} for k, n in widths])
    return durations_of(rows, machine).duration_us

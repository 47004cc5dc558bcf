"""Ops on rows beside the device: recorded with all that their durations need as attributes."""

from __future__ import annotations

from perfmodel.graph.ops import Argument, Tensor
from perfmodel.ops.stored_rows import CPU_ALIGNMENT_BYTES
from perfmodel.ops.stored_rows import row_bytes as stored_row_bytes
from perfmodel.workload.eager.optimizers import STATES
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.tables import Table
from perfmodel.workload.tiered.source import Group

HOST_MEMORY = "host_memory"
"""The resource of all that one rank's host threads do with rows."""
FP32_BYTES = 4.0


def beside(
    r: Recorder,
    op: str,
    inputs: tuple[Argument, ...],
    *outputs: Tensor,
    stream: str,
    dims: dict[str, float],
    dtype: str = "fp32",
    blocks: bool = False,
) -> None:
    """The op `op` of the vocabulary on the resource `stream`; the host waits for one that `blocks`.

    `inputs` and `outputs` tell what it waits for, and what waits for it.
    """
    about = {name: repr(float(value)) for name, value in dims.items()}
    about |= {"stream": stream, "dtype": dtype, "blocks": "1" if blocks else "0"}
    r.leaf(f"tier::{op}", inputs, *outputs, about=about)


def row_bytes(table: Table, dtype: str) -> float:
    """Bytes of a row as a host stores it, the optimizer's state apart."""
    return float(stored_row_bytes(dtype, table.dim, alignment_bytes=CPU_ALIGNMENT_BYTES))


def state_bytes(table: Table, optimizer: str) -> float:
    """Bytes of the optimizer's state of one row."""
    if optimizer == "rowwise_adagrad":
        return FP32_BYTES
    return FP32_BYTES * table.dim * STATES[optimizer]


def row_dims(group: Group) -> dict[str, float]:
    """Dims of an op on the rows that a group looks up: means over its lookups, sums kept."""
    counts = [table.lookups(group.samples) for table in group.tables]
    total = sum(counts)
    dtype, optimizer = group.placed.dtype, group.run.workload.training.table_optimizer
    pairs = list(zip(group.tables, counts, strict=True))
    unique = [table.unique_rows(group.samples) for table in group.tables]
    states = [state_bytes(table, optimizer) for table in group.tables]
    return {
        "lookups": total,
        "row_bytes": sum(row_bytes(table, dtype) * count for table, count in pairs) / total,
        "unique_rows": sum(unique),
        "state_bytes": sum(s * u for s, u in zip(states, unique, strict=True)) / sum(unique),
        "bags": group.bags,
        "dim": group.total_dim / len(group.tables),
    }

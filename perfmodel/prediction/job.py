"""The graph of all ranks of a job; ranks with equal work are worked out once."""

from __future__ import annotations

from perfmodel.graph.copies import as_rank
from perfmodel.graph.merge import merge
from perfmodel.graph.types import ExecutionGraph
from perfmodel.hardware import Cluster
from perfmodel.prediction.host_costs import host_costs
from perfmodel.prediction.scheduled import schedule_shapes
from perfmodel.workload import Workload, op_graph
from perfmodel.workload.classes import rank_classes


def job_graph(
    workload: Workload, machine: Cluster, batch: int, *, overheads: str | None = None
) -> ExecutionGraph:
    """One step of `workload` on every device of `machine`, in which collectives meet.

    `batch` is global; the step carries edges to those after it. What a cluster does needs no more
    than one rank of each class (`predict_workload`); this is for looking at all of them. Raises as
    `predict_workload` does.
    """
    ranks, linked, device = machine.gpus, machine.linked_gpus, machine.node.device
    costs = None if device.target == "cpu" else host_costs(machine, overheads)
    graphs: dict[int, ExecutionGraph] = {}
    for each in rank_classes(workload, ranks, linked):
        ops = op_graph(
            workload,
            batch,
            ranks=ranks,
            rank=each.ranks[0],
            target=device.target,
            threads=device.sm_count,
            linked=linked,
        )
        is_tf32 = workload.implementation.precision == "tf32"
        found = schedule_shapes(ops, machine, costs, tf32_matmul=is_tf32, repeats=True)
        graphs |= {rank: as_rank(found.timeline.graph, rank) for rank in each.ranks}
    if ranks == 1:
        return graphs[0]
    wheres = [f"rank {rank}" for rank in range(ranks)]
    return merge([graphs[rank] for rank in range(ranks)], [0] * ranks, wheres, modelled=True)

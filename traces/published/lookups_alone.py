"""A step of embedding tables alone, as benchmarks of embedding modules run it."""

from __future__ import annotations

from perfmodel.designs import Deployment
from perfmodel.ops.graph import OpGraph
from perfmodel.prediction.scheduled import host_costs
from perfmodel.prediction.shapes import predict_shapes
from perfmodel.workload.autograd.engine import backward
from perfmodel.workload.eager.creation import send_from_host
from perfmodel.workload.eager.recorder import Recorder, Tape
from perfmodel.workload.jagged import Jagged
from perfmodel.workload.pooled_exchange import features_of
from perfmodel.workload.sharding import plan
from perfmodel.workload.step import Run, data_edges
from perfmodel.workload.tiered import TIERED, groups_of
from perfmodel.workload.tiered.source import access_key


def lookups_us(deployment: Deployment) -> float:
    """The period of steps that send keys from pageable memory, look up, put the tables' vectors
    side by side, and learn: of one rank, with all its tables reached alike."""
    machine = deployment.machine
    result, _ = predict_shapes(
        [_graph(deployment)],
        machine,
        name=machine.name,
        costs=host_costs(machine),
        repeats=True,
    )
    return result.step_us


def _graph(deployment: Deployment) -> OpGraph:
    workload, placement = deployment.workload, deployment.placement
    layout = plan(workload, 1)
    run = Run(workload, deployment.batch, 1, 0, "cuda", True, layout, 1, placement)
    (group,) = groups_of(run)
    r = Recorder("cuda")
    r.tape = Tape()
    at = tuple(placement.cache(name).at for name in group.placed.caches)
    source = TIERED[access_key(group.placed, at)](r, group)
    for parameter in source.parameters:
        r.tape.parameter(parameter)
    keys = Jagged(
        send_from_host(r, (group.lookups,), "int64", pinned=False),
        send_from_host(r, (group.bags,), "int32", pinned=False),
    )
    source.fetch(r, group, keys)
    pooled = source.look_up(r, group, keys)
    backward(r, features_of(r, pooled, [table.dim for table in group.tables]))
    ops = r.ops()
    return OpGraph(ops, data_edges(ops, r.views), rank=0, world_size=1, source=workload.name)

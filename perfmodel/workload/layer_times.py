"""What each layer takes in each type, casts of what it is given included.

A layer's time is that of what a step records of it, by the type that it is given and its own: casts
of activations, weights and gradients, its products, what follows them; with the first layer of the
top MLP the interaction before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np

from perfmodel.cost.durations import durations_of
from perfmodel.hardware import Cluster
from perfmodel.lowering import lower
from perfmodel.lowering.build_cpu import cpu_steps, rows_of
from perfmodel.lowering.draft import LAG_US
from perfmodel.lowering.walk import CPU
from perfmodel.ops.graph import Op, OpGraph, Tensor
from perfmodel.ops.rows import Rows
from perfmodel.timeline.graph.kinds import EdgeKind
from perfmodel.workload import Workload
from perfmodel.workload.dense import COMPUTE, cross_layers, interact, layers, mlp
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.tensors import cast
from perfmodel.workload.training import LAST, backward

GIVEN = "fp32"
"""The type of a batch's features."""
OF_CALLER = "aten::ones_like"
"""What a layer's backward pass begins with here, and in a step does not."""
Stage = Mapping[tuple[str, str], tuple[float, str]]
"""Of a layer: type that it is given and its own -> microseconds, type that it gives."""


@lru_cache(maxsize=32)
def layer_stages(
    workload: Workload, machine: Cluster, samples: int, dtypes: tuple[str, ...], *, train: bool
) -> tuple[Stage, ...]:
    """The layers of the bottom MLP, then of the top, each in every one of `dtypes`.

    `samples`: of one device. `machine`: as its first kind of nodes has it.
    """
    widths = (*pairwise(workload.bottom_widths), *pairwise(workload.top_widths))
    given, places, rows, device = {GIVEN}, [], [], machine.node.device
    for number in range(len(widths)):
        reached = set()
        for before in sorted(given):
            for dtype in dtypes:
                r = Recorder("cpu" if device.target == CPU else "cuda")
                r.tape = {} if train else None
                out = _record(r, workload, samples, number, before, dtype)
                if r.tape is not None:
                    backward(r, out)
                rows.append(rows_of_ops(r.ops(), workload, machine))
                places.append((number, before, dtype, out.dtype))
                reached.add(out.dtype)
        given = reached
    joined = durations_of(Rows.joined(rows), machine).duration_us
    ends = np.cumsum([len(own) for own in rows])[:-1]
    lag_us = 0.0 if device.target == CPU else LAG_US[EdgeKind.STREAM]
    stages: list[dict[tuple[str, str], tuple[float, str]]] = [{} for _ in widths]
    for (number, before, dtype, after), part in zip(places, np.split(joined, ends), strict=True):
        stages[number][before, dtype] = float(part.sum() + lag_us * len(part)), after
    return tuple(stages)


def rows_of_ops(ops: tuple[Op, ...], workload: Workload, machine: Cluster) -> Rows:
    tf32 = workload.implementation.precision == "tf32"
    device, graph = machine.node.device, OpGraph(ops, tf32=tf32)
    if device.target == CPU:
        return rows_of(list(chain.from_iterable(cpu_steps(graph))))
    lowered = lower(graph, device.target, device=device)
    names = [lowered.graph.ops[top].name for top in lowered.top_level.tolist()]
    kept = [at for at, name in enumerate(names) if name != OF_CALLER]
    return lowered.rows.take(np.array(kept, np.int64))


def _record(
    r: Recorder, workload: Workload, samples: int, number: int, given: str, dtype: str
) -> Tensor:
    usual, first = COMPUTE[workload.implementation.precision], len(workload.model.bottom_mlp)
    widths = (*pairwise(workload.bottom_widths), *pairwise(workload.top_widths))
    width = workload.bottom_widths[-1] if number == first else widths[number][0]
    x = r.tensor((samples, width), given)
    if number:
        r.parameter(x)
    if number == first:
        dims = [table.dim for table in workload.tables]
        alike = (len(dims), dims[0]) if len(set(dims)) == 1 else (sum(dims),)
        pooled = r.tensor((samples, *alike), GIVEN)
        r.parameter(pooled)
        pooled = cast(r, pooled, given)
        x = interact(r, workload, x, pooled, cross_layers(r, workload), usual)
    is_last = number == len(widths) - 1
    stack = layers(r, widths[number], precisions=(dtype,))
    last = LAST[workload.training.loss] if is_last else "relu"
    out = mlp(r, x, stack, last=last, dtype=usual)
    return cast(r, out, GIVEN) if is_last else out

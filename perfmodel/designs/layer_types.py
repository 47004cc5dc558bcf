"""In which type each layer runs: the shortest path over layers and types, casts included.

A layer's time is that of what a step records of it, by the type that it is given and its own: casts
of activations, weights and gradients, its products, what follows them; with the first layer of the
top MLP the interaction before it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np

from perfmodel.cost.durations import durations_of
from perfmodel.graph.kinds import EdgeKind
from perfmodel.hardware import Cluster
from perfmodel.lowering import lower
from perfmodel.lowering.build_cpu import cpu_steps, rows_of
from perfmodel.lowering.draft import LAG_US
from perfmodel.lowering.walk import CPU
from perfmodel.ops.graph import OpGraph, Tensor
from perfmodel.ops.rows import Rows
from perfmodel.workload import Workload
from perfmodel.workload.autograd import backward
from perfmodel.workload.dense import COMPUTE, cross_layers, interact, layers, mlp
from perfmodel.workload.eager.creation import to_dtype
from perfmodel.workload.eager.recorder import Recorder, Tape
from perfmodel.workload.training import LAST

GIVEN = "fp32"
"""The type of a batch's features."""
OF_CALLER = "aten::ones_like"
"""What a layer's backward pass begins with here, and in a step does not."""
MAX_PRICE, HALVINGS = 1e40, 60
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
    given, places, rows, gives = {GIVEN}, [], [], {}
    for number in range(len(widths)):
        reached = set()
        for before in sorted(given):
            for dtype in dtypes:
                own, after = _rows(workload, machine, samples, train, number, before, dtype)
                places.append((number, before, dtype))
                rows.append(own)
                gives[places[-1]] = after
                reached.add(after)
        given = reached
    joined = durations_of(Rows.joined(rows), machine).duration_us
    ends = np.cumsum([len(own) for own in rows])[:-1]
    lag_us = 0.0 if machine.node.device.target == CPU else LAG_US[EdgeKind.STREAM]
    taken = [float(part.sum() + lag_us * len(part)) for part in np.split(joined, ends)]
    stages: list[dict[tuple[str, str], tuple[float, str]]] = [{} for _ in widths]
    for place, us in zip(places, taken, strict=True):
        number, before, dtype = place
        stages[number][before, dtype] = us, gives[place]
    return tuple(stages)


def _rows(
    workload: Workload,
    machine: Cluster,
    samples: int,
    train: bool,
    number: int,
    given: str,
    dtype: str,
) -> tuple[Rows, str]:
    """The kernels of one layer, and the type of what it gives."""
    device = machine.node.device
    r = Recorder("cpu" if device.target == CPU else "cuda", threads=device.sm_count)
    r.tape = Tape() if train else None
    out = _record(r, workload, samples, number, given, dtype)
    if r.tape is not None:
        backward(r, out)
    graph = OpGraph(r.ops())
    if device.target == CPU:
        return rows_of(list(chain.from_iterable(cpu_steps(graph)))), out.dtype
    tf32 = workload.implementation.precision == "tf32"
    lowered = lower(graph, device.target, device=device, tf32_matmul=tf32)
    names = [lowered.graph.ops[top].name for top in lowered.top_level.tolist()]
    kept = [at for at, name in enumerate(names) if name != OF_CALLER]
    return lowered.rows.take(np.array(kept, np.int64)), out.dtype


def _record(
    r: Recorder, workload: Workload, samples: int, number: int, given: str, dtype: str
) -> Tensor:
    """One layer, given activations of type `given`."""
    usual, first = COMPUTE[workload.implementation.precision], len(workload.model.bottom_mlp)
    widths = (*pairwise(workload.bottom_widths), *pairwise(workload.top_widths))
    width = workload.bottom_widths[-1] if number == first else widths[number][0]
    x = r.tensor((samples, width), given)
    if r.tape is not None and number:
        r.tape.parameter(x)
    if number == first:
        dims = [table.dim for table in workload.tables]
        alike = (len(dims), dims[0]) if len(set(dims)) == 1 else (sum(dims),)
        pooled = r.tensor((samples, *alike), GIVEN)
        if r.tape is not None:
            r.tape.parameter(pooled)
        pooled = pooled if given == GIVEN else to_dtype(r, pooled, given)
        x = interact(r, workload, x, pooled, cross_layers(r, workload), usual)
    is_last = number == len(widths) - 1
    stack = layers(r, widths[number], precisions=(dtype,))
    last = LAST[workload.training.loss] if is_last else "relu"
    out = mlp(r, x, stack, last=last, dtype=usual)
    return to_dtype(r, out, GIVEN) if is_last and out.dtype != GIVEN else out


def shortest_path(
    stages: Sequence[Stage],
    allowed: Sequence[Collection[str]],
    cost: Mapping[str, float],
    price: float = 0.0,
) -> tuple[str, ...]:
    """A type for each layer, of those `allowed` it, so that all together take least; each also
    `cost` of its type times `price`. Of equal ways the one of least cost."""
    best: dict[str, tuple[float, float, tuple[str, ...]]] = {GIVEN: (0.0, 0.0, ())}
    for stage, dtypes in zip(stages, allowed, strict=True):
        after: dict[str, tuple[float, float, tuple[str, ...]]] = {}
        for given, (total, costs, path) in best.items():
            for dtype in dtypes:
                us, gives = stage[given, dtype]
                costs_now = costs + cost[dtype]
                way = total + us + price * cost[dtype], costs_now, (*path, dtype)
                if gives not in after or way[:2] < after[gives][:2]:
                    after[gives] = way
        best = after
    return min(best.values(), key=lambda way: way[:2])[2]


def path_within(
    stages: Sequence[Stage],
    allowed: Sequence[Collection[str]],
    cost: Mapping[str, float],
    most: float,
) -> tuple[str, ...]:
    """The same with costs of at most `most` together, by the least price that gives it; where no
    price does, the way of least cost."""
    low, high = 0.0, 1.0
    path = shortest_path(stages, allowed, cost)
    if sum(cost[dtype] for dtype in path) <= most:
        return path
    while sum(cost[dtype] for dtype in path) > most and high < MAX_PRICE:
        low, high = high, high * 10.0
        path = shortest_path(stages, allowed, cost, high)
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5 if low else high / 2.0
        found = shortest_path(stages, allowed, cost, middle)
        if sum(cost[dtype] for dtype in found) <= most:
            high, path = middle, found
        else:
            low = middle
    return path


def times_along(stages: Sequence[Stage], path: Sequence[str]) -> list[float]:
    """What each layer takes where all run in the types of `path`."""
    given, taken = GIVEN, []
    for stage, dtype in zip(stages, path, strict=True):
        us, given = stage[given, dtype]
        taken.append(us)
    return taken

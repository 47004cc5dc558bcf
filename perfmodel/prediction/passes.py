"""One pass through an op graph, as events around a call of a module measure it: from an idle device
to the end of its last kernel, without a profiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from perfmodel.errors import SharedNote, UsageError, prefixed
from perfmodel.hardware import Cluster
from perfmodel.hardware.catalogue import equal_nodes
from perfmodel.lowering.context import self_contained
from perfmodel.lowering.walk import CPU
from perfmodel.ops.edits.named import NamedEdit, apply_edits
from perfmodel.ops.graph import OpGraph, tensors_in
from perfmodel.prediction.scheduled import HostCosts, host_costs
from perfmodel.prediction.shapes import Noted, predict_on, predict_shapes, too_large
from perfmodel.prediction.types import Prediction

NARROW = ("fp16", "bf16")
UNPROFILED_FRAC = 0.78
"""What the host takes without a profiler, over what saved profiles say, all of which were recorded
under one. Hosts of ten GPUs of KernelBench, by passes of which it takes most: 0.16 to 1.42, this is
their geometric mean (without one of them 0.73 to 0.93); the bundled demo's steps: 0.63."""
DEVICE_SPREAD, HOST_SPREAD = (0.6, 1.81), (0.6, 3.2)
"""Within which factors of the prediction 90 % of the passes of KernelBench lie (1,053 of every
second program on ten GPUs), where the device takes all of the time and where the host does."""


def predict_passes(
    graph: OpGraph, machines: Sequence[Cluster], edits: Sequence[NamedEdit], profile: str | None
) -> Prediction:
    """A result per machine; `profile` times the host.

    A device that the graph's memory does not fit into is named. Raises `UsageError` for a GPU
    without units for a type of 16 bits that the graph holds.
    """
    held = {t.dtype for op in graph.ops for t in (*op.tensors, *tensors_in(op.outputs))}
    for machine, dtype in product(machines, NARROW):
        device = equal_nodes(machine, "a pass").node.device
        has_units = device.target == CPU or getattr(device, f"{dtype}_tflop_per_s")
        if dtype in held and not has_units:
            raise UsageError(f"{device.name}: no units for {dtype}: cast the module")
    graphs, notes = apply_edits([self_contained(graph)], edits) if edits else ([graph], [])
    results = []
    for machine in machines:
        costs = partial(_unprofiled_costs, profile=profile)
        result, prediction = predict_on(machine, costs, partial(_pass, graphs))
        results.append(result)
        own = [*prediction, *too_large(result)]
        notes += [prefixed(result.hardware, note) for note in own]
    source = {
        "trace": graph.source,
        "device": ", ".join(result.hardware for result in results),
        "operators": len(graph),
        "batch": None,
        "edits": [edit.text for edit in edits],
        "ranks": [graph.rank],
        "events": 0,
    }
    return Prediction(source, results, list(dict.fromkeys(notes)))


def _unprofiled_costs(machine: Cluster, profile: str | None) -> HostCosts:
    costs = host_costs(machine, overheads=profile)
    if costs.profile.provenance.unwatched:
        return costs
    note = SharedNote(f"{costs.note}; x {UNPROFILED_FRAC} without a profiler")
    return replace(costs, ratio=costs.ratio * UNPROFILED_FRAC, note=note)


def _pass(graphs: Sequence[OpGraph], machine: Cluster, costs: HostCosts | None) -> Noted:
    """One pass; a GPU's interval is at least as wide as measured passes of modules say."""
    result, notes = predict_shapes(graphs, machine, name=machine.name, costs=costs)
    if costs is None:
        return result, notes
    device_us = min(float(result.rank.gpu_active_us), result.step_us)
    parts = np.array([device_us, result.step_us - device_us])
    low_us, high_us = parts @ np.array([DEVICE_SPREAD, HOST_SPREAD])
    low_us = min(result.low_us or low_us, float(low_us))
    high_us = max(result.high_us or high_us, float(high_us))
    return replace(result, low_us=low_us, high_us=high_us, draws_us=None), notes

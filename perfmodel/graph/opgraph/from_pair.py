"""The op graph of a profile whose execution trace is known as well."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from perfmodel.graph.opgraph.arguments import ExecutionTraceArguments
from perfmodel.graph.opgraph.collectives import of_node
from perfmodel.graph.opgraph.from_execution_trace import arguments_of
from perfmodel.graph.opgraph.from_kineto import graph_of_events, inputs_of_events
from perfmodel.graph.opgraph.notes import dtype_notes
from perfmodel.graph.ops import OpGraph
from perfmodel.trace.columns import Ints, RankTrace
from perfmodel.trace.execution_trace import ExecutionTrace
from perfmodel.trace.link import Links
from perfmodel.trace.pair import Pairing


def of_pair(
    rank: RankTrace,
    links: Links,
    execution_trace: ExecutionTrace,
    pairing: Pairing,
    world_size: int = 1,
) -> OpGraph:
    """The ops, steps and events of the profile, with the arguments, ids and dependencies of the
    execution trace.

    An execution trace of one step serves every step that it pairs with. Ops that it does not hold
    keep what the profile says of them, counted in `notes`.
    """
    node_of = dict(zip(pairing.event.tolist(), pairing.node.tolist(), strict=True))
    world_size = max([world_size, *(group.size for group in execution_trace.process_groups)])
    graph = graph_of_events(rank, links, world_size, inputs_of_events(rank))
    decoded = ExecutionTraceArguments(execution_trace.documents)
    inputs = arguments_of(execution_trace.inputs, decoded)
    outputs = arguments_of(execution_trace.outputs, decoded)
    records = {row: at for at, row in enumerate(execution_trace.collectives.row.tolist())}
    ops = []
    copies = defaultdict(list)
    for index, op in enumerate(graph.ops):
        node = node_of.get(op.event)
        if node is None:
            ops.append(op)
            continue
        copies[node].append(index)
        known = op.attributes
        if node in records:
            known = {**known, **of_node(execution_trace, records[node])}
        ops.append(replace(op, inputs=inputs[node], outputs=outputs[node], attributes=known))
    unpaired = len(ops) - sum(map(len, copies.values()))
    notes = [*execution_trace.warnings, *dtype_notes(decoded.unknown_dtypes)]
    if unpaired:
        notes.append(f"{unpaired} of {len(ops)} ops are not in {execution_trace.where}")
    return replace(
        graph,
        ops=tuple(ops),
        data=_data(execution_trace, copies),
        world_size=world_size,
        notes=(*rank.warnings, *notes),
    )


def _data(execution_trace: ExecutionTrace, copies: dict[int, list[int]]) -> Ints:
    """Dependencies between ops of one pass over the execution trace."""
    producer, consumer = execution_trace.data_dependencies()
    pairs = [
        pair
        for made, read in zip(producer.tolist(), consumer.tolist(), strict=True)
        if made in copies and read in copies and len(copies[made]) == len(copies[read])
        for pair in zip(copies[made], copies[read], strict=True)
    ]
    return np.array(pairs, np.int64).reshape(-1, 2)

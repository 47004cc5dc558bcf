"""The op graph of an execution trace, alone or with a profile; of a trace of any kind, per rank."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from perfmodel.errors import TraceError
from perfmodel.ops.graph import NO_OP, OpGraph, dtype_notes
from perfmodel.ops.read.arguments import ExecutionTraceArguments, of_call, of_node
from perfmodel.ops.read.profile import RECORDER_ENDINGS, graph_of_events, of_kineto, ops_among
from perfmodel.trace.categories import AUTOGRAD_WRAPPER, STEP_NAME
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.execution_trace_columns import ExecutionTrace, Pairing
from perfmodel.trace.link import Links
from perfmodel.trace.read import MIN_PAIRED_FRAC, Trace
from perfmodel.trace.window import AUTOGRAD_THREAD, MAIN_THREAD

_USER_SCOPE = 7
"""PyTorch's `RecordScope` of annotations; the process and thread nodes carry it too."""


def _thread_roles(trace: ExecutionTrace, names: list[str], parents: list[int]) -> dict[int, str]:
    """Thread number to `main`, `autograd` or `other:N`.

    The main thread has the steps, else most nodes that the autograd engine did not call.
    """
    own: dict[int, int] = {}
    engine: set[int] = set()
    stepped: set[int] = set()
    called: list[bool] = []
    for thread, name, parent in zip(trace.thread.tolist(), names, parents, strict=True):
        if name.endswith(RECORDER_ENDINGS[0]):
            called.append(False)
            continue
        is_wrapper = AUTOGRAD_WRAPPER.match(name) is not None
        called.append(is_wrapper or (parent != NO_OP and called[parent]))
        own[thread] = own.get(thread, 0) + (not called[-1])
        if is_wrapper:
            engine.add(thread)
        elif STEP_NAME.match(name):
            stepped.add(thread)
    main = max(stepped or own, key=own.__getitem__, default=0)
    roles = {main: MAIN_THREAD}
    others = 0
    for thread in own:
        if thread not in roles:
            roles[thread] = AUTOGRAD_THREAD if thread in engine else f"other:{others}"
            others += thread not in engine
    return roles


def of_execution_trace(trace: ExecutionTrace, rank: int, world_size: int = 1) -> OpGraph:
    """The ops of an execution trace with ids, types and data dependencies; no events.

    Annotations are no ops: what they enclose carries the innermost as `attributes["annotation"]`.
    Ops before the first `ProfilerStep` have step -1; without steps all are step 0. Raises
    `TraceError` for a trace none of whose ops has arguments.
    """
    every = trace.names(np.arange(len(trace)))
    parents = np.where(trace.parent < np.arange(len(trace)), trace.parent, NO_OP).tolist()
    roles = _thread_roles(trace, every, parents)
    threads = [roles.get(thread, MAIN_THREAD) for thread in trace.thread.tolist()]
    is_op = trace.scope != _USER_SCOPE
    rows = np.flatnonzero(is_op).tolist()
    decoded = ExecutionTraceArguments()
    inputs, outputs = (
        [each[row] for row in rows] for each in map(decoded.of, (trace.inputs, trace.outputs))
    )
    if not any(inputs) and not any(outputs):
        raise TraceError(
            f"{trace.where}: none of its {len(rows)} ops records arguments: "
            "capture it with PyTorch's execution-trace observer"
        )
    world_size = max([world_size, *(group.size for group in trace.process_groups)])
    said = [
        of_node(trace, row) if row in trace.collectives else of_call(every[row], given, world_size)
        for row, given in zip(rows, inputs, strict=True)
    ]
    entered = [row for row, name in enumerate(every) if STEP_NAME.match(name)] or [0]
    steps = (np.searchsorted(entered, rows, side="right") - 1).tolist()
    calls = zip(steps, inputs, outputs, [-1] * len(rows), said, strict=True)
    ops = ops_among(every, is_op.tolist(), parents, threads, calls)
    index = np.full(len(trace), NO_OP, np.int64)
    index[rows] = np.arange(len(rows))
    data = index[np.stack(trace.data_dependencies(), axis=1)]
    return OpGraph(
        ops=ops,
        data=data[(data >= 0).all(axis=1)],
        rank=rank,
        world_size=world_size,
        source=trace.where,
        notes=(*trace.warnings, *dtype_notes(decoded.unknown_dtypes)),
    )


def of_pair(
    rank: RankTrace, links: Links, trace: ExecutionTrace, pairing: Pairing, world_size: int
) -> OpGraph:
    """The ops, steps and events of the profile, with the arguments, ids and dependencies of the
    execution trace.

    An execution trace of one step serves every step that it pairs with. Ops that it does not hold
    keep what the profile says of them, counted in `notes`.
    """
    node_of = dict(zip(pairing.event.tolist(), pairing.node.tolist(), strict=True))
    world_size = max([world_size, *(group.size for group in trace.process_groups)])
    graph = graph_of_events(rank, links, world_size)
    decoded = ExecutionTraceArguments()
    inputs, outputs = map(decoded.of, (trace.inputs, trace.outputs))
    ops = []
    copies = defaultdict(list)
    for index, op in enumerate(graph.ops):
        node = node_of.get(op.event)
        if node is None:
            ops.append(op)
            continue
        copies[node].append(index)
        known = op.attributes
        if node in trace.collectives:
            known = {**known, **of_node(trace, node)}
        ops.append(replace(op, inputs=inputs[node], outputs=outputs[node], attributes=known))
    unpaired = len(ops) - sum(map(len, copies.values()))
    notes = [*trace.warnings, *dtype_notes(decoded.unknown_dtypes)]
    if unpaired:
        notes.append(f"{unpaired} of {len(ops)} ops are not in {trace.where}")
    made, read = (each.tolist() for each in trace.data_dependencies())
    data = [  # within one pass over the execution trace
        pair
        for source, target in zip(made, read, strict=True)
        if source in copies and len(copies[source]) == len(copies.get(target, ()))
        for pair in zip(copies[source], copies[target], strict=True)
    ]
    return replace(
        graph,
        ops=tuple(ops),
        data=np.array(data, np.int64).reshape(-1, 2),
        world_size=world_size,
        notes=(*rank.warnings, *notes),
    )


def op_graph(trace: Trace) -> tuple[OpGraph, ...]:
    """One op graph per rank of `trace`, in order of rank.

    From a profile whose execution trace is beside it: shapes, types, ids and data dependencies of
    the execution trace on the profile's ops and steps. From a profile alone: its recorded shapes.
    From an execution trace alone: all but events. Raises `TraceError` for a rank without shapes.
    """
    timed = trace.recorded
    numbers = sorted({*timed, *trace.execution_traces})
    if not numbers:
        raise TraceError(f"{trace.source}: holds neither a profile nor an execution trace")
    world_size = max(len(numbers), trace.world_size)
    graphs = []
    for number in numbers:
        known, pairing = trace.execution_traces.get(number), trace.pairings.get(number)
        if number not in timed:
            graphs.append(of_execution_trace(trace.execution_traces[number], number, world_size))
        elif known is None or pairing is None or pairing.matched_frac < MIN_PAIRED_FRAC:
            graphs.append(of_kineto(*timed[number], world_size))
        else:
            graphs.append(of_pair(*timed[number], known, pairing, world_size))
    return tuple(graphs)

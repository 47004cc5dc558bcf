"""The op graph of an execution trace."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from perfmodel.errors import TraceError
from perfmodel.graph.opgraph.arguments import ExecutionTraceArguments
from perfmodel.graph.opgraph.collectives import of_call, of_node
from perfmodel.graph.opgraph.notes import dtype_notes
from perfmodel.graph.opgraph.phases import with_arrivals
from perfmodel.graph.opgraph.tree import CallTree, data_edges
from perfmodel.graph.ops import NO_OP, Argument, Op, OpGraph
from perfmodel.trace.execution_trace import Arguments, ExecutionTrace


def of_execution_trace(trace: ExecutionTrace, rank: int, world_size: int = 1) -> OpGraph:
    """The ops of an execution trace with ids, types and data dependencies; no events.

    Annotations are no ops: what they enclose carries the innermost as `attributes["annotation"]`.
    Ops before the first `ProfilerStep` have step -1; without steps all are step 0. Raises
    `TraceError` for a trace none of whose ops has arguments.
    """
    tree = CallTree(trace)
    rows = [row for row, is_op in enumerate(tree.is_op) if is_op]
    index_of = {row: index for index, row in enumerate(rows)}
    decoded = ExecutionTraceArguments(trace.documents)
    inputs = arguments_of(trace.inputs, decoded)
    outputs = arguments_of(trace.outputs, decoded)
    if not any(inputs[row] or outputs[row] for row in rows):
        raise TraceError(
            f"{trace.where}: none of its {len(rows)} ops records arguments: "
            "capture it with PyTorch's execution-trace observer"
        )
    world_size = max([world_size, *(group.size for group in trace.process_groups)])
    attributes = attributes_of(trace, tree, rows, inputs, world_size)
    names = [tree.names[row] for row in rows]
    parents = [index_of.get(tree.owner[row], NO_OP) for row in rows]
    steps = [tree.steps[row] for row in rows]
    phases = with_arrivals([tree.phases[row] for row in rows], names, parents, steps)
    ops = tuple(
        Op(name, inputs[row], outputs[row], parent, tree.threads[row], phase, step, -1, known)
        for row, name, parent, phase, step, known in zip(
            rows, names, parents, phases, steps, attributes, strict=True
        )
    )
    return OpGraph(
        ops=ops,
        data=data_edges(trace, index_of),
        rank=rank,
        world_size=world_size,
        source=trace.where,
        notes=(*trace.warnings, *dtype_notes(decoded.unknown_dtypes)),
    )


def arguments_of(which: Arguments, decoded: ExecutionTraceArguments) -> list[tuple[Argument, ...]]:
    """The inputs or the outputs of all nodes."""
    columns = (which.values, which.shapes, which.types, which.strides)
    return list(map(decoded.of, *(column.tolist() for column in columns)))


def attributes_of(
    trace: ExecutionTrace,
    tree: CallTree,
    rows: list[int],
    inputs: list[tuple[Argument, ...]],
    world_size: int,
) -> list[Mapping[str, str]]:
    """Per row of `rows`: its annotation and, for a collective, what is known of that."""
    nothing: Mapping[str, str] = MappingProxyType({})
    labelled: dict[str, Mapping[str, str]] = {"": nothing}
    records = {row: at for at, row in enumerate(trace.collectives.row.tolist())}
    found = []
    for row in rows:
        label = tree.label[row]
        known = labelled.get(label)
        if known is None:
            known = labelled[label] = MappingProxyType({"annotation": label})
        record = records.get(row)
        if record is not None:
            known = MappingProxyType({**known, **of_node(trace, record)})
        elif tree.names[row].startswith("c10d::"):
            said = of_call(tree.names[row], inputs[row], world_size)
            known = MappingProxyType({**known, **said}) if said else known
        found.append(known)
    return found

"""The workload of a recording: of a trace or a folder of ranks, of a module's source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from perfmodel.base.arrays import Ints
from perfmodel.embedding.index_streams import traced_lookups
from perfmodel.errors import TraceError, WorkloadError
from perfmodel.lowering import lower
from perfmodel.lowering.observed import launched_by, uses_tf32
from perfmodel.ops.graph import NO_OP, OpGraph, outermost_of
from perfmodel.ops.read.module import Call, graph_of_program, program_of
from perfmodel.trace import Trace, read
from perfmodel.trace.window import MAIN_THREAD
from perfmodel.workload.recorded_calls import one_step
from perfmodel.workload.recorded_layers import traced_graphs
from perfmodel.workload.recovered import RECORDED, Fact, Recovered, recovered
from perfmodel.workload.recovered_skew import tables_with_ids, with_skew
from perfmodel.workload.step import op_graph


def recovered_of(source: str | Path | Trace | OpGraph) -> Recovered:
    """The workload of a trace (its path, or itself), of the ops of a program, or of the class
    `FILE.py:CLASS`, whose file is executed.

    Raises `TraceError` for what cannot be read, and `WorkloadError` for what is no workload.
    """
    if isinstance(source, OpGraph):
        return recovered([source], source.source, _name(source.source))
    program = program_of(str(source)) if isinstance(source, (str, Path)) else None
    if program is not None:
        graph = graph_of_program(program, Call(training=True))
        return recovered([graph], program.name, program.class_name)
    trace = source if isinstance(source, Trace) else read(source)
    try:
        graphs = traced_graphs(trace)
    except TraceError as problem:
        raise WorkloadError(f"{problem} (tables and layers are told by shapes)") from None
    found = recovered(graphs, trace.source, _name(trace.source))
    own = found.workload.implementation
    if trace.ranks and own.precision == "fp32":
        kind = "tf32" if any(map(uses_tf32, trace.ranks)) else "fp32"
        workload = found.workload.with_(implementation__precision=kind)
        found = replace(found, workload=workload).told(
            Fact("implementation.precision", kind, RECORDED, "names of kernels")
        )
    if trace.ranks and found.train and len(trace.links[0].device_rows):
        graph = next(each for each in graphs if each.rank == trace.ranks[0].rank)
        found = _with_host_ops(found, graph, launched_by(graph, trace.ranks[0], trace.links[0]))
    recordings = _saved_ids(Path(trace.source))
    return _with_saved_ids(found, recordings) if recordings else found


def _with_host_ops(found: Recovered, graph: OpGraph, launching: Ints) -> Recovered:
    """With the ops of the training thread that launch nothing and that the model's step lacks;
    `launching`: the ops of `graph` that launch something, which is the recorded rank's."""
    step = op_graph(found.workload, ranks=found.ranks, rank=graph.rank)
    lowered = lower(step, "cuda")
    own = [
        at for at, piece in zip(lowered.owner, lowered.pieces, strict=True) if piece.kind != "host"
    ]
    steps = len(graph) / len(one_step(graph.ops))
    count = max(round(_idle_ops(graph, launching) / steps) - _idle_ops(step, own), 0)
    workload = found.workload.with_(training__host_ops=count)
    why = "on the training thread, launch nothing, not the model's: data loading, bookkeeping"
    return replace(found, workload=workload).told(Fact("training.host_ops", count, RECORDED, why))


def _idle_ops(graph: OpGraph, launching: Iterable[int]) -> int:
    """Ops of the training thread that no other called and that launch nothing."""
    outermost = outermost_of(graph.ops)
    busy = {outermost[index] for index in launching if index != NO_OP}
    return sum(
        op.parent == NO_OP and op.thread == MAIN_THREAD and index not in busy
        for index, op in enumerate(graph.ops)
    )


def _name(source: str) -> str:
    return Path(source).name.partition(".")[0] or "recovered"


def _saved_ids(path: Path) -> list[Path]:
    """Execution traces at `path`, or in that folder, beside which PyTorch saved integer tensors."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    return [each for each in files if each.with_name(f"{each.stem}_resources").is_dir()]


def _with_saved_ids(found: Recovered, files: Sequence[Path]) -> Recovered:
    """With the skew of the ids that were saved: of tables of the same size, in order."""
    tables, left = list(found.workload.tables), list(range(len(found.held)))
    for file in files:
        for seen in traced_lookups(file):
            size = seen.table_rows, seen.dim
            at = next((n for n in left if (tables[n].rows, tables[n].dim) == size), None)
            if at is not None:
                left.remove(at)
                tables[at] = with_skew(tables[at], seen.rows, f"{file}: table {at}")
    return found.with_tables(tables, "ids saved beside the trace")


def with_ids(found: Recovered, path: str | Path) -> Recovered:
    """With the skew of the ids in the file at `path`; see `tables_with_ids`."""
    tables = found.workload.tables
    known = [each.known for each in found.held]
    skewed = tables_with_ids(tables, path, known or [(None, True)] * len(tables))
    return found.with_tables(skewed, f"ids in {path}")

"""The orchestration, in one page: trace, graph, durations, schedule, result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.host import load_profile
from perfmodel.errors import TraceError, UsageError
from perfmodel.graph import build_graph
from perfmodel.graph.kinds import Cause, Scope
from perfmodel.graph.types import ExecutionGraph
from perfmodel.hardware import Node, cluster
from perfmodel.ops.edits.named import NamedEdit
from perfmodel.prediction.explain.reason import Grounds
from perfmodel.prediction.explain.replayed import ReplayGrounds
from perfmodel.prediction.explain.transferred import TransferGrounds
from perfmodel.prediction.from_trace import predict_ops, require_model_options
from perfmodel.prediction.intervals import transfer_interval
from perfmodel.prediction.leave_out import left_out_step_us
from perfmodel.prediction.measured_load import UncontendedDurations, without_contention
from perfmodel.prediction.payload_codec import Codec, with_codecs
from perfmodel.prediction.result import as_list, fallback_frac, summarise
from perfmodel.prediction.scheduled import OVERHEAD_OF_CAUSE
from perfmodel.prediction.transferred import TransferredDurations, source_device, transfer_durations
from perfmodel.prediction.types import Prediction, Result
from perfmodel.prediction.what_if import Scale, what_if
from perfmodel.timeline.schedule import measured, schedule
from perfmodel.timeline.steps import ranks_of, steady_steps
from perfmodel.timeline.unexplained import error_warnings, unexplained_warnings
from perfmodel.trace import Trace
from perfmodel.trace.link import launching_op

REPLAY, TRANSFER, MODEL = MODES = ("replay", "transfer", "model")


def predict(
    trace: Trace,
    *,
    hardware: str | Path | Node | Sequence[str | Path | Node] = (),
    mode: str | None = None,
    scale: str | Sequence[str] = (),
    remove: str | Sequence[str] = (),
    overheads: str | Path | None = None,
    leave_one_step_out: bool = False,
    batch: int | None = None,
    edit: str | Sequence[str] = (),
    nodes: int | None = None,
    codec: str | Sequence[str] = (),
    keep_contention: bool = False,
) -> Prediction:
    """Per-batch time of a trace: replayed on its own machine, or on others.

    `hardware` names devices or nodes of the catalogue, or TOML files, or is nodes; without it the
    trace is replayed. `scale` and `remove` are what-ifs (`Scale.parse`), and so is `codec`, which
    narrows what collectives send in a replay (`Codec.parse`). `overheads` names a saved
    profile whose means replace the measured host costs. With any of these a result has what is
    predicted without them as its `baseline`. `keep_contention` leaves kernels as slow beside
    collectives as they were measured. `leave_one_step_out` takes each step's host costs from the
    other steps. In mode `model`, the default of what has no times, shapes alone
    count, `batch` rescales them, `edit` changes the ops (`NamedEdit.parse`), collectives are among
    `nodes` nodes, and without `hardware` the trace's own GPU is the target. Raises `PerfmodelError`
    with one line where something does not fit.
    """
    hardware = as_list(hardware)
    named_edits = [NamedEdit.parse(text) for text in as_list(edit)]
    codecs = [Codec.parse(text) for text in as_list(codec)]
    mode = mode or _usual_mode(
        trace, bool(hardware), batch is not None or bool(edit) or nodes is not None
    )
    if mode == MODEL:
        require_model_options(trace, bool(scale or remove or codec), leave_one_step_out)
        named = str(overheads) if overheads is not None else None
        return predict_ops(
            trace,
            hardware=hardware,
            batch=batch,
            edits=named_edits,
            overheads=named,
            nodes=nodes,
            source=_source(trace),
        )
    if batch is not None or edit or nodes is not None:
        option = "--nodes puts collectives elsewhere"
        if batch is not None or edit:
            option = "--edit changes ops" if edit else "--batch changes shapes"
        raise UsageError(f"{option}: it needs mode model")
    _check(trace, mode, hardware, leave_one_step_out)
    graph = build_graph(trace)
    edits = [*map(Scale.parse, as_list(scale)), *map(Scale.parse_removal, as_list(remove))]
    warnings = [*trace.warnings, *graph.warnings, *_comm_warnings(graph, edits)]
    if leave_one_step_out and len(steady_steps(measured(graph))) < 2:
        raise UsageError(f"{trace.source}: leaving a step out takes two steady steps")
    plain = _Durations(graph, graph.nodes_.duration_us)
    given = plain
    if overheads is not None:
        given = _Durations(graph, _profiled(graph, plain.duration_us, overheads))
    edited = bool(edits or codecs) or overheads is not None
    apart = None
    if mode == REPLAY and edited and not keep_contention:
        apart = without_contention(trace, graph, given.duration_us)
    if apart is not None:
        given = _Durations(graph, apart.alone_us)
    if codecs:
        if mode != REPLAY:
            raise UsageError("--codec is for mode replay, on the trace's own machine")
        machine = cluster(source_device(trace, "and a codec's kernels take what they take on it"))
        coded, taken_us, notes = with_codecs(trace, graph, given.duration_us, codecs, machine)
        given = _Durations(coded, taken_us)
        warnings += notes
    results = []
    for target in hardware or (None,):
        moved = None if target is None else transfer_durations(trace, *given.columns, target)
        taken = given if moved is None else _Durations(given.graph, moved.duration_us)
        taken = taken.under(edits, apart)
        result = _result(trace, taken, target, mode, edited, leave_one_step_out)
        if edited:
            before = plain
            if target is not None:
                is_same = given is plain and moved is not None
                again = moved if is_same else transfer_durations(trace, *plain.columns, target)
                assert again is not None
                before = _Durations(graph, again.duration_us)
            baseline = _result(trace, before, target, mode, False, leave_one_step_out)
            result = replace(result, baseline=baseline)
        if moved is not None:
            warnings += [f"{target}: {note}" for note in moved.notes]
            coverage = result.coverage | {"modelled_frac": round(moved.modelled_frac, 6)}
            result = replace(result, coverage=coverage, reads=moved.reads)
        grounds = _grounds(trace, given.graph, taken.duration_us, edits, overheads, moved)
        results.append(replace(result, grounds=grounds))
    cautions = dict.fromkeys(line for result in results for line in result.cautions)
    return Prediction(_source(trace), results, [*cautions, *warnings])


@dataclass(frozen=True)
class _Durations:
    """A graph and what its nodes take."""

    graph: ExecutionGraph
    duration_us: Floats

    @property
    def columns(self) -> tuple[ExecutionGraph, Floats]:
        return self.graph, self.duration_us

    def under(self, edits: Sequence[Scale], apart: UncontendedDurations | None) -> _Durations:
        """With these what-ifs, and with what nodes lose to others beside them in the schedule that
        follows, where they are without it."""
        graph, taken_us = what_if(*self.columns, edits)
        return _Durations(graph, taken_us if apart is None else apart.together(graph, taken_us))


def _grounds(
    trace: Trace,
    graph: ExecutionGraph,
    duration_us: Floats,
    edits: Sequence[Scale],
    overheads: str | Path | None,
    moved: TransferredDurations | None,
) -> Grounds:
    """How the nodes came to their durations."""
    given = None if overheads is None else (str(overheads), load_profile(overheads))
    replayed = ReplayGrounds(trace, graph, duration_us, edits, given)
    return replayed if moved is None else TransferGrounds(replayed, moved)


def _result(
    trace: Trace,
    taken: _Durations,
    target: str | Path | Node | None,
    mode: str,
    edited: bool,
    leave_one_step_out: bool,
) -> Result:
    graph, duration_us = taken.columns
    timeline = schedule(graph, duration_us)
    left = None
    if leave_one_step_out:
        left = left_out_step_us(graph, duration_us, steady_steps(measured(graph)))
        left = np.where(np.isnan(left), timeline.step_us, left)
    result = summarise(
        timeline,
        hardware=str(target) if target is not None else trace.device,
        mode=mode,
        left_out_us=left,
        compare=target is None and not edited,
    )
    if target is not None:
        low_us, high_us = transfer_interval(timeline, result.rank.rank)
        result = replace(result, low_us=low_us, high_us=high_us)
    coverage = result.coverage | {"no_shapes_frac": round(_no_shapes_frac(trace), 6)}
    if target is not None:
        rows = graph.device_span()[1]
        share = fallback_frac([graph.labels[row] for row in rows], duration_us[rows])
        coverage["fallback_frac"] = round(share, 6)
    echoes = target is None and not edited and not leave_one_step_out
    cautions = tuple(_cautions(result, is_replay=echoes))
    return replace(result, coverage=coverage, cautions=cautions)


def _cautions(result: Result, *, is_replay: bool) -> Iterator[str]:
    """What makes a result doubtful; of a plain replay, also what it is off."""
    yield from unexplained_warnings([s.unexplained for rank in result.ranks for s in rank.steps])
    for rank in result.ranks if is_replay else ():
        pairs = [(s.name, s.step_us, s.measured_us) for s in rank.steps if s.measured_us]
        yield from error_warnings(rank.rank, pairs)


def _no_shapes_frac(trace: Trace) -> float:
    """Share of device time launched by operators whose input shapes neither file records."""
    without, total = 0.0, 0.0
    for rank, links in zip(trace.ranks, trace.links, strict=True):
        op = launching_op(rank, links)
        known = (op >= 0) & (rank.input_shapes[op] >= 0)
        if rank.rank in trace.pairings:
            known |= np.isin(op, trace.pairings[rank.rank].event)
        duration = rank.duration_us[links.device_rows]
        without += float(duration[~known].sum())
        total += float(duration.sum())
    return without / total if total else 0.0


def _usual_mode(trace: Trace, moves: bool, is_edited: bool) -> str:
    if not trace.ranks or is_edited:
        return MODEL
    if moves and trace.device == "cpu":
        return MODEL
    return TRANSFER if moves else REPLAY


def _check(trace: Trace, mode: str, hardware: Sequence[str | Path | Node], leave_out: bool) -> None:
    if mode not in MODES:
        raise UsageError(f"unknown mode {mode!r}; one of {', '.join(MODES)}")
    if not trace.ranks:
        raise TraceError(
            f"{trace.source}: an execution trace has no times for mode {mode}: use mode model"
        )
    if mode == REPLAY and hardware:
        raise UsageError(
            "mode replay is for the trace's own machine: leave --hardware out, or use transfer"
        )
    if mode == TRANSFER and not hardware:
        raise UsageError("mode transfer needs --hardware")
    if mode == TRANSFER and trace.device == "cpu":
        raise TraceError(
            f"{trace.source}: a trace of a process without a GPU has no kernels to transfer to "
            f"{hardware[0]}: use mode model"
        )
    if leave_out and mode != REPLAY:
        raise UsageError("--leave-one-step-out is for mode replay")


def _profiled(graph: ExecutionGraph, duration_us: Floats, overheads: str | Path) -> Floats:
    """Host costs from a saved profile: its mean per overhead type, operator and thread."""
    profile = load_profile(overheads)
    causes = graph.nodes_.cause.tolist()
    rows = [
        row
        for row in np.flatnonzero(graph.nodes_.scope == Scope.HOST).tolist()
        if causes[row] in OVERHEAD_OF_CAUSE
    ]
    threads = [graph.resources[graph.nodes_.resource[row]].split("/", 1)[1] for row in rows]
    replaced = duration_us.copy()
    replaced[rows] = profile.durations(
        [OVERHEAD_OF_CAUSE[Cause(causes[row])] for row in rows],
        [graph.labels[row] for row in rows],
        threads,
    )
    return replaced


def _comm_warnings(graph: ExecutionGraph, edits: list[Scale]) -> list[str]:
    scopes = {edit.scope for edit in edits}
    alone = len(ranks_of(graph)) == 1 and bool((graph.nodes_.scope == Scope.COMM).any())
    if alone and scopes & {"gpu", "comm"}:
        return [
            "one rank alone: a collective's measured duration contains waiting for other ranks, "
            "and is scaled as one piece; give the folder of all ranks to let them meet"
        ]
    return []


def _source(trace: Trace) -> dict[str, Any]:
    return {
        "trace": trace.source,
        "device": trace.device,
        "ranks": [rank.rank for rank in trace.ranks],
        "events": sum(len(rank) for rank in trace.ranks),
        "execution_traces": [
            {"rank": rank, "schema": found.schema} | _paired(trace, rank)
            for rank, found in trace.execution_traces.items()
            if rank in trace.pairings or not trace.ranks
        ],
    }


def _paired(trace: Trace, rank: int) -> dict[str, Any]:
    """How a rank's execution trace fits its profile; nothing without a profile."""
    pairing = trace.pairings.get(rank)
    if pairing is None:
        return {}
    return {"regime": pairing.regime, "matched_frac": round(pairing.matched_frac, 6)}

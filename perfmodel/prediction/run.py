"""What a prediction does, on one page: a request, by its source, one result per machine.

A trace is replayed or transferred: graph, measured durations, what-ifs, schedule, result. Or its
ops' shapes alone count, as of a workload or a deployment: op graphs, pieces, models, schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, singledispatch
from inspect import signature
from typing import Any, ParamSpec

from perfmodel.base.units import US_PER_S, human_us
from perfmodel.cost.durations import not_learned, using_kernels
from perfmodel.designs.deployment import Deployment, filled_frac_of, largest
from perfmodel.designs.layouts.default import deployment_of
from perfmodel.embedding import Placement
from perfmodel.errors import DoesNotFit, Note, TraceError, UsageError
from perfmodel.hardware import Cluster, cluster
from perfmodel.lowering.host import load_profile
from perfmodel.ops.edits import rebatch
from perfmodel.ops.edits.batch import batch_of
from perfmodel.ops.graph import OpGraph
from perfmodel.ops.read.tracing import ModuleError
from perfmodel.prediction.breakdown.completeness import completeness
from perfmodel.prediction.contention import contended, without_contention
from perfmodel.prediction.explain import MeasuredExplainer
from perfmodel.prediction.from_profile import profile_data, shapes_on, with_measured
from perfmodel.prediction.measured_steps import changed, comm_warnings, profiled, steps_result
from perfmodel.prediction.request import Request, facts_of, machines, traced_by
from perfmodel.prediction.running_cost import billed, cheapest_first, within_limit
from perfmodel.prediction.scheduled import costs_of
from perfmodel.prediction.serving import with_latencies
from perfmodel.prediction.shapes import predict_passes, with_edits, with_reads
from perfmodel.prediction.step import cluster_of, deployment_period, placed
from perfmodel.prediction.transferred import known_machine, source_machine, transfer_durations
from perfmodel.prediction.types import MODEL, MODES, REPLAY, TRANSFER, Prediction, Result
from perfmodel.prediction.what_if import from_window_start, what_if, with_codecs
from perfmodel.timeline.graph import build_graph
from perfmodel.timeline.schedule import measured, steady_steps
from perfmodel.trace import Trace
from perfmodel.workload import Workload
from perfmodel.workload.step import TIERED

Options = ParamSpec("Options")


def predicted(request: Request) -> Prediction:
    """The answer to `request`. Raises `PerfmodelError` with one line where something does not
    fit: `WorkloadError` for what does not fit into memory."""
    if names := machines(request.targets):
        known = replace(request, hardware=(), settings=()).settled()
        on = partial(replace, known, settings=request.settings)
        return cheapest_first(names, lambda name: predicted(on(hardware=name)))
    with using_kernels(request.kernels):
        settled = request.settled()
        found = _answer(settled.source, settled)
        if settled.serving is not None:
            if found.source.get("training"):
                raise UsageError("latencies under load are of forward passes: give train=False")

            def again(batch: int, place: int) -> Result:
                on = replace(settled, batch=batch, hardware=settled.targets[place], serving=None)
                return _answer(on.source, on).results[0]

            found = with_latencies(found, settled.serving, again)
        results = billed(found.source, found.results)
        return replace(found, results=results, warnings=[*found.warnings, *not_learned()])


def largest_batch_of(request: Request) -> Prediction:
    """What is predicted of the largest batch that memory holds on every rank, to 1 % of it; its
    source has that as `largest_batch`, with samples per second and the share of memory that is
    filled. Raises `PerfmodelError` where memory is not known, or does not hold one sample."""
    request.refuse("a search for the largest batch", ("batch", "serving"))
    if len(request.targets) > 1 or machines(request.targets):
        raise UsageError("--largest-batch is of one machine: expected one --hardware")
    known = request.settled() if traced_by(request.source) is None else request
    tried: dict[int, tuple[Prediction, float]] = {}

    def again(batch: int) -> Prediction:
        if isinstance(known.source, Deployment):
            return predicted(replace(known, source=known.source.with_(batch=batch)))
        return predicted(replace(known, batch=batch))

    def filled(batch: int) -> float | None:
        with suppress(DoesNotFit):
            try:
                found = again(batch)
            except ModuleError as error:  # of a size that the search chose
                raise ModuleError(f"a batch of {batch:,}: {error}") from None
            (result,) = found.results
            if result.memory is None or result.device is None:
                raise UsageError(f"{result.hardware}: no shapes tell what memory the batch takes")
            tried[batch] = found, filled_frac_of(result.memory, result.device)
            return tried[batch][1]
        return None

    if not (batch := largest(filled, start=64)):
        again(1)  # which may say why
        raise DoesNotFit("memory does not hold a batch of one sample")
    found, frac = tried[batch]
    per_s = batch * found.source.get("world_size", 1) / found.results[0].step_us * US_PER_S
    told = {"batch": batch, "samples_per_s": per_s, "filled_frac": frac}
    return replace(found, source=found.source | {"batch": batch, "largest_batch": told})


def _answering(
    ask: Callable[Options, Request], answer: Callable[[Request], Prediction], name: str, what: str
) -> Callable[Options, Prediction]:
    def answered(*given: Options.args, **options: Options.kwargs) -> Prediction:
        try:
            asked.bind(*given, **options)
        except TypeError as error:  # in the name of what was called
            raise TypeError(f"{name}(): {error}") from None
        return answer(ask(*given, **options))

    asked = signature(ask).replace(return_annotation=Prediction.__name__)
    answered.__name__ = answered.__qualname__ = name
    answered.__signature__ = asked  # type: ignore[attr-defined]
    answered.__doc__ = f"{what}\n\n{ask.__doc__}"
    return answered


predict = _answering(Request, predicted, "predict", "Per-batch time of a source.")
"""Per-batch time of a source: `predicted` of the `Request` that has these arguments."""
largest_batch = _answering(
    Request, largest_batch_of, "largest_batch", "The largest batch that memory holds, predicted."
)


@singledispatch
def _answer(source: object, request: Request) -> Prediction:
    raise UsageError(f"nothing is predicted of a {type(source).__name__}: give a trace, a workload")


@_answer.register
def _of_trace(trace: Trace, request: Request) -> Prediction:
    request.refuse("a trace", ("train", "every_rank", *_OF_TABLES))
    if request.source_device is not None:
        trace = replace(trace, recorded_on=request.source_device)
    if request.mode not in (None, *MODES):
        raise UsageError(f"unknown mode {str(request.mode)!r}; one of {', '.join(MODES)}")
    timed = TRANSFER if request.targets else REPLAY
    of_shapes = not trace.ranks or (request.targets and trace.device == "cpu")
    if request.mode == MODEL or (request.mode is None and of_shapes):
        return _of_shapes(trace, request)
    if request.mode is None and any(getattr(request, name) for name in _OF_SHAPES):
        return _of_changed_shapes(trace, request, timed)
    return _of_times(trace, request, request.mode or timed)


_OF_TABLES = ("layout", "serving")
_OF_SHAPES = ("edit", "batch", "nodes")
"""Options that change shapes, or where collectives run."""
_MEANINGLESS = {
    REPLAY: (*_OF_SHAPES, "hardware", "kernels"),
    TRANSFER: (*_OF_SHAPES, "leave_one_step_out", "codec", "keep_contention"),
    MODEL: ("scale", "remove", "codec", "keep_contention", "leave_one_step_out"),
}
"""By mode, the options that mean nothing in it: measured times have no shapes, shapes no times."""


def _of_changed_shapes(trace: Trace, request: Request, mode: str) -> Prediction:
    """What the trace's times say, by how much longer its shapes take when they are changed."""
    plain = replace(request, batch=None, nodes=None, edit=())
    after = _of_shapes(trace, request)
    before, times = _of_shapes(trace, plain), _of_times(trace, plain, mode)
    warnings, results = [*times.warnings, *after.warnings], []
    for known, shapes, edited in zip(times.results, before.results, after.results, strict=True):
        note = (
            f"{known.hardware}: its shapes alone take {human_us(shapes.step_us)}, by the trace's "
            f"times {human_us(known.step_us)}: the change is by the ratio of shapes"
        )
        warnings.append(Note(note))
        results.append(changed(known, shapes, edited))
    return Prediction(after.source, results, list(dict.fromkeys(warnings)), gaps=times.gaps)


def _of_times(trace: Trace, request: Request, mode: str) -> Prediction:
    """Replay and transfer: measured durations under what-ifs, scheduled again on each machine.

    Under a what-if each result has what is predicted without as its baseline.
    """
    _require_times(trace, request, mode)
    graph, scales, codecs = build_graph(trace), request.scales(), request.codecs()
    warnings = [*trace.warnings, *graph.warnings, *comm_warnings(graph, scales)]
    left_out = request.leave_one_step_out
    if left_out and len(steady_steps(measured(graph))) < 2:
        raise UsageError(f"{trace.source}: leaving a step out takes two steady steps")
    given = plain = graph, graph.nodes_.duration_us
    host = request.profile
    if host is not None:
        given = profiled(*given, load_profile(host))
    edited = bool(scales or codecs or host)
    apart = None
    if mode == REPLAY and edited and not request.keep_contention:
        apart = without_contention(trace, *given)
        given = given if apart is None else (graph, apart)
    if codecs:
        taken_us, notes = with_codecs(trace, *given, codecs)
        given = graph, taken_us
        warnings += notes

    def on(machine: Cluster | None, name: str | None = None) -> Result:
        moved, taken, before = None, given, plain
        if machine is not None:
            moved = again = transfer_durations(trace, *given, machine)
            if edited and given is not plain:
                again = transfer_durations(trace, *plain, machine)
            begun = from_window_start(graph)
            taken, before = (begun, moved.duration_us), (begun, again.duration_us)
        taken = what_if(*taken, scales)
        if apart is not None:
            taken = taken[0], contended(trace, *taken)
        result = steps_result(trace, taken, mode, name, edited=edited, left_out=left_out)
        if edited:
            baseline = steps_result(trace, before, mode, name, edited=False, left_out=left_out)
            result = replace(result, baseline=baseline)
        explainer = MeasuredExplainer(trace, graph, taken[1], scales, host, moved)
        result = replace(result, explainer=explainer)
        if moved is None:
            return result
        coverage = result.coverage | {"modelled_frac": round(moved.modelled_frac, 6)}
        return replace(result, coverage=coverage, reads=moved.reads, notes=moved.notes)

    targets = [(cluster(each), partial(on, name=str(each))) for each in request.targets]
    results = [within_limit(*each) for each in targets] or [on(None)]
    cautions = [line for result in results for line in result.cautions]
    gaps = completeness(trace, graph)
    return Prediction.of(facts_of(trace), results, [*cautions, *warnings], gaps=gaps)


def _require_times(trace: Trace, request: Request, mode: str) -> None:
    request.refuse(f"mode {mode}", _MEANINGLESS[mode])
    if not trace.ranks:
        raise TraceError(
            f"{trace.source}: an execution trace has no times for mode {mode}: use mode model"
        )
    if mode == TRANSFER and not request.targets:
        raise UsageError("mode transfer needs --hardware")
    if mode == TRANSFER and trace.device == "cpu":
        raise TraceError(
            f"{trace.source}: a trace of a process without a GPU has no kernels to transfer to "
            f"{request.targets[0]}: use mode model"
        )


def _of_shapes(trace: Trace, request: Request) -> Prediction:
    """Mode `model`: the ops' shapes alone, rescaled and edited, on each machine or the trace's."""
    request.refuse(f"mode {MODEL}", _MEANINGLESS[MODEL])
    batch, edits = request.batch, request.edits()
    elsewhere = "so say where to predict it: --hardware, or --source for its own machine"
    own = known_machine(trace) if request.targets else source_machine(trace, elsewhere)
    profile = profile_data(trace, own)
    graphs = list(profile.graphs)
    warnings = list(trace.warnings)
    if batch is not None:
        rescaled = [rebatch(graph, batch) for graph in graphs]
        graphs = [each.graph for each in rescaled]
        skipped = dict.fromkeys(line for each in rescaled for line in each.skipped)
        warnings += [f"batch {batch}: {line}" for line in skipped]
    graphs, lines = with_edits(graphs, edits)
    warnings += lines
    batch_ratio = 1.0
    if batch is not None and profile.times:
        batch_ratio = batch / batch_of(profile.graphs[0])
        warnings.append(
            f"batch {batch}: recorded kernels and host time between operators stay as traced, data "
            "loading grows with it"
        )
    where: dict[str, Any] = {"nodes": request.nodes, "overheads": request.profile}
    on = partial(shapes_on, profile, graphs, batch_ratio=batch_ratio, **where)
    targets: list[Any] = request.targets or [own]
    results = [within_limit(cluster(each, request.nodes), on) for each in targets]
    if trace.ranks and not (request.targets or edits) and batch is None:
        results = [with_measured(result, trace) for result in results]
    source = facts_of(trace) | {"batch": batch, "edits": [edit.text for edit in edits]}
    source["world_size"] = max(graph.world_size for graph in graphs)
    return Prediction.of(source, results, warnings, gaps=completeness(trace))


def _require_configuration(request: Request, what: str, *names: str) -> None:
    """Raise `UsageError` for what needs measured times, and for these options."""
    of_times = ("scale", "remove", "codec", "keep_contention", "leave_one_step_out")
    of_traces = ("source_device", *(() if request.mode == MODEL else ("mode",)))
    request.refuse(what, (*names, *of_traces, *of_times))


@_answer.register
def _of_workload(workload: Workload, request: Request) -> Prediction:
    """The period of a workload's step on each machine, in its own software; where memory does not
    hold its own layout, as it is deployed there."""
    _require_configuration(request, "a workload")
    if not request.targets:
        raise UsageError(f"{workload.name}: say on which hardware to predict it")
    batch = workload.batch if request.batch is None else request.batch
    machines = [cluster_of(each, request.nodes) for each in request.targets]
    if request.layout is not None:
        laid = [(request.layout(workload, each), each) for each in machines]
        of = [
            deployment_of(workload, each, batch, train=request.train).with_(placement=tables)
            for tables, each in laid
        ]
        return _of_configuration(request, of)
    about: dict[str, Any] = {"train": request.train, "in_own_software": True}
    cases = [Deployment(workload, each, batch, Placement(()), **about) for each in machines]
    return _of_configuration(request, cases if request.edit else [placed(case) for case in cases])


@_answer.register
def _of_op_graph(graph: OpGraph, request: Request) -> Prediction:
    """One pass through an op graph, of a module say, on each machine."""
    of_workloads = ("batch", "train", "every_rank", "nodes", *_OF_TABLES)
    _require_configuration(request, "an op graph", *of_workloads)
    if not request.targets:
        raise UsageError(f"{graph.source}: say on which hardware to predict it")
    machines = [cluster_of(each, None) for each in request.targets]
    return predict_passes(graph, machines, request.edits(), request.profile)


@_answer.register
def _of_deployment(deployment: Deployment, request: Request) -> Prediction:
    of_workloads = ("hardware", "nodes", "batch", "train", *_OF_TABLES)
    _require_configuration(request, "a deployment", *of_workloads)
    return _of_configuration(request, [deployment])


def _of_configuration(request: Request, cases: Sequence[Deployment]) -> Prediction:
    """Each case on its machine: its ops' pieces timed by models, period after period."""
    first, edits = cases[0], tuple(request.edits())
    own = first.workload.implementation
    results, used = [], []
    for case in cases:
        used.append(own.name if case.in_own_software else TIERED)
        costs = costs_of(case.machine, request.profile, used[-1])
        on = partial(deployment_period, case, costs, edits, request.every_rank)
        results.append(with_reads(within_limit(case.machine, on), case.machine, costs))
    source = {
        "trace": first.workload.name,
        "workload": first.workload.name,
        "implementation": ", ".join(dict.fromkeys(used)),
        "stands_for": own.stands_for if own.name in used else "",
        "device": ", ".join(result.hardware for result in results),
        "batch": first.batch,
        "training": first.train,
        "edits": [edit.text for edit in edits],
        "ranks": [rank.rank for rank in results[0].ranks],
        "events": 0,
    }
    return Prediction.of(source, results)

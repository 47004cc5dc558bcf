"""`perfmodel predict`: how long one batch takes, of a trace or of a model's configuration."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.cli.output import (
    STDOUT,
    Output,
    check_figure,
    check_target,
    refuse_cautions,
    save_figure,
    working,
    wrote,
)
from perfmodel.cli.predict_tables import show_prediction, write_explanation
from perfmodel.cli.prediction_options import (
    DEFAULTS,
    Demo,
    Mode,
    PredictionOptions,
    refuse_conflicting,
)
from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from perfmodel.hardware import Part
    from perfmodel.prediction.types import Prediction
    from perfmodel.trace import Trace


WORKLOADS = "perfmodel.workloads/1"
LIST = "list"


def configuration_prediction(
    name: str,
    options: PredictionOptions,
    *,
    inference: bool = False,
    every_rank: bool = False,
    plan: Path | None = None,
) -> tuple[Prediction, list[Part]]:
    """The prediction of the workload `name`, and the machines that it is for.

    Settings beginning with `workload.` change it, all others the hardware. Tables lie as the file
    `plan` says.
    """
    from perfmodel.api import changed_workload, hardware_part
    from perfmodel.prediction import predict, predicted

    if not options.hardware:
        raise UsageError(f"--workload {name}: name the machine: --hardware dgx-h100")
    settings = options.settings or ()
    workload = changed_workload(name, settings)
    parts = [hardware_part(each, settings) for each in options.hardware]
    if plan is None:
        train = not inference
        request = options.request(workload, hardware=parts, train=train, every_rank=every_rank)
        return predicted(request), parts

    from perfmodel.designs import deployment_of
    from perfmodel.explore.planner.torchrec import read_plan
    from perfmodel.hardware import Cluster, Node, cluster

    if len(parts) > 1:
        raise UsageError("--plan is for one machine: expected one --hardware")
    if not isinstance(parts[0], (Node, Cluster)):
        raise UsageError(f"--plan: {parts[0].name} is not a node or a cluster")
    machine = cluster(parts[0], options.nodes)
    deployment = deployment_of(workload, machine, options.batch, train=not inference)
    deployment = deployment.with_(placement=read_plan(plan, workload, machine))
    edit, overheads = options.edit or (), options.overheads
    return predict(deployment, edit=edit, overheads=overheads, every_rank=every_rank), parts


def _list(target: Output) -> None:
    """The catalogue: what each is, and which software it stands for."""
    from perfmodel.workload import load_workload, workloads

    rows = [
        {
            "name": each.name,
            "implementation": each.implementation.name,
            "title": each.title,
            "tables": len(each.tables),
            "batch": each.batch,
        }
        for each in map(load_workload, workloads())
    ]
    target.write_list("Workloads", WORKLOADS, rows)


def predict(
    trace: str | None = None,
    workload: str | None = None,
    inference: bool = False,
    rate: float | None = None,
    p99_ms: float | None = None,
    every_rank: bool = False,
    init: list[str] | None = None,
    input: list[str] | None = None,
    training: bool = False,
    optimizer: str | None = None,
    dtype: str | None = None,
    autocast: str | None = None,
    options: PredictionOptions = DEFAULTS,
    save_overheads: Path | None = None,
    plan: Path | None = None,
    figure: Path | None = None,
    roofline: Path | None = None,
    explain: str | None = None,
    target: Output = STDOUT,
) -> None:
    """How long a batch of a trace, a configuration or a module takes."""
    from perfmodel.ops.read.program import Call, program_of

    check_figure(figure)
    check_figure(roofline)
    if save_overheads:
        check_target(save_overheads)
    program = program_of(trace or "", [_value(text) for text in init or ()], input or ())
    if (rate is not None or p99_ms is not None) and not (workload and inference):
        raise UsageError("--rate, --p99-ms: they are of --workload with --inference")
    of_modules = {"init": init, "input": input, "training": training, "optimizer": optimizer}
    of_modules |= {"dtype": dtype, "autocast": autocast}
    of_workloads = {"inference": inference, "every_rank": every_rank, "plan": plan}
    if program is None:
        refuse_conflicting("anything but FILE.py:CLASS", of_modules)
    demo: Demo | None = None
    if program is not None:
        of_others = {"workload": workload, "save_overheads": save_overheads, **of_workloads}
        refuse_conflicting("FILE.py:CLASS", of_others)
        call = Call(training, optimizer, dtype, autocast, options.batch)
        prediction = options.predict_module(program, call)
    elif workload is not None:
        others = {"trace": trace, "save_overheads": save_overheads, "figure": figure}
        refuse_conflicting("--workload", others)
        options.refuse_beside_workload()
        if workload == LIST:
            _list(target)
            return
        with working("predicting"):
            prediction, _ = configuration_prediction(
                workload, options, inference=inference, every_rank=every_rank, plan=plan
            )
        if rate is not None or p99_ms is not None:
            serving = _serving(prediction, rate, p99_ms)
            prediction = replace(prediction, source=prediction.source | {"serving": serving})
    else:
        refuse_conflicting("a trace", of_workloads)
        prediction, demo = _of_trace(trace, options, save_overheads)
    save_figure(figure, lambda: _path_figure(prediction))
    save_figure(roofline, prediction.results[0].roofline)
    if explain is not None:
        write_explanation(prediction, explain, target)
        return

    show = partial(show_prediction, demo=demo)
    from perfmodel.prediction.breakdown.completeness import completeness_line

    first = completeness_line(prediction.gaps)
    target.write_result(prediction, show, prediction.warnings, prediction.cautions, first)


def _of_trace(
    trace: str | None, options: PredictionOptions, save_overheads: Path | None
) -> tuple[Prediction, Demo | None]:
    """The prediction of a trace; of the demo replayed, with its steps left out one by one."""
    options.check()
    content, demo = options.read(trace)
    with working("predicting"):
        prediction = options.predict(content)
        if demo and prediction.results[0].mode == Mode.REPLAY:
            left_out = options.predict(content, leave_one_step_out=True).results[0]
            demo["left_out_us"] = tuple(round(step.step_us, 4) for step in left_out.rank.steps)
            prediction = replace(prediction, source=prediction.source | {"demo": demo})
    if options.strict:
        refuse_cautions(content.source, prediction.cautions)
    if save_overheads:
        _save_profile(content, save_overheads)
    return prediction, demo


def _serving(
    prediction: Prediction, rate_per_s: float | None, p99_ms: float | None
) -> list[dict[str, Any]]:
    """Per machine: latency at a rate, and the largest rate within a latency, of what is asked.

    Raises `UsageError` where no rate has such a latency.
    """
    from perfmodel.base.units import US_PER_MS, human_us
    from perfmodel.timeline.offered import Service, latency_under, rates_within

    if p99_ms is not None and not 0 < p99_ms < float("inf"):
        raise UsageError(f"--p99-ms {p99_ms:g}: expected milliseconds above 0")
    batch, rows = prediction.source["batch"], []
    for result in prediction.results:
        service = Service(result.step_us, result.latency_us or result.step_us)
        row: dict[str, Any] = {"hardware": result.hardware}
        if rate_per_s is not None:
            row |= latency_under(service, rate_per_s, queries_per_batch=batch).to_dict()
        if p99_ms is not None:
            most, least_us = rates_within(service, p99_ms * US_PER_MS, queries_per_batch=batch)
            if most is None:
                raise UsageError(
                    f"--p99-ms {p99_ms:g}: of batches of {batch:,} {result.hardware} answers 99 % "
                    f"within {human_us(least_us)} at best: try a smaller --batch"
                )
            row |= {"p99_limit_us": p99_ms * US_PER_MS, "most_per_s": most}
        rows.append(row)
    return rows


def _value(text: str) -> Any:
    """A constructor's argument: JSON where it is some, else text."""
    import json

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _save_profile(trace: Trace, path: Path) -> None:
    from perfmodel.lowering.host import Profile
    from perfmodel.lowering.host.measure import measure

    samples = [measure(rank, links) for rank, links in zip(trace.ranks, trace.links, strict=True)]
    Profile.from_samples(*samples).save(path)
    wrote(path, "host overheads T1 to T5; use them with --overheads")


def _path_figure(found: Prediction) -> Figure:
    """The median step's critical path by kind: as measured, and as each result says."""
    from perfmodel.timeline.figures import comparison_figure

    first = found.results[0]
    name = first.timeline.graph.marks.name[first.median_mark]
    return comparison_figure({name: found.paths_by_cause()}, title="Critical path")

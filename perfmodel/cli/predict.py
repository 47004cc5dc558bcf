"""`perfmodel predict`: how long one batch takes, here, under a what-if, or on other hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from perfmodel.cli.options import (
    DEFAULT_MAX_GB,
    CodecOption,
    EditOption,
    ExplainOption,
    FormatOption,
    HardwareOption,
    MaxMemoryOption,
    NodesOption,
    OutputOption,
    RemoveOption,
    ScaleOption,
    SetOption,
    StepsOption,
    StrictOption,
    TraceOrDemoArgument,
    max_bytes,
    steps_slice,
)
from perfmodel.cli.output import Output, check_figure, check_writable, refuse_cautions, working
from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from perfmodel.hardware import Node
    from perfmodel.prediction import Prediction
    from perfmodel.trace import Trace


class Mode(StrEnum):
    """How durations are found; `MODES` of the library."""

    REPLAY = "replay"
    TRANSFER = "transfer"
    MODEL = "model"


def predict(
    trace: TraceOrDemoArgument = None,
    workload: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="NAME|FILE",
            help="Predict this model configuration instead of a trace (--workload list).",
        ),
    ] = None,
    batch: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            min=1,
            help="Samples per step: of a workload, of all ranks together; of a trace, every shape "
            "that depends on it is rescaled.",
        ),
    ] = None,
    inference: Annotated[
        bool, typer.Option("--inference", help="The forward pass of --workload alone.")
    ] = False,
    every_rank: Annotated[
        bool,
        typer.Option(
            "--every-rank",
            help="Of --workload: one rank of each class with equal work, meeting at collectives; "
            "else those that look up most and send most stand for all.",
        ),
    ] = False,
    hardware: HardwareOption = None,
    nodes: NodesOption = None,
    settings: SetOption = None,
    mode: Annotated[
        Optional[Mode],  # noqa: UP045
        typer.Option(
            help="replay: the measured kernels, scheduled again. transfer: measured times the "
            "model's ratio between devices. model: from shapes alone. "
            "[default: model for what has no times, a new batch, an edit, or a trace without a GPU "
            "on --hardware; else transfer with --hardware, and replay without]",
        ),
    ] = None,
    replay: Annotated[bool, typer.Option("--replay", help="The same as --mode replay.")] = False,
    scale: ScaleOption = None,
    remove: RemoveOption = None,
    edit: EditOption = None,
    codec: CodecOption = None,
    et: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="The execution trace that belongs to TRACE."),
    ] = None,
    overheads: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="NAME|FILE", help="Take host costs from this saved profile."),
    ] = None,
    save_overheads: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Save the trace's host costs as a profile."),
    ] = None,
    leave_one_step_out: Annotated[
        bool,
        typer.Option(
            "--leave-one-step-out", help="Take each step's host costs from the other steps."
        ),
    ] = False,
    plan: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            metavar="FILE",
            help="Of --workload: tables lie as this plan says, of `perfmodel plan` or of TorchRec.",
        ),
    ] = None,
    figure: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Draw where the median step goes (.png, .svg, .pdf)."),
    ] = None,
    roofline: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Draw the kernels below the device's roofs, by shapes."),
    ] = None,
    explain: ExplainOption = None,
    steps: StepsOption = None,
    format: FormatOption = None,
    output: OutputOption = None,
    strict: StrictOption = False,
    max_memory: MaxMemoryOption = DEFAULT_MAX_GB,
) -> None:
    """How long one batch of a trace or of a configuration takes.

    A trace is replayed, as it is, under a what-if, or on other hardware.

    \b
    Examples:
      perfmodel predict                                       the bundled demo
      perfmodel predict trace.json.gz                         replayed, beside what was measured
      perfmodel predict trace.json.gz --scale gpu=0.5         what if kernels took half the time?
      perfmodel predict ranks/ --remove 'host:T1@3'           what if rank 3 lost no time there?
      perfmodel predict trace.json.gz --hardware h100-sxm --hardware mi300x
      perfmodel predict trace.json.gz --hardware h100-sxm --set device.hbm_gb_per_s=5000
      perfmodel predict et.json.gz --hardware a100-sxm-80gb   an execution trace: shapes alone
      perfmodel predict trace.json.gz --batch 4096            another batch, from shapes
      perfmodel predict trace.json.gz --edit fuse=embeddings  another program, from shapes
      perfmodel predict --workload dlrm-dcnv2 --batch 55296 --hardware dgx-h100 --nodes 4
      perfmodel predict trace.json.gz --explain aten::mm      where a figure comes from
      perfmodel predict trace.json.gz --format json -o prediction.json
    """
    inputs = [each for each in (workload, et, overheads, plan, *(hardware or ())) if each]
    target = Output(format, output, source=trace, sources=inputs)
    check_figure(figure, trace)
    check_figure(roofline, trace)
    if save_overheads:
        check_writable(save_overheads, trace)
    if replay and mode not in (None, Mode.REPLAY):
        raise UsageError(f"--replay is --mode replay, but --mode {mode} was given as well")
    limit = max_bytes(max_memory)
    kept = steps_slice(steps) if steps else None
    chosen = Mode.REPLAY if replay else mode
    if workload is not None:
        others = {
            "a trace": trace,
            f"--mode {mode}": mode not in (None, Mode.MODEL),
            "--replay": replay,
            "--scale": scale,
            "--remove": remove,
            "--codec": codec,
            "--et": et,
            "--save-overheads": save_overheads,
            "--leave-one-step-out": leave_one_step_out,
            "--figure": figure,
            "--strict": strict,
            "--steps": steps,
        }
        _refuse_beside("--workload", others)
        from perfmodel.cli.predict_workload import predict_named

        predict_named(
            workload,
            batch,
            hardware,
            nodes,
            settings,
            inference,
            overheads,
            edit or (),
            every_rank,
            target,
            roofline,
            plan,
            explain,
        )
        return
    others = {"--inference": inference, "--every-rank": every_rank, "--plan": plan}
    _refuse_beside("a trace", others)

    from perfmodel import prediction
    from perfmodel.trace import read

    targets = _targets(hardware or (), settings or ())
    _check_before_reading(scale or (), remove or (), edit or (), codec or (), overheads)
    demo = None
    with working(f"reading {trace or 'the bundled demo'}"):
        if trace is None:
            from perfmodel.cli.demo import read_demo

            content, demo = read_demo(kept)
        else:
            content = read(trace, strict=strict, max_bytes=limit, steps=kept)
        if et:
            content = content.with_execution_trace(et, strict=strict, max_bytes=limit)

    def run(*, leave_out: bool) -> Prediction:
        return prediction.predict(
            content,
            hardware=targets,
            mode=chosen,
            scale=scale or (),
            remove=remove or (),
            overheads=overheads,
            leave_one_step_out=leave_out,
            batch=batch,
            edit=edit or (),
            nodes=nodes,
            codec=codec or (),
        )

    with working("predicting"):
        found = run(leave_out=leave_one_step_out)
        if demo and found.results[0].mode == Mode.REPLAY:
            demo = demo.with_left_out(run(leave_out=True))
            found = replace(found, source=found.source | {"demo": demo.to_dict()})
    if strict:
        refuse_cautions(content.source, found.cautions)
    if save_overheads:
        _save_profile(content, save_overheads)
    if figure:
        _draw(found, figure)
    if roofline:
        _draw_roofline(found, roofline)
    if explain is not None:
        from perfmodel.cli.explanation import write_explanation

        write_explanation(found, explain, target)
        return

    def table(console: Console) -> None:
        from perfmodel.cli.predict_tables import show_prediction

        show_prediction(console, found, demo)

    target.write(
        answer=found.to_dict,
        csv=lambda: found.to_frame().to_csv(index=False),
        table=table,
        warnings=found.warnings,
        cautions=found.cautions,
    )


def _refuse_beside(what: str, others: Mapping[str, object]) -> None:
    """Raise `UsageError` for the first of `others` that was given: it means nothing here."""
    for name, given in others.items():
        if given:
            raise UsageError(f"{name} does not go with {what}")


def _targets(hardware: Sequence[str], settings: Sequence[str]) -> list[str | Node]:
    """The hardware asked for: by name, or as nodes with what `--set` changes in them."""
    from perfmodel.hardware import node, with_settings

    if settings and not hardware:
        raise UsageError("--set changes the target: name one with --hardware")
    nodes = [node(name) for name in hardware]
    if not settings:
        return list(hardware)
    return [with_settings(each, settings) for each in nodes]


def _check_before_reading(
    scale: Sequence[str],
    remove: Sequence[str],
    edit: Sequence[str],
    codec: Sequence[str],
    overheads: str | None,
) -> None:
    """Fail on what is wrong by itself before a large trace is read."""
    from perfmodel.graph.opgraph.edits.named import NamedEdit
    from perfmodel.overheads import load_profile
    from perfmodel.prediction import Scale
    from perfmodel.prediction.codec import Codec

    for text in scale:
        Scale.parse(text)
    for text in remove:
        Scale.parse_removal(text)
    for text in edit:
        NamedEdit.parse(text)
    for text in codec:
        Codec.parse(text)
    if overheads:
        load_profile(overheads)


def _save_profile(trace: Trace, path: Path) -> None:
    from perfmodel.overheads import Profile, measure

    samples = [measure(rank, links) for rank, links in zip(trace.ranks, trace.links, strict=True)]
    Profile.from_samples(*samples).save(path)


def _draw_roofline(found: Prediction, path: Path) -> None:
    from perfmodel.plot import save

    save(found.results[0].roofline(), path)


def _draw(found: Prediction, path: Path) -> None:
    """The median step's critical path by kind: as measured, and as each result says."""
    from perfmodel.attribution.figures import comparison_figure
    from perfmodel.attribution.path import critical_path
    from perfmodel.plot import save
    from perfmodel.timeline.schedule import measured

    mark = found.results[0].median_mark
    graph = found.results[0].timeline.graph
    is_measured = found.results[0].mode != Mode.MODEL
    sources = {"measured": critical_path(measured(graph), mark).by_cause()} if is_measured else {}
    for result in found.results:
        name = "predicted" if result.mode == Mode.REPLAY else result.hardware
        own = mark if is_measured else result.median_mark
        sources[name] = critical_path(result.timeline, own).by_cause()
    save(comparison_figure({graph.marks.name[mark]: sources}, title="Critical path"), path)

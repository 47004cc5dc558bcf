"""`perfmodel predict --workload`: a model configuration on hardware."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.cli.output import Output, working
from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from perfmodel.cli.prediction_options import PredictionOptions
    from perfmodel.hardware import Part
    from perfmodel.prediction.types import Prediction
    from perfmodel.workload import Workload

WORKLOADS = "perfmodel.workloads/1"
LIST = "list"
OF_WORKLOAD = "workload."


def predict_named(
    name: str,
    options: PredictionOptions,
    target: Output,
    *,
    inference: bool = False,
    every_rank: bool = False,
    plan: Path | None = None,
    roofline: Path | None = None,
    explain: str | None = None,
) -> None:
    """Predict the workload `name`, or list the catalogue, and write the answer to `target`.

    `roofline` is drawn. With `explain` only that node is told.
    """
    from perfmodel.workload import load_workload, workloads

    if name == LIST:
        _list([load_workload(each) for each in workloads()], target)
        return
    with working("predicting"):
        answer, _ = prediction_of(
            name, options, inference=inference, every_rank=every_rank, plan=plan
        )
    if roofline:
        from perfmodel.plot import save

        save(answer.results[0].roofline(), roofline)
    if explain is not None:
        from perfmodel.cli.explanation import write_explanation

        write_explanation(answer, explain, target)
        return

    def table(console: Console) -> None:
        from perfmodel.cli.predict_tables import show_prediction

        show_prediction(console, answer)

    target.write(
        answer=answer.to_dict,
        csv=lambda: answer.to_frame().to_csv(index=False),
        table=table,
        warnings=answer.warnings,
    )


def prediction_of(
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
    from perfmodel.prediction import predict_workload
    from perfmodel.workload import load_workload

    if not options.hardware:
        raise UsageError(f"--workload {name}: say where it runs: --hardware dgx-h100")
    settings, edit = options.settings or (), options.edit or ()
    own = [text for text in settings if text.startswith(OF_WORKLOAD)]
    found = load_workload(name)
    if own:
        found = found.with_(**dict(change_of(text) for text in own))
    parts = [part_of(each, settings) for each in options.hardware]
    if plan is None:
        answer = predict_workload(
            found,
            hardware=parts,
            batch=options.batch,
            nodes=options.nodes,
            train=not inference,
            overheads=options.overheads,
            edit=edit,
            every_rank=every_rank,
        )
        return answer, parts

    from perfmodel.designs import deployment_of
    from perfmodel.hardware import Cluster, Node, cluster
    from perfmodel.plan.document import read_plan
    from perfmodel.prediction.deployment import predict_deployment

    if len(parts) > 1:
        raise UsageError("--plan is for one machine: expected one --hardware")
    if not isinstance(parts[0], (Node, Cluster)):
        raise UsageError(f"--plan: {parts[0].name} is no node or cluster")
    machine = cluster(parts[0], options.nodes)
    deployment = deployment_of(found, machine, options.batch, train=not inference)
    deployment = deployment.with_(placement=read_plan(plan, found, machine))
    answer = predict_deployment(
        deployment, overheads=options.overheads, edit=edit, every_rank=every_rank
    )
    return answer, parts


def _list(found: Sequence[Workload], target: Output) -> None:
    """The catalogue: what each is, and which software it stands for."""
    rows = [
        {
            "name": each.name,
            "implementation": each.implementation.name,
            "title": each.title,
            "tables": len(each.tables),
            "batch": each.batch,
        }
        for each in found
    ]
    target.write_list("Workloads", WORKLOADS, rows)


def change_of(text: str) -> tuple[str, object]:
    """`workload.implementation.precision=bf16` as a keyword of `Workload.with_`."""
    from perfmodel.hardware.settings import value_of

    name, equals, value = text.removeprefix(OF_WORKLOAD).partition("=")
    if not equals:
        raise UsageError(f"--set {text!r}: expected workload.KEY=VALUE")
    return name.strip().replace(".", "__"), value_of(value)


def part_of(name: str, settings: Sequence[str]) -> Part:
    """The device, node or cluster of that name with its settings; a device stays alone."""
    from dataclasses import replace

    from perfmodel.hardware import Device, load, node_of, with_settings

    part = load(name)
    of_hardware = [text for text in settings if not text.startswith(OF_WORKLOAD)]
    if not of_hardware:
        return part
    if isinstance(part, Device) and not all(text.startswith("device.") for text in of_hardware):
        part = replace(node_of(part), gpus=1)
    return with_settings(part, of_hardware)

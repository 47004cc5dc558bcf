"""`perfmodel predict --workload`: a model configuration on hardware."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.cli.output import Output, working
from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from perfmodel.hardware import Part
    from perfmodel.prediction.types import Prediction
    from perfmodel.workload import Workload

WORKLOADS = "perfmodel.workloads/1"
LIST = "list"
OF_WORKLOAD = "workload."


def predict_named(
    name: str,
    batch: int | None,
    hardware: Sequence[str] | None,
    nodes: int | None,
    settings: Sequence[str] | None,
    inference: bool,
    overheads: str | None,
    edit: Sequence[str],
    every_rank: bool,
    target: Output,
    roofline: Path | None = None,
    plan: Path | None = None,
    explain: str | None = None,
) -> None:
    """Predict the workload `name`, or list the catalogue, and write the answer to `target`.

    `settings` beginning with `workload.` change it, all others the hardware; `roofline` is drawn.
    Tables lie as the file `plan` says. With `explain` only that node is told.
    """
    from perfmodel.workload import load_workload, workloads

    if name == LIST:
        _list([load_workload(each) for each in workloads()], target)
        return
    if not hardware:
        raise UsageError(f"--workload {name}: say where it runs: --hardware dgx-h100")
    own = [text for text in settings or () if text.startswith(OF_WORKLOAD)]
    found = load_workload(name)
    if own:
        found = found.with_(**dict(change_of(text) for text in own))
    parts = [part_of(each, settings or ()) for each in hardware]

    from perfmodel.prediction import predict_workload

    with working("predicting"):
        if plan is not None:
            if len(parts) > 1:
                raise UsageError("--plan is for one machine: expected one --hardware")
            answer = _as_planned(
                found, parts[0], plan, batch, nodes, inference, overheads, edit, every_rank
            )
        else:
            answer = predict_workload(
                found,
                hardware=parts,
                batch=batch,
                nodes=nodes,
                train=not inference,
                overheads=overheads,
                edit=edit,
                every_rank=every_rank,
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


def _as_planned(
    workload: Workload,
    part: Part,
    path: Path,
    batch: int | None,
    nodes: int | None,
    inference: bool,
    overheads: str | None,
    edit: Sequence[str],
    every_rank: bool,
) -> Prediction:
    """The workload with its tables where a plan has them."""
    from perfmodel.designs import deployment_of
    from perfmodel.hardware import Cluster, Node, cluster
    from perfmodel.plan.document import read_plan
    from perfmodel.prediction.deployment import predict_deployment

    if not isinstance(part, (Node, Cluster)):
        raise UsageError(f"--plan: {part.name} is no node or cluster")
    machine = cluster(part, nodes)
    deployment = deployment_of(workload, machine, batch, train=not inference)
    deployment = deployment.with_(placement=read_plan(path, workload, machine))
    return predict_deployment(deployment, overheads=overheads, edit=edit, every_rank=every_rank)


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

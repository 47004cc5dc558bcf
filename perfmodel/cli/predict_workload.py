"""`perfmodel predict --workload`: a model configuration on hardware."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfmodel.cli.output import Output, working
from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from perfmodel.hardware import Part

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
    target: Output,
) -> None:
    """Predict the workload `name`, or list the catalogue, and write the answer to `target`.

    `settings` beginning with `workload.` change it, all others the hardware.
    """
    from perfmodel.workload import load_workload, workloads

    if name == LIST:
        for each in workloads():
            found = load_workload(each)
            print(f"{found.name:28} {found.implementation.name:10} {found.title}")
        return
    if not hardware:
        raise UsageError(f"--workload {name}: say where it runs: --hardware dgx-h100")
    own = [text for text in settings or () if text.startswith(OF_WORKLOAD)]
    found = load_workload(name)
    if own:
        found = found.with_(**dict(_change(text) for text in own))
    parts = [_part(each, nodes, settings or ()) for each in hardware]

    from perfmodel.prediction import predict_workload

    with working("predicting"):
        answer = predict_workload(
            found,
            hardware=parts,
            batch=batch,
            nodes=nodes,
            train=not inference,
            overheads=overheads,
        )

    def table(console: Console) -> None:
        from perfmodel.cli.predict_tables import show_prediction

        show_prediction(console, answer)

    target.write(
        answer=answer.to_dict,
        csv=lambda: answer.to_frame().to_csv(index=False),
        table=table,
        warnings=answer.warnings,
    )


def _change(text: str) -> tuple[str, object]:
    """`workload.implementation.precision=bf16` as a keyword of `Workload.with_`."""
    import tomllib

    name, equals, value = text.removeprefix(OF_WORKLOAD).partition("=")
    if not equals:
        raise UsageError(f"--set {text!r}: expected workload.KEY=VALUE")
    try:
        found = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        found = value.strip()
    return name.strip().replace(".", "__"), found


def _part(name: str, nodes: int | None, settings: Sequence[str]) -> Part:
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

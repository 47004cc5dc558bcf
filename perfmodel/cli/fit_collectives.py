"""`perfmodel fit collectives`: a machine's own points from logs, or the whole model anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from perfmodel.cli.options import NodesOption
from perfmodel.cli.output import check_writable, working
from perfmodel.errors import UsageError

MAX_LOG_BYTES = 100_000_000


def collectives(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where the result goes (JSON).")
    ],
    log: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option(metavar="FILE", help="Output of nccl-tests, rccl-tests or PARAM."),
    ] = None,
    hardware: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="NODE|FILE", help="The node that the log was measured on."),
    ] = None,
    collective: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="OP", help="The collective, where the log does not name it."),
    ] = None,
    ranks: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(metavar="N", help="The ranks, where the log does not list them."),
    ] = None,
    nodes: NodesOption = None,
    curves: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option(metavar="CURVES.csv", help="Fit the model anew, to tables of curves …"),
    ] = None,
    data: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option(metavar="POINTS.csv[.gz]", help="… and their points, in the same order."),
    ] = None,
) -> None:
    """Correct collectives by what a machine measured, or fit the collective model to curves.

    \b
    Examples:
      perfmodel fit collectives --log all_reduce.log --hardware dgx-h100 -o mine.json
      perfmodel fit collectives --curves curves.csv --data points.csv.gz -o model.json
    """
    inputs = [*(log or []), *(curves or []), *(data or [])]
    if not inputs or bool(log) == bool(curves) or len(curves or []) != len(data or []):
        raise UsageError("fit collectives: give --log and --hardware, or --curves and --data each")
    for path in inputs:
        check_writable(output, str(path))
    if log:
        typer.echo(_from_logs(log, hardware, collective, ranks, nodes, output))
    else:
        typer.echo(_from_curves(curves or [], data or [], output))


def _from_logs(
    logs: list[Path],
    hardware: str | None,
    collective: str | None,
    ranks: int | None,
    nodes: int | None,
    output: Path,
) -> str:
    if hardware is None:
        raise UsageError("fit collectives --log: name the machine with --hardware")

    from perfmodel.files import read_bytes
    from perfmodel.hardware import node
    from perfmodel.network.fabric import fabric_of
    from perfmodel.network.logs import parse
    from perfmodel.network.machine_file import load_machine, save_machine

    machine = node(hardware)
    points = [
        point
        for path in logs
        for point in parse(
            read_bytes(path, max_bytes=MAX_LOG_BYTES).decode("utf-8", "replace"),
            str(path),
            op=collective,
            ranks=ranks,
            nodes=nodes,
        )
    ]
    about: dict[str, Any] = {"machine": machine.name, "logs": [path.name for path in logs]}
    save_machine(output, points, fabric_of(machine), about)
    found = load_machine(output)
    kinds = sorted({f"{p.op} among {p.ranks}" for p in points})
    return f"{output}: {len(points)} points ({', '.join(kinds)}); answers are {found.level}"


def _from_curves(curves: list[Path], data: list[Path], output: Path) -> str:
    from perfmodel.fit.collectives import fit_collectives
    from perfmodel.network.store import save

    pairs = [(str(one), str(other)) for one, other in zip(curves, data, strict=True)]
    with working("fitting") as say:
        model = fit_collectives(pairs, lambda name: say(f"fitting: {name}"))
    save(output, model)
    reach = ", ".join(f"{name} {value:.2f}" for name, value in model.spreads.items())
    return (
        f"{output}: {model.about['rows']} points; spread of log time on repositories left out: "
        f"{reach}"
    )

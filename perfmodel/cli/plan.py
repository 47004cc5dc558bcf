"""`perfmodel plan`: a sharding plan for a workload on a cluster, and why."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.options import MAX_SAMPLES, FormatOption, NodesOption, OutputOption, set_option
from perfmodel.cli.output import Output, check_target, working, wrote
from perfmodel.cli.tables import Times, counted, filled, say
from perfmodel.files import write_text

if TYPE_CHECKING:
    from perfmodel.cli.console import Console
    from perfmodel.explore.planner import Plan


SHOWN, SHOWN_LAYOUTS = 40, 5


class Estimator(StrEnum):
    """Whose formulas decide."""

    PERFMODEL = "perfmodel"
    TORCHREC = "torchrec"


def plan(
    workload: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="The model configuration to lay out.")
    ],
    hardware: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="The node or cluster to lay it out on.")
    ],
    nodes: NodesOption = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_SAMPLES, help="Samples per step, of all ranks together."),
    ] = None,
    inference: Annotated[
        bool, typer.Option("--inference", help="Plan for the forward pass alone.")
    ] = False,
    estimator: Annotated[
        Estimator,
        typer.Option(
            help="perfmodel: the step as predicted, overlapped. torchrec: the best by the formulas "
            "of TorchRec's planner."
        ),
    ] = Estimator.PERFMODEL,
    against: Annotated[
        Estimator | None,
        typer.Option(help="Make this estimator's plan as well, and say what differs."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        set_option(
            "the workload (workload.table.alpha=0.8) or the hardware (node.host_memory_bytes=4e11)"
        ),
    ] = None,
    torchrec: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the plan as TorchRec's sharding plan as well."),
    ] = None,
    format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Where each table should lie so that a step takes least time.

    By which sharding, on which ranks and in which memory. The search works on classes of ranks;
    its best layouts are then scheduled in full. The JSON is what `--plan` of `predict` and
    `compare` reads, which take TorchRec's plans as well.

    \b
    Examples:
      perfmodel plan --workload dlrm-dcnv2 --hardware dgx-a100-80gb
      perfmodel plan --workload neo-a --hardware zionex-16 -o plan.json
      perfmodel predict --workload neo-a --hardware zionex-16 --plan plan.json
      perfmodel plan --workload neo-a --hardware zionex-16 --estimator torchrec
      perfmodel plan --workload neo-a --hardware zionex-16 --against torchrec
    """
    target = Output(
        format, output, hint="the plan; use it with --plan of predict and compare", with_table=True
    )
    if torchrec is not None:
        check_target(torchrec)

    from perfmodel import api

    with working("planning") as begin:

        def planned(by: Estimator) -> Plan:
            return api.plan(
                workload,
                hardware,
                settings=settings or [],
                nodes=nodes,
                batch=batch,
                train=not inference,
                estimator=by.value,
                begin=begin,
            )

        found = planned(estimator)
        other = planned(against) if against else None
    if torchrec is not None:
        import json

        from perfmodel.explore.planner.document import torchrec_document

        planned_for = found.deployment
        linked = planned_for.machine.linked_gpus
        document = torchrec_document(found.placement, planned_for.workload, linked)
        write_text(torchrec, json.dumps(document, indent=1))
        wrote(torchrec, "TorchRec's sharding plan")
    target.write_result(found, partial(_show, other=other), found.deployment.notes)


def _show(console: Console, planned: Plan, other: Plan | None) -> None:
    from perfmodel.cli.hardware_tables import say_assumed_figures
    from perfmodel.explore.planner.planned import differences

    result = planned.result
    tried_us = [each[key] for each in planned.tried for key in ("step_us", "surrogate_us")]
    times = Times([result.step_us, result.high_us, *tried_us])
    say(
        console,
        f"{result.hardware}: {times(result.step_us)} {times.unit} per step "
        f"({times(result.low_us)} to {times(result.high_us)}), "
        f"the busiest rank looks up {planned.imbalance:.2f} times the mean; "
        f"search {planned.gap_frac:.1%} above its lower bound",
    )
    say_assumed_figures(console, result.hardware, [each.to_dict() for each in result.assumed])
    for line in differences(planned, other) if other else ():
        say(console, line)
    title = f"Fastest of {counted(len(planned.tried), 'layout')} scheduled in full ({times.unit})"
    tried = []
    for each in sorted(planned.tried, key=lambda each: float(each["step_us"]))[:SHOWN_LAYOUTS]:
        mix = ", ".join(f"{count} {name}" for name, count in each["sharding"].items())
        tried.append((mix, times(each["step_us"]), times(each["surrogate_us"])))
    console.show(filled(title, ("tables by sharding", "step", "surrogate"), tried))
    names = ("table", "rows x dim x pooling", "sharding", "ranks", "in", "GB", "why")
    ordered = sorted(planned.tables, key=lambda row: -row["work_us"])
    rows = []
    for row in ordered[:SHOWN]:
        size = f"{row['rows']:,} x {row['dim']} x {row['pooling']:.3g}"
        held = "<0.001" if row["hbm_gb"] < 0.001 else f"{row['hbm_gb']:,.3f}"
        where = (row["sharding"], _ranks(row["ranks"]), row["tier"], held)
        rows.append((str(row["table"]), size, *where, row.get("why", "")))
    table = filled("Tables, those with most work first", names, rows, texts=len(names))
    for column in table.columns[:-1]:
        column.no_wrap = True
    table.columns[5].justify, table.columns[-1].overflow = "right", "fold"
    console.show(table)
    if len(ordered) > SHOWN:
        say(console, f"and {len(ordered) - SHOWN} more: --format csv or json has all")


def _ranks(ranks: list[int]) -> str:
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))

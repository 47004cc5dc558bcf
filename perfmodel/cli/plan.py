"""`perfmodel plan`: a sharding plan for a workload on a cluster, and why."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from perfmodel.cli import options as opts
from perfmodel.cli.options import option
from perfmodel.cli.output import Output, check_target, working, wrote
from perfmodel.files import write_text
from perfmodel.reporting.tables import Table, columns, counted, interval
from perfmodel.units import human_us

if TYPE_CHECKING:
    from perfmodel.cli.console import Console
    from perfmodel.explore.planner import Plan


SHOWN, SHOWN_LAYOUTS = 40, 5


class Estimator(StrEnum):
    """Whose formulas decide."""

    PERFMODEL = "perfmodel"
    TORCHREC = "torchrec"


def plan(
    workload: Annotated[str, option("The model configuration to lay out.", "NAME|FILE")],
    hardware: Annotated[str, option("The node or cluster to lay it out on.", "NAME|FILE")],
    nodes: opts.NodesOption = None,
    batch: Annotated[
        int | None, option("Samples per step, of all ranks together.", min=1, max=opts.MAX_SAMPLES)
    ] = None,
    inference: opts.InferenceOption = False,
    estimator: Annotated[
        Estimator,
        option("Whose costs decide: the step as predicted, or TorchRec's formulas."),
    ] = Estimator.PERFMODEL,
    against: Annotated[
        Estimator | None, option("Make this estimator's plan as well, and say what differs.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        opts.set_option(
            "the workload (workload.table.alpha=0.8) or the hardware (node.host_memory_bytes=4e11)"
        ),
    ] = None,
    torchrec: Annotated[
        Path | None, option("Write the plan as TorchRec's sharding plan as well.", "FILE")
    ] = None,
    format: opts.FormatOption = None,
    output: opts.OutputOption = None,
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


_TRIED = columns("mix=tables by sharding;step_us=step:us;surrogate_us=quick estimate:us")
_TABLES = columns(
    "table:name;size=rows x dim x pooling:name;sharding:name;where=ranks:name;tier=in:name;gb=GB:s;"
    "why"
)


def _show(console: Console, planned: Plan, other: Plan | None) -> None:
    from perfmodel.cli.hardware_tables import say_assumed_figures
    from perfmodel.explore.planner.planned import differences

    result = planned.result
    bounds = interval(result.low_us, result.high_us)
    console.say(
        f"{result.hardware}: {human_us(result.step_us)} per step ({bounds}), "
        f"the busiest rank looks up {planned.imbalance:.2f} times the mean; "
        f"at most {planned.gap_frac:.1%} from the optimum, by the estimate"
    )
    say_assumed_figures(console, result.hardware, [each.to_dict() for each in result.assumed])
    for line in differences(planned, other) if other else ():
        console.say(line)
    fastest = sorted(planned.tried, key=lambda each: float(each["step_us"]))[:SHOWN_LAYOUTS]
    tried = [
        dict(each) | {"mix": ", ".join(f"{n} {name}" for name, n in each["sharding"].items())}
        for each in fastest
    ]
    title = f"Fastest of {counted(len(planned.tried), 'layout')} scheduled in full"
    console.show(Table(title, _TRIED, tried))
    ordered = sorted(planned.tables, key=lambda row: -row["work_us"])
    records = [
        dict(row)
        | {
            "table": str(row["table"]),
            "size": f"{row['rows']:,} x {row['dim']} x {row['pooling']:.3g}",
            "where": _ranks(row["ranks"]),
            "gb": "<0.001" if row["hbm_gb"] < 0.001 else f"{row['hbm_gb']:,.3f}",
            "why": row.get("why", ""),
        }
        for row in ordered[:SHOWN]
    ]
    title = "Tables, those with most work first"
    console.show(Table(title, _TABLES, records, full_names=True))
    if len(ordered) > SHOWN:
        console.say(f"and {len(ordered) - SHOWN} more: --format csv or json has all")


def _ranks(ranks: list[int]) -> str:
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))

"""`perfmodel predict`: how long one batch takes, of a trace or of a model's configuration."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.units import counted, human_us
from perfmodel.cli.console import LINE
from perfmodel.cli.output import STDOUT, Output, check_figure, refuse_cautions, save_figure
from perfmodel.cli.prediction_options import DEFAULTS, PredictionOptions, refuse_conflicting
from perfmodel.errors import UsageError
from perfmodel.reporting.predicted import prediction_blocks
from perfmodel.reporting.tables import Block, Record, Table, columns, number_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfmodel.prediction.types import Prediction


WORKLOADS = "perfmodel.workloads/1"
SCHEMA = "perfmodel.explanation/1"
LIST = "list"
_READ = columns("part:name;figure:name;name:name;value;unit:name;source")


def predict(
    trace: str | None = None,
    workload: str | None = None,
    inference: bool = False,
    rate: float | None = None,
    p99_ms: float | None = None,
    max_delay_ms: float | None = None,
    every_rank: bool = False,
    largest_batch: bool = False,
    init: list[str] | None = None,
    input: list[str] | None = None,
    training: bool = False,
    optimizer: str | None = None,
    dtype: str | None = None,
    autocast: str | None = None,
    assume: list[str] | None = None,
    options: PredictionOptions = DEFAULTS,
    plan: Path | None = None,
    figure: Path | None = None,
    explain: str | None = None,
    target: Output = STDOUT,
) -> None:
    from perfmodel.ops.read.module import Call, assumed, program_of
    from perfmodel.prediction.breakdown.completeness import incomplete
    from perfmodel.prediction.serving import Serving

    check_figure(figure)
    arguments = []
    for text in init or ():  # of the constructor: JSON where it is some, else text
        with suppress(ValueError, RecursionError):
            text = json.loads(text)
        arguments.append(text)
    program = program_of(trace or "", arguments, input or ())
    if (max_delay_ms, rate, p99_ms) != (None, None, None) and not (workload and inference):
        raise UsageError("--rate, --p99-ms: they are of --workload with --inference")
    if largest_batch:
        under_load = {"rate": rate, "p99_ms": p99_ms, "max_delay_ms": max_delay_ms}
        refuse_conflicting("--largest-batch", under_load)
    of_modules = {"init": init, "input": input, "training": training, "optimizer": optimizer}
    of_modules |= {"dtype": dtype, "autocast": autocast, "assume": assume}
    of_workloads = {"inference": inference, "every_rank": every_rank, "plan": plan}
    if program is None:
        refuse_conflicting("anything but FILE.py:CLASS", of_modules)
    source: Any = None
    about: dict[str, Any] = {}
    if program is not None:
        refuse_conflicting("FILE.py:CLASS", {"workload": workload, **of_workloads})
        call = Call(training, optimizer, dtype, autocast, None, assumed(assume or ()))
        source = options.traced(program, call)
    elif workload is not None:
        refuse_conflicting("--workload", {"trace": trace, "figure": figure})
        if workload == LIST:
            _list(target)
            return
        from perfmodel.explore.torchrec import read_plan

        source = options.configuration(workload)
        about = {"train": not inference, "every_rank": every_rank}
        about |= {"serving": Serving.of(rate, p99_ms, max_delay_ms)}
        about |= {"layout": None if plan is None else partial(read_plan, plan)}
    else:
        refuse_conflicting("a trace", of_workloads)
        options.check()
        source = options.read(trace)
    prediction = options.predict(source, largest_batch=largest_batch, **about)
    if options.strict and program is None and workload is None:
        refuse_cautions(source.source, prediction.cautions)
    save_figure(figure, prediction.plot)
    if explain is not None:
        _write_explanation(prediction, explain, target)
        return

    cautions = [*incomplete(prediction.gaps), *prediction.cautions]
    if workload is not None:
        from perfmodel.workload.load import is_recording

        told = ["host time is a profile's, not the trace's: `perfmodel predict TRACE`"]
        told *= is_recording(workload)
        cautions += told
        prediction = replace(prediction, warnings=[*told, *prediction.warnings])
    show = partial(prediction_blocks, in_full=LINE.get().sources)
    target.write_result(prediction, show, prediction.warnings, cautions)


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


def _write_explanation(prediction: Prediction, node: str, target: Output) -> None:
    """Write why `node` takes what it takes, on each hardware.

    Raises `UsageError` where there is no such node.
    """
    answers = [result.explain(node).to_dict() for result in prediction.results]
    rows = [
        {
            "hardware": answer["hardware"],
            "node": answer["node"]["number"],
            "part": answer["reason"]["what"],
            "term": term,
            "value": value,
        }
        for answer in answers
        for term, value in (
            ("duration_us", answer["reason"]["duration_us"]),
            ("formula", answer["reason"]["formula"]),
            *answer["reason"]["terms"].items(),
        )
    ]

    document = {"schema": SCHEMA, "results": answers, "warnings": prediction.warnings}
    blocks = chain.from_iterable(map(_explained, answers))
    target.write(lambda: document, lambda: rows, lambda: blocks, prediction.warnings)


def _explained(answer: Record) -> Iterator[Block]:
    """Where the node stands, its reason, and the values that it read."""
    node, waits, reason = answer["node"], answer["waits_for"], answer["reason"]
    if answer["matches"] > 1:
        yield f"{counted(answer['matches'], 'node')} match {answer['asked']}; the longest:"
    op = f" of {node['op']}" if node["op"] else ""
    yield f"node {node['number']}: {node['label']}{op}; {node['kind']}, {node['cause']}"
    step = f"step {node['step']}" if node["step"] else "outside of the steps"
    where = f"{answer['hardware']}, {answer['mode']}: rank {node['rank']}, {node['resource']}"
    yield f"{where}, {step.replace('step step', 'step')}"
    importance = "no step waits for it"
    if node["on_critical_path"]:
        importance = "on the critical path of its step"
    elif node["slack_us"] is not None:
        importance = f"not on the critical path: {human_us(node['slack_us'])} of slack"
    start = human_us(node["start_us"])
    yield f"{human_us(node['duration_us'])}, from {start} on; {importance}"
    if waits:
        yield (
            f"starts after node {waits['number']} ({waits['label']}) by its {waits['edge']} edge, "
            f"lag {human_us(waits['lag_us'])}"
        )
    yield f"\n{reason['what']}: {human_us(reason['duration_us'])}"
    yield f"formula: {reason['formula']}"
    terms = [
        {"term": key, "value": value if isinstance(value, str) else f"{value:,.10g}"}
        for key, value in reason["terms"].items()
        if value is not None
    ]
    if terms:
        yield Table("", "term;value", terms, full_names=True)
    yield from _read("Figures read", reason["figures"])
    yield from _read("Coefficients read", sorted(reason["coefficients"], key=itemgetter("name")))


def _read(title: str, read: Sequence[Record]) -> Iterator[Table]:
    """A row for each figure or coefficient that was read, with its source."""
    if read:
        known = (each for each in _READ if each.key in read[0])
        records = [dict(each) | {"value": number_text(each["value"])} for each in read]
        yield Table(title, list(known), records, full_names=True)

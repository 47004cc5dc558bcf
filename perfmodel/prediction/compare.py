"""Designs against each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice, product
from math import inf
from typing import NamedTuple

from perfmodel.base.units import US_PER_S, human_us
from perfmodel.designs.composed import (
    DEFAULT,
    OWN_SETTINGS,
    Composed,
    Rung,
    idle,
    plain,
    rungs,
    same_step,
    without_effect,
)
from perfmodel.designs.deployment import Budgeted, Deployment, Design, changes
from perfmodel.designs.layouts.default import deployment_of, shortage
from perfmodel.embedding import Placement
from perfmodel.errors import Note, PerfmodelError, prefixed
from perfmodel.hardware import Cluster
from perfmodel.lowering.host import load_profile
from perfmodel.prediction.comparison import Comparison, DesignResult, Ladder
from perfmodel.prediction.run import predict
from perfmodel.prediction.running_cost import Prices, activity_of, operating_costs
from perfmodel.prediction.serving import Serving
from perfmodel.prediction.step import in_designs_software, least_us, name_of, placed
from perfmodel.prediction.types import Prediction, Result
from perfmodel.workload import Workload
from perfmodel.workload.memory_tiers import device_use

PredictedDeployment = tuple[Deployment, Prediction]
ROUNDING_FRAC = 1e-12
"""Steps that differ by no more take as long."""


def fastest(
    design: Design, start: Deployment, *, overheads: str | None = None
) -> PredictedDeployment:
    """`start` under `design`, and its prediction: with all of a budget, or with half of it, a
    quarter, and so on, whichever fits and is fastest; a note says so. Twice a budget is never
    slower. Where device memory does not hold the workload's own layout, both that and the searched
    one are tried (`Deployment.layouts`). What cannot be faster by a lower bound is not predicted.

    Raises what applying the design as it is set raises, and what predicting it does where less of
    its budget does not fit either.
    """
    ways = _ways(design, start)
    found: PredictedDeployment | None = None
    refused = PerfmodelError()
    best, best_us, why_less = 0, inf, "what is set does not fit"

    def limit_us(at: int) -> float:
        """What a way must stay below to be the fastest, or as fast and earlier."""
        return best_us * (1 - ROUNDING_FRAC if at > best else 1 + ROUNDING_FRAC)

    try:
        found = ways[0][0], _predicted(ways[0][0], overheads)
        best_us = found[1].results[0].step_us
        why_less = f"what is set is no faster, {human_us(best_us)}"
    except PerfmodelError as error:
        refused = error
    fits = found is not None
    least: list[tuple[float, int]] = []
    for at, (deployment, _) in enumerate(ways[1:], 1):
        with suppress(PerfmodelError):
            least.append((least_us(deployment, overheads, enough_us=limit_us(at)), at))
    for us, at in sorted(least):
        if us >= limit_us(at):
            continue
        deployment, changed = ways[at]
        if changed:
            note = f"{changed}: {why_less}"
            without_gain = (*deployment.without_gain, *(note,) * fits)
            deployment = deployment.with_(note, without_gain=without_gain)
        with suppress(PerfmodelError):
            prediction = _predicted(deployment, overheads)
            if (step_us := prediction.results[0].step_us) < limit_us(at):
                found, best, best_us = (deployment, prediction), at, step_us
    if found is None:
        raise refused
    return found


def _ways(design: Design, start: Deployment) -> list[tuple[Deployment, str]]:
    """`start` under `design` as it is set, then with less of its budget, each with what differs."""
    layouts = start.layouts()
    ways = [(design.apply(layouts[0]), "")]
    budgets = design.within(start) if isinstance(design, Budgeted) else ()
    for layout, less in islice(product(layouts, (design, *budgets)), 1, None):
        with suppress(PerfmodelError):
            deployment = less.apply(layout)
            if any(replace(deployment, notes=()) == replace(way, notes=()) for way, _ in ways):
                continue
            pairs: Iterable[tuple[Design, Design]] = [(design, less)]
            if isinstance(design, Composed) and isinstance(less, Composed):
                pairs = zip(design.designs, less.designs, strict=True)
            changed = [text for pair in pairs if (text := changes(*pair))]
            ways.append((deployment, "" if less is design else ", ".join(changed)))
    return ways


def _predicted(deployment: Deployment, overheads: str | None) -> Prediction:
    """With the notes of the deployment before all others."""
    found = predict(replace(deployment, notes=()), overheads=overheads)
    notes = [prefixed(found.results[0].hardware, note) for note in deployment.notes]
    return replace(found, warnings=list(dict.fromkeys([*notes, *found.warnings])))


def compare_designs(
    workload: Workload,
    machine: Cluster,
    designs: Sequence[Composed],
    *,
    batch: int | None = None,
    train: bool = True,
    serving: Serving | None = None,
    prices: Prices | None = None,
    overheads: str | None = None,
    placement: Placement | None = None,
    ladder: bool = False,
) -> Comparison:
    """Each of `designs` on `workload` and `machine`, as the workload's own settings deploy it, or
    with its tables where `placement` has them.

    `serving` asks for latency from a sample's arrival to its batch's answer.
    `ladder`: of each design its steps, one on top of the other and each as it is set, from a
    deployment that has none of them.
    A design that makes no sense, or does not fit, is a row that says why. Raises `WorkloadError`
    where the deployment that all start from cannot be, `ModelError` for a profile.
    """
    if overheads is not None:
        load_profile(overheads)

    def started(model: Workload) -> Deployment:
        start = deployment_of(model, machine, batch, train=train)
        return start if placement is None else start.with_(placement=placement, own_layout=None)

    start, asked = started(workload), Asked(serving, prices, overheads)
    source = {
        "workload": workload.name,
        "hardware": name_of(machine),
        "devices": machine.gpus,
        "batch": start.batch,
        "training": train,
        "rate_per_s": serving and serving.rate_per_s,
    }
    if not ladder:
        lacks_memory = placement is None and not start.fits
        rows = (
            DesignResult(design.text, why_not=shortage(start))
            if lacks_memory and design.text == DEFAULT
            else _compared(design, start, asked)
            for design in designs
        )
        return Comparison(source, tuple(rows))
    firsts = [(design, started(plain(workload, design))) for design in designs]
    names = [DEFAULT if same_step(first, start) else PLAIN_START for _, first in firsts]
    steps = [_ladder(*each, asked, name) for each, name in zip(firsts, names, strict=True)]
    return Ladder(source, tuple(chain.from_iterable(steps)))


PLAIN_START = "plain"
"""Where a ladder begins that takes away what the workload's own settings do."""


class Asked(NamedTuple):
    """What is asked of each design: latency as it is served, prices, the host's profile."""

    serving: Serving | None
    prices: Prices | None
    overheads: str | None


def _ladder(whole: Composed, start: Deployment, asked: Asked, first: str) -> list[DesignResult]:
    """A row for `start`, which is called `first`, and for each step of `whole`."""
    rows, before = list[DesignResult](), start
    for step, designs, acts_on, is_plain in Rung(first, Composed(DEFAULT, ())), *rungs(whole):
        try:
            deployment = designs.deployed(start)
            is_same = bool(rows) and same_step(deployment, before)
            if is_same and is_plain:
                continue
            row = _row(whole.text, deployment, _predicted(deployment, asked.overheads), asked)
        except PerfmodelError as error:
            rows.append(DesignResult(whole.text, step=step, why_not=str(error)))
            continue
        told = (Note(f"{step} {idle(acts_on, deployment)}"),) if is_same else ()
        rows.append(replace(row, step=step, notes=(*row.notes, *told), without_gain=told))
        before = deployment
    return rows


def _compared(design: Composed, start: Deployment, asked: Asked) -> DesignResult:
    try:
        is_native = design.text == OWN_SETTINGS
        if not is_native and start.workload.sequence.layers:  # tables stay where they are
            other = design.apply(start)
            is_native = other == replace(start, workload=other.workload, notes=other.notes)
        if is_native:
            deployment = design.apply(start)
            notes = deployment.notes[len(start.notes) :]
            deployment = placed(replace(deployment, notes=notes, in_own_software=True))
            compared = _predicted(deployment, asked.overheads)
        else:
            deployment, compared = fastest(design, start, overheads=asked.overheads)
            idle_settings = without_effect(design, start)
            compared = replace(compared, warnings=[*compared.warnings, *idle_settings])
    except PerfmodelError as error:
        return DesignResult(design.text, why_not=str(error))
    if deployment.in_own_software:
        result = compared.results[0]
        memory = result.memory or {}
        known = memory["tables_bytes"], memory["resident_bytes"] + memory["temporary_bytes"]
        use = device_use(*known, deployment.machine.node.device)
        result = replace(result, memory=memory | {"tiers": [use.to_dict()]})
        compared = replace(compared, results=[result])
    return _row(design.text, deployment, compared, asked)


def _row(text: str, deployment: Deployment, compared: Prediction, asked: Asked) -> DesignResult:
    """What is said of a deployment that is predicted."""
    result = compared.results[0]
    name = f"{result.hardware}: "
    notes = tuple(type(each)(each.removeprefix(name)) for each in compared.warnings)
    rate = deployment.batch / result.step_us * US_PER_S
    costs = operating_costs(deployment.machine, asked.prices)
    bill = costs.economics(rate, activity_of(result, deployment.machine))
    row = DesignResult(text, deployment, result, bill, None, notes, deployment.without_gain)
    if asked.serving is None:
        return row

    def result_of(batch: int) -> Result:
        if batch == deployment.batch:
            return result
        return _predicted(replace(deployment, batch=batch), asked.overheads).results[0]

    load = asked.serving.served(deployment.batch, deployment.ranks, result_of)
    return replace(row, load=load, notes=(*notes, *asked.serving.remarks(load, deployment.batch)))


def with_default(designs: Sequence[Composed], workload: Workload) -> tuple[Composed, ...]:
    """`designs` behind `default`, and `own`, the workload in its own software, where that is not
    what designs edit. Neither twice; of sequences, both are one."""
    names = [design.text for design in designs]
    listed = designs if DEFAULT in names else (Composed(DEFAULT, ()), *designs)
    place = names.index(DEFAULT) + 1 if DEFAULT in names else 1
    has_own = not in_designs_software(workload) and OWN_SETTINGS not in names
    own = (Composed(OWN_SETTINGS, ()),) if has_own else ()
    return (*listed[:place], *own, *listed[place:])

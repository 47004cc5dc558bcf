"""Designs against each other, and from which share of popular samples on one is faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from perfmodel.designs import Deployment, deployment_of
from perfmodel.designs.composed import DEFAULT, OWN_SETTINGS, Composed
from perfmodel.designs.deployment import Budgeted, Design, changes
from perfmodel.embedding import Placement
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.hardware import Cluster
from perfmodel.hardware.reads import FigureRead
from perfmodel.prediction.comparison import Comparison, DesignResult
from perfmodel.prediction.power_and_cost import Prices
from perfmodel.prediction.run import Request, predict, predict_deployed
from perfmodel.prediction.running_cost import Activity, operating_costs
from perfmodel.prediction.shapes import NotFaster
from perfmodel.prediction.types import Prediction, Result
from perfmodel.timeline.offered import require_rate
from perfmodel.units import US_PER_S
from perfmodel.workload import Workload
from perfmodel.workload.memory_tiers import device_use

_LEAST_FRAC = 1e-3
_STEPS = 12


def break_even_frac(
    with_share: Callable[[float], Deployment], baseline: Deployment, most_frac: float = 1.0
) -> float | None:
    """The least share of popular samples, within 1/1000, with which a step takes no longer than
    the baseline's; None where `most_frac` is not enough.

    More popular samples are taken to make no step longer. Raises `UsageError` for a share that
    cannot be.
    """
    if not _LEAST_FRAC <= most_frac <= 1.0:
        raise UsageError(f"break-even: at most {most_frac:g} of the samples popular")
    limit_us = predict(baseline).results[0].step_us

    def is_enough(share: float) -> bool:
        return predict(with_share(share)).results[0].step_us <= limit_us

    if is_enough(_LEAST_FRAC):
        return _LEAST_FRAC
    if not is_enough(most_frac):
        return None
    low, high = _LEAST_FRAC, most_frac
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
        if high - low < _LEAST_FRAC:
            break
    return high


PredictedDeployment = tuple[Deployment, Prediction]
ROUNDING_FRAC = 1e-12
"""Steps that differ by no more take as long."""


def fastest(
    design: Design, start: Deployment, *, overheads: str | None = None
) -> PredictedDeployment:
    """`start` under `design`, and its prediction: with all of a budget, or with half of it, a
    quarter, and so on, whichever fits and is fastest; a note says so. Twice a budget is never
    slower.

    Raises what applying the design as it is set raises, and what predicting it does where less of
    its budget does not fit either.
    """
    whole = design.apply(start)
    budgets = design.within(start) if isinstance(design, Budgeted) else ()
    seen, reads = [], dict[FigureRead, None]()
    best: PredictedDeployment | None = None
    refused: PerfmodelError | None = None
    for less in (design, *budgets):
        try:
            deployment = whole if less is design else less.apply(start)
        except PerfmodelError:
            continue
        if replace(deployment, notes=()) in seen:
            continue
        seen.append(replace(deployment, notes=()))
        if less is not design:
            why = "more does not fit" if refused else "more is no faster"
            deployment = deployment.with_(f"{_changes(design, less)}: {why}")
        limit_us = inf if best is None else best[1].results[0].step_us * (1 - ROUNDING_FRAC)
        try:
            request = Request(deployment, overheads=overheads)
            found = predict_deployed(deployment, request, faster_than_us=limit_us)
        except PerfmodelError as error:
            if less is design:
                refused = error
            reads |= dict.fromkeys(error.reads if isinstance(error, NotFaster) else ())
            continue
        reads |= dict.fromkeys(found.results[0].reads)
        if found.results[0].step_us < limit_us:
            best = deployment, found
    if best is None:
        assert refused is not None
        raise refused
    result = replace(best[1].results[0], reads=tuple(reads))
    return best[0], replace(best[1], results=[result])


def _changes(before: Design, after: Design) -> str:
    if not isinstance(before, Composed) or not isinstance(after, Composed):
        return changes(before, after)
    pairs = zip(before.designs, after.designs, strict=True)
    return ", ".join(told for told in (changes(*pair) for pair in pairs) if told)


BUSY_HOST_FRAC = 0.5
"""Assumed: of a host's cores, at work while its devices are."""
_DEPLOYED = ("torchrec", "tiered")
"""Implementations that designs' software equals where nothing is edited."""


def compare_designs(
    workload: Workload,
    machine: Cluster,
    designs: Sequence[Composed],
    *,
    batch: int | None = None,
    train: bool = True,
    rate_per_s: float | None = None,
    prices: Prices | None = None,
    overheads: str | None = None,
    placement: Placement | None = None,
) -> Comparison:
    """Each of `designs` on `workload` and `machine`, as the workload's own settings deploy it, or
    with its tables where `placement` has them.

    `rate_per_s` offers samples at a rate: latency from a sample's arrival to its batch's answer.
    A design that makes no sense, or does not fit, is a row that says why. Raises `WorkloadError`
    where the deployment that all start from cannot be, `UsageError` for a rate that cannot.
    """
    if rate_per_s is not None:
        require_rate(rate_per_s)
    start = deployment_of(workload, machine, batch, train=train)
    if placement is not None:
        start = start.with_(placement=placement)
    rows = tuple(_compared(design, start, rate_per_s, prices, overheads) for design in designs)
    source = {
        "workload": workload.name,
        "hardware": machine.name if machine.nodes == 1 else f"{machine.nodes} x {machine.name}",
        "devices": machine.gpus,
        "batch": start.batch,
        "training": train,
        "rate_per_s": rate_per_s,
    }
    return Comparison(source, rows)


def _compared(
    design: Composed,
    start: Deployment,
    rate_per_s: float | None,
    prices: Prices | None,
    overheads: str | None,
) -> DesignResult:
    try:
        predicted = _in_native_software if design.text == OWN_SETTINGS else fastest
        deployment, found = predicted(design, start, overheads=overheads)
    except PerfmodelError as error:
        return DesignResult(design.text, why_not=str(error))
    result = found.results[0]
    notes = tuple(type(each)(each.removeprefix(f"{result.hardware}: ")) for each in found.warnings)
    rate = deployment.batch / result.step_us * US_PER_S
    bill = operating_costs(deployment.machine, prices).economics(
        rate, activity_of(result, deployment)
    )
    row = DesignResult(design.text, deployment, result, bill, None, notes)
    return row if rate_per_s is None else replace(row, load=row.latency(rate_per_s))


def _in_native_software(
    design: Composed, start: Deployment, *, overheads: str | None
) -> PredictedDeployment:
    deployment = design.apply(start)
    found = predict(
        deployment.workload,
        hardware=[deployment.machine],
        batch=deployment.batch,
        train=deployment.train,
        overheads=overheads,
    )
    result = found.results[0]
    memory = result.memory or {}
    tables_bytes = memory["tables_bytes"]
    device = deployment.machine.node.device
    use = device_use(tables_bytes, memory["total_bytes"] - tables_bytes, device)
    result = replace(result, memory=memory | {"tiers": [use.to_dict()]})
    return deployment, replace(found, results=[result])


def activity_of(result: Result, deployment: Deployment) -> Activity:
    """Shares of the period that devices, hosts, adapters and drives work, by the slowest rank."""
    step_us = result.step_us
    busy = {row["family"]: min(row["time_us"] / step_us, 1.0) for row in result.families}
    is_cpu = deployment.machine.node.device.target == "cpu"
    across = deployment.machine.nodes > 1
    return Activity(
        device_frac=1.0 if is_cpu else min(result.rank.gpu_active_us / step_us, 1.0),
        host_frac=max(BUSY_HOST_FRAC, busy.get("host_memory", 0.0)),
        nic_frac=busy.get("collective", 0.0) if across else 0.0,
        storage_frac=busy.get("storage", 0.0),
    )


def with_default(designs: Sequence[Composed], workload: Workload) -> tuple[Composed, ...]:
    """`designs` after the deployment before them, where they have none; and behind that `own`, the
    workload in its own software, where that is not what designs edit. Neither twice."""
    names = [design.text for design in designs]
    listed = designs if DEFAULT in names else (Composed(DEFAULT, ()), *designs)
    place = names.index(DEFAULT) + 1 if DEFAULT in names else 1
    has_own = workload.implementation.name not in _DEPLOYED and OWN_SETTINGS not in names
    own = (Composed(OWN_SETTINGS, ()),) if has_own else ()
    return (*listed[:place], *own, *listed[place:])

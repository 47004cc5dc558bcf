"""A design with as much of the memory that it may use as makes its steps fastest."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from perfmodel.designs import Deployment, Design
from perfmodel.designs.budget import Budgeted, changes
from perfmodel.designs.composed import Composed
from perfmodel.errors import PerfmodelError
from perfmodel.hardware.reads import Read
from perfmodel.prediction.deployment import predict_deployment
from perfmodel.prediction.steady import NotFaster
from perfmodel.prediction.types import Prediction

Found = tuple[Deployment, Prediction]
ROUNDING_FRAC = 1e-12
"""Steps that differ by no more take as long."""


def fastest(design: Design, start: Deployment, *, overheads: str | None = None) -> Found:
    """`start` under `design`, and its prediction: with all of a budget, or with half of it, a
    quarter, and so on, whichever fits and is fastest; a note says so. Twice a budget is never
    slower.

    Raises what applying the design as it is set raises, and what predicting it does where less of
    its budget does not fit either.
    """
    whole = design.apply(start)
    best, refused = _predicted(whole, overheads)
    if not isinstance(design, Budgeted):
        return _required(best, refused)
    seen, reads = [replace(whole, notes=())], dict.fromkeys(_reads(best))
    told = "more does not fit" if best is None else "more is no faster"
    for less in design.within(start):
        try:
            other = less.apply(start)
        except PerfmodelError:
            continue
        if replace(other, notes=()) in seen:
            continue
        seen.append(replace(other, notes=()))
        other = other.with_(f"{_changes(design, less)}: {told}")
        most_us = inf if best is None else _step_us(best) * (1 - ROUNDING_FRAC)
        found, refusal = _predicted(other, overheads, most_us)
        reads |= dict.fromkeys(refusal.reads if isinstance(refusal, NotFaster) else _reads(found))
        if found is not None and _step_us(found) < most_us:
            best = found
    deployment, prediction = _required(best, refused)
    result = replace(prediction.results[0], reads=tuple(reads))
    return deployment, replace(prediction, results=[result])


def _predicted(
    deployment: Deployment, overheads: str | None, faster_than_us: float = inf
) -> tuple[Found | None, PerfmodelError | None]:
    """A deployment and its prediction, or why there is none."""
    try:
        found = predict_deployment(deployment, overheads=overheads, faster_than_us=faster_than_us)
    except PerfmodelError as error:
        return None, error
    return (deployment, found), None


def _required(found: Found | None, refused: PerfmodelError | None) -> Found:
    if found is None:
        assert refused is not None
        raise refused
    return found


def _reads(found: Found | None) -> tuple[Read, ...]:
    return () if found is None else found[1].results[0].reads


def _step_us(found: Found) -> float:
    return found[1].results[0].step_us


def _changes(before: Design, after: Design) -> str:
    if not isinstance(before, Composed) or not isinstance(after, Composed):
        return changes(before, after)
    pairs = zip(before.designs, after.designs, strict=True)
    return ", ".join(told for told in (changes(*pair) for pair in pairs) if told)

"""A design with as much of the memory that it may use as makes its steps fastest."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.designs import Deployment, Design
from perfmodel.designs.budget import Budgeted, changes
from perfmodel.designs.composed import Composed
from perfmodel.errors import PerfmodelError
from perfmodel.hardware.reads import Read
from perfmodel.prediction.deployment import predict_deployment
from perfmodel.prediction.types import Prediction

Found = tuple[Deployment, Prediction]


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
        found, _ = _predicted(other, overheads)
        if found is None:
            continue
        reads |= dict.fromkeys(_reads(found))
        if best is None or _step_us(found) < _step_us(best):
            best = found
    deployment, prediction = _required(best, refused)
    result = replace(prediction.results[0], reads=tuple(reads))
    return deployment, replace(prediction, results=[result])


def _predicted(
    deployment: Deployment, overheads: str | None
) -> tuple[Found | None, PerfmodelError | None]:
    """A deployment and its prediction, or why there is none."""
    try:
        return (deployment, predict_deployment(deployment, overheads=overheads)), None
    except PerfmodelError as error:
        return None, error


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

"""A design with as much of the memory that it may use as makes its steps fastest."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.designs import Deployment, Design
from perfmodel.designs.budget import Budgeted, changes
from perfmodel.designs.composed import Composed
from perfmodel.errors import PerfmodelError
from perfmodel.prediction.deployment import predict_deployment
from perfmodel.prediction.types import Prediction

Found = tuple[Deployment, Prediction]


def fastest(design: Design, start: Deployment, *, overheads: str | None = None) -> Found:
    """`start` under `design`, and its prediction: with all of a budget, or with half of it, a
    quarter, and so on, whichever is fastest; a note says so. Twice a budget is never slower.

    Raises what applying and predicting the design as it is set raises.
    """
    deployment = design.apply(start)
    best = deployment, predict_deployment(deployment, overheads=overheads)
    if not isinstance(design, Budgeted):
        return best
    seen, reads = [replace(deployment, notes=())], dict.fromkeys(best[1].results[0].reads)
    for less in design.within(start):
        try:
            other = less.apply(start)
            if replace(other, notes=()) in seen:
                continue
            seen.append(replace(other, notes=()))
            other = other.with_(f"{_changes(design, less)}: more is no faster")
            found = predict_deployment(other, overheads=overheads)
        except PerfmodelError:
            continue
        reads |= dict.fromkeys(found.results[0].reads)
        if found.results[0].step_us < best[1].results[0].step_us:
            best = other, found
    result = replace(best[1].results[0], reads=tuple(reads))
    return best[0], replace(best[1], results=[result])


def _changes(before: Design, after: Design) -> str:
    if not isinstance(before, Composed) or not isinstance(after, Composed):
        return changes(before, after)
    pairs = zip(before.designs, after.designs, strict=True)
    return ", ".join(told for told in (changes(*pair) for pair in pairs) if told)

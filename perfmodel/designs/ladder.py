"""What each setting of a design does: its steps one on top of the other, and those without effect.

A design says itself which of its settings are steps (`settings.step`), in the order in which they
are taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, fields, replace
from typing import Any, NamedTuple

from perfmodel.designs.composed import Composed, same_step
from perfmodel.designs.deployment import Deployment, Design, words
from perfmodel.designs.settings import ACTS_ON, PLAIN, START
from perfmodel.errors import PerfmodelError
from perfmodel.workload import Workload


def plain(workload: Workload, whole: Composed) -> Workload:
    """`workload` without what steps of `whole` do that its own settings do already."""
    settings: dict[str, Any] = {}
    for design in whole.designs:
        for each in _steps(design):
            settings |= {f"implementation__{key}": it for key, it in each.metadata[START].items()}
    return workload.with_(**settings) if settings else workload


class Rung(NamedTuple):
    """A step's name, the designs up to it, and what it acts on, if not on all; `is_plain`: it is a
    design whose steps are still to come."""

    name: str
    designs: Composed
    acts_on: str = ""
    is_plain: bool = False


def rungs(whole: Composed) -> Iterator[Rung]:
    """Step by step: of each design first what it does with all its steps plain, then these in the
    order of its fields."""
    for number, (name, design) in enumerate(whole.named):
        before = whole.designs[:number]
        taken = [each for each in _steps(design) if getattr(design, each.name) != _plain(each)]
        at = replace(design, **{each.name: _plain(each) for each in taken})  # type: ignore[type-var]
        plain_design = replace(whole, designs=(*before, at))
        yield Rung(f"+ {name}", plain_design, is_plain=bool(taken))
        for each in taken:
            value = getattr(design, each.name)
            at = replace(at, **{each.name: value})  # type: ignore[type-var]
            now = replace(whole, designs=(*before, at))
            said = "" if value is True else words(value)
            text = f"+ {each.name.replace('_', ' ')} {said}".strip()
            yield Rung(text, now, each.metadata[ACTS_ON])


def without_effect(whole: Composed, start: Deployment) -> list[str]:
    """Settings that are not at their default and change nothing of `start`, each in a line."""
    deployed, told = whole.deployed(start), []
    for number, (name, design) in enumerate(whole.named):
        for each in fields(design):  # type: ignore[arg-type]
            if getattr(design, each.name) == each.default:
                continue
            try:
                usual = replace(design, **{each.name: each.default})  # type: ignore[type-var]
                designs = (*whole.designs[:number], usual, *whole.designs[number + 1 :])
                other = replace(whole, designs=designs).deployed(start)
            except PerfmodelError:
                continue
            if same_step(other, deployed):
                acts_on = each.metadata.get(ACTS_ON, "")
                told.append(f"{name}.{each.name} {idle(acts_on, deployed)}")
    return told


def idle(acts_on: str, deployed: Deployment) -> str:
    """That a setting has no effect, what it would have one on, and what its design says of it."""
    would = (f"it acts on {acts_on}",) if acts_on else ()
    return ": ".join(("has no effect here", *would, *deployed.without_gain))


def _steps(design: Design) -> list[Field[Any]]:
    return [each for each in fields(design) if PLAIN in each.metadata]  # type: ignore[arg-type]


def _plain(each: Field[Any]) -> Any:
    return each.metadata[PLAIN]

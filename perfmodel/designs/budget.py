"""Designs that need not use all the memory that they may: less of it can be faster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Protocol, runtime_checkable

from perfmodel.designs.deployment import Deployment, Design


@runtime_checkable
class Budgeted(Protocol):
    """A design with a setting that says how much memory it may use."""

    def within(self, deployment: Deployment) -> Iterable[Design]:
        """The design with less, the most first.

        Twice a budget gives all that the budget gives, and that itself.
        """


def halved(most: float, least: float) -> list[float]:
    """Half of `most`, a quarter of it, and so on, as long as it is `least` or more."""
    found, size = [], most / 2
    while size >= least:
        found.append(size)
        size /= 2
    return found


def changes(before: Design, after: Design) -> str:
    """What `after` has in the place of what `before` has, for a user."""
    pairs = [
        (field.name, getattr(before, field.name), getattr(after, field.name))
        for field in fields(before)  # type: ignore[arg-type]
    ]
    told = [f"{name} {new:g} in the place of {old:g}" for name, old, new in pairs if new != old]
    return ", ".join(told)

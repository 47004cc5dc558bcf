"""What a sweep says of money."""

from __future__ import annotations

from dataclasses import fields

from perfmodel.economics import Prices
from perfmodel.errors import UsageError
from perfmodel.explore.spec import Spec


def prices_of(spec: Spec) -> Prices:
    """Prices as the sweep gives them. Raises `UsageError` for a key that is none."""
    try:
        return Prices(**spec.prices)
    except TypeError as error:
        known = ", ".join(each.name for each in fields(Prices))
        word = str(error).rpartition(" ")[2]
        raise UsageError(f"{spec.where}: prices: unknown key {word}; expected {known}") from None

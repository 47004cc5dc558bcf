"""Lists, tuples and dicts of a program's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """`value` with every item in its lists, tuples and dicts changed; named tuples become plain."""
    if isinstance(value, (list, tuple)):
        items = [mapped(change, item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {key: mapped(change, item) for key, item in value.items()}
    return change(value)


def leaves(value: Any) -> list[Any]:
    """Every item in the lists, tuples and dicts of `value`."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return [value]
    return [each for item in value for each in leaves(item)]

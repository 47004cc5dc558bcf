"""Commands that convert the values of their options without Pydantic where Python alone can.

Typer builds a Pydantic converter for every option, given or not; to load Pydantic takes longer than
all else that a command does before its work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

_PLAIN = (str, Path)
"""Types whose values are made of any text."""


class _WithoutPydantic:
    """A command that asks Typer only for what needs a check: numbers, lists, unknown words."""

    def get_params(self, context: Any) -> list[Any]:
        params: list[Any] = super().get_params(context)  # type: ignore[misc]
        for each in params:
            if "process_value" not in vars(each):
                each.process_value = partial(_converted, each, each.process_value)
        return params


class Command(_WithoutPydantic, TyperCommand):
    """One verb."""


class Group(_WithoutPydantic, TyperGroup):
    """Several verbs."""


def _converted(option: Any, by_typer: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    """The value of an option: checked, of its type, and seen by the option's callback."""
    source = context.get_parameter_source(option.name)
    kind: Any = getattr(getattr(option, "type_descriptor", None), "annotation", None)
    converted: Any
    if source is not None and source.name == "DEFAULT" and not option.required:
        converted = () if value is None and (option.multiple or option.nargs == -1) else value
    elif isinstance(value, str) and (kind in _PLAIN or value in _words(kind)):
        converted = kind(value)
    elif kind == list[str] and isinstance(value, tuple | list):
        converted = list(value)
    else:
        return by_typer(context, value)
    return option.callback(context, option, converted) if option.callback else converted


def _words(kind: Any) -> Collection[str]:
    """The words that an enumeration has; none of another type."""
    return [each.value for each in kind] if isinstance(kind, type(Enum)) else ()

"""Settings from files and command lines: values of the right type and range, or one line that says
what is wrong and where.

Types are those of dataclass fields; msgspec checks them. What it finds wrong is said in our words,
with the place, what was expected, what was got and the nearest names.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from perfmodel.errors import PerfmodelError
from perfmodel.files import read_bytes

T = TypeVar("T")
Error = type[PerfmodelError]
Table = dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """The smallest and the largest number that can exist, and what it counts, in words."""

    low: float
    high: float
    unit: str = ""


def section(
    cls: type[T],
    table: Any,
    where: str,
    error: Error,
    limits: Callable[[str], Limits | None] = lambda _: None,
) -> T:
    """`table` as the dataclass `cls`; `limits` of a key's numbers.

    Raises `error` that begins with `where`: no table, an unknown key (with the nearest), a missing
    one, a value of another type or out of range.
    """
    hints = get_type_hints(cls)
    known = [each.name for each in fields(cls)]  # type: ignore[arg-type]
    require_keys(table, known, where, error)
    for each in fields(cls):  # type: ignore[arg-type]
        required = each.default is MISSING and each.default_factory is MISSING
        if required and each.name not in table:
            raise error(f"{where}: {each.name} is missing")
    return cls(
        **{
            key: convert(hints[key], value, f"{where}: {key}", error, limits(key))
            for key, value in table.items()
        }
    )


def require_keys(
    table: Any, known: Collection[str], where: str, error: Error, of: str = ""
) -> None:
    """Raise `error` unless `table` is one with no key but those `known`."""
    if not isinstance(table, Mapping):
        raise error(f"{where}: expected a section, got {short(table)}")
    for key in table:
        if key not in known:
            raise error(f"{where}: {unknown_key(key, known, of)}")


def unknown_key(key: str, known: Collection[str], of: str = "") -> str:
    """`unknown key KEY` (`of` what), and the nearest of those that are known."""
    within = [name for name in known if key and key in name]
    near = within[:4] or get_close_matches(key, known, n=2, cutoff=0.6) or list(known)
    return f"unknown key {key}{of}; expected: {', '.join(near)}"


def convert(kind: Any, value: Any, where: str, error: Error, limits: Limits | None = None) -> Any:
    """`value` as `kind`: a number (finite, within `limits`; whole for `int`), bool, text, one of a
    `Literal`, a tuple or a mapping of such, or None where it may be.

    A list of numbers with `limits` is not empty. Raises `error` as `section` does.
    """
    if NoneType in get_args(kind):
        if value is None or value == "none":
            return None
        kind = next(each for each in get_args(kind) if each is not NoneType)
    try:
        found = msgspec.convert(_whole_as_int(value), _checked(kind, limits))
    except msgspec.ValidationError as problem:
        place, inner, item = _place(str(problem), kind, value)
        expected = describe(inner, limits)
        raise error(f"{where}{place}: expected {expected}, got {short(item)}") from None
    if kind is str:
        found = " ".join(found.split())
        if not found.isprintable():
            raise error(f"{where}: expected {describe(str)}, got {short(value)}")
    return found


_MOST = 1.7976931348623157e308
_INT_BITS = 2**63 - 1


@cache
def _checked(kind: Any, limits: Limits | None) -> Any:
    """`kind` with its range, as msgspec checks it."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is float:
        low, high = (limits.low, limits.high) if limits else (-_MOST, _MOST)
        return Annotated[float, msgspec.Meta(ge=low, le=high)]
    if kind is int and limits:
        low, high = int(limits.low), min(int(limits.high), _INT_BITS)
        return Annotated[int, msgspec.Meta(ge=low, le=high)]
    if kind is str:
        return Annotated[str, msgspec.Meta(pattern=r"\S")]
    if origin is tuple:
        checked = tuple(each if each is ... else _checked(each, limits) for each in inner)
        if limits and inner[-1] is ...:
            return Annotated[tuple.__class_getitem__(checked), msgspec.Meta(min_length=1)]
        return tuple.__class_getitem__(checked)
    if origin is not None and _is_mapping(origin):
        return dict.__class_getitem__((inner[0], _checked(inner[1], limits)))
    return kind


def _is_mapping(origin: Any) -> bool:
    """Whether a generic type is a mapping."""
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _whole_as_int(value: Any) -> Any:
    """1e9 is a whole number; numbers of NumPy are plain ones."""
    if hasattr(value, "dtype") and not value.shape:
        value = value.item()
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, (list, tuple)):
        return [_whole_as_int(each) for each in value]
    return value


_PATH = re.compile(r" - at `\$(.*)`$")
_STEP = re.compile(r"\[(\d+)\]|\.(\w+)")


def _place(problem: str, kind: Any, value: Any) -> tuple[str, Any, Any]:
    """Where in `value` msgspec found the problem (counted from 1), the type there and what is."""
    path = _PATH.search(problem)
    place = ""
    for index, name in _STEP.findall(path[1]) if path else ():
        inner = get_args(kind)
        if index:
            number = int(index)
            kind = inner[0] if inner[-1] is ... else inner[number]
            value, place = value[number], f"{place}[{number + 1}]"
        else:
            kind, value, place = inner[1], value[name], f"{place}.{name}"
    return place, kind, value


def describe(kind: Any, limits: Limits | None = None) -> str:
    """What a value of `kind` is, in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return describe(next(each for each in inner if each is not NoneType), limits)
    if kind in (int, float):
        words = "a whole number" if kind is int else "a number"
        if limits is None:
            return words
        unit = f", {limits.unit}" if limits.unit else ""
        return f"{words} from {limits.low:g} to {limits.high:g}{unit}"
    if origin is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in inner)
    if origin is tuple:
        if inner[-1] is not ...:
            return "a pair" if len(inner) == 2 else f"a list of {len(inner)}"
        return f"a list of {'one or more ' * bool(limits)}{_PLURAL.get(inner[0], 'values')}"
    if origin is not None and _is_mapping(origin):
        return "tables of numbers"
    return {bool: "true or false", str: "a text in quotes"}.get(kind, str(kind))


_PLURAL = {int: "whole numbers", float: "numbers", str: "texts in quotes"}


def short(value: Any) -> str:
    """`value` as it is written, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_toml(path: Path, max_bytes: int, error: Error, where: str = "") -> Table:
    """The table of a TOML file, which errors call `where` (its path).

    Raises `error` where it cannot be read or is not TOML.
    """
    where = where or str(path)
    try:
        return tomllib.loads(read_bytes(path, max_bytes=max_bytes).decode())
    except tomllib.TOMLDecodeError as problem:
        raise error(f"{where}: not valid TOML: {problem}") from None
    except UnicodeDecodeError as problem:
        raise error(f"{where}: not a text file in UTF-8 (byte {problem.start})") from None
    except RecursionError:
        raise error(f"{where}: not valid TOML: nested too deeply") from None
    except PerfmodelError as problem:
        raise problem if isinstance(problem, error) else error(str(problem)) from None


def parse_value(text: str) -> Any:
    """The value that `text` is in a TOML file; what is none there is a text, without quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text.strip()

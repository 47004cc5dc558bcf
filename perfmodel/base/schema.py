"""Settings from files and command lines: values of the right type and range, or one line that says
what is wrong and where.

Types are those of dataclass fields; msgspec checks the values that have no items. An error names
the place, what was expected there, what was given, and for a name the nearest known ones.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from perfmodel.base.files import read_bytes
from perfmodel.errors import PerfmodelError

T = TypeVar("T")
Error = type[PerfmodelError]
Table = dict[str, Any]
_DEEP_KEY = re.compile(
    r"""(?:^|[{,])[ \t]*\[{0,2}[ \t]*(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){32}""",
    re.MULTILINE,
)
"""A key of TOML of more parts than any file here has; Python's reader takes a key's parts squared.
"""


@dataclass(frozen=True)
class Limits:
    """The smallest and the largest number that can exist, and what it counts, in words."""

    low: float = -sys.float_info.max
    high: float = sys.float_info.max
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
    one, a value of another type or out of range, values that `cls` refuses with a `ValueError`.
    """
    hints = get_type_hints(cls, include_extras=True)
    known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    require_keys(table, known, where, error)
    for field in fields(cls):  # type: ignore[arg-type]
        required = field.default is MISSING and field.default_factory is MISSING
        if required and field.name not in table:
            raise error(f"{where}: {field.name} is missing")
    values = {
        key: convert(hints[key], value, f"{where}: {key}", error, limits(key))
        for key, value in table.items()
    }
    try:
        return cls(**values)
    except ValueError as problem:
        raise error(f"{where}: {problem}") from None


def require_keys(
    table: Any, known: Collection[str], where: str, error: Error, of: str = ""
) -> None:
    """Raise `error` unless `table` is one with no key but those `known`."""
    if not isinstance(table, Mapping):
        raise error(f"{where}: expected a section, got {short(table)}")
    for key in table:
        if key not in known:
            raise error(f"{where}: {unknown_key(str(key), known, of)}")


def unknown_key(key: str, known: Collection[str], of: str = "") -> str:
    """`unknown key KEY` (`of` what), and the nearest of those that are known."""
    within = [name for name in known if key and key in name]
    near = within[:4] or get_close_matches(key, known, n=2, cutoff=0.6) or list(known)
    return f"unknown key {key}{of}; expected: {', '.join(near)}"


def convert(kind: Any, value: Any, where: str, error: Error, limits: Limits | None = None) -> Any:
    """`value` as `kind`: a number (finite, within `limits`; whole for `int`), bool, text, one of a
    `Literal`, a dataclass, a list or a mapping of such, one of several such, or None.

    `Annotated[KIND, Limits(...)]` brings its limits along. A list with limits is not empty. Raises
    `error` as `section` does.
    """
    kind, limits = _unpacked(kind, limits)
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if is_dataclass(kind):
        return section(kind, value, where, error)  # type: ignore[arg-type]
    if origin in _UNIONS:
        return _one_of(inner, value, where, error, limits)

    def wrong() -> PerfmodelError:
        return error(f"{where}: expected {describe(kind, limits)}, got {short(value)}")

    if origin in (tuple, list):
        if not isinstance(value, (list, tuple)):
            raise wrong()
        kinds = (inner[0],) * len(value) if inner[-1] is ... or origin is list else inner
        if len(value) != len(kinds) or (limits and not value):
            raise wrong()
        places = [f"{where}[{number}]" for number in range(1, len(value) + 1)]
        return origin(
            convert(*item, error, limits) for item in zip(kinds, value, places, strict=True)
        )
    if _is_mapping(origin):
        if not isinstance(value, Mapping):
            raise wrong()
        table = {}
        for key, item in value.items():
            name = convert(inner[0], key, where, error)
            table[name] = convert(inner[1], item, f"{where}.{name}", error, limits)
        return table
    try:
        converted = msgspec.convert(_plain(kind, value), _checked(kind, limits))
    except msgspec.ValidationError:
        raise wrong() from None
    if kind is str:
        converted = " ".join(converted.split())
        if not converted.isprintable():
            raise wrong()
    return converted


_UNIONS = (Union, UnionType)
_INT_BITS = 2**63 - 1


def _unpacked(kind: Any, limits: Limits | None) -> tuple[Any, Limits | None]:
    """An annotated type and the limits in its annotation; another type as it is."""
    if get_origin(kind) is not Annotated:
        return kind, limits
    kind, *notes = get_args(kind)
    return kind, next((note for note in notes if isinstance(note, Limits)), limits)


def _one_of(
    kinds: Sequence[Any], value: Any, where: str, error: Error, limits: Limits | None
) -> Any:
    """`value` as the first of several types that takes it."""
    if NoneType in kinds and (value is None or value == "none"):
        return None
    kinds = [kind for kind in kinds if kind is not NoneType]
    if len(kinds) == 1:
        return convert(kinds[0], value, where, error, limits)
    for kind in kinds:
        try:
            return convert(kind, value, where, error, limits)
        except error:
            continue
    expected = describe(Union.__getitem__(tuple(kinds)), limits)
    raise error(f"{where}: expected {expected}, got {short(value)}")


@cache
def _checked(kind: Any, limits: Limits | None) -> Any:
    """A type without items, with its range, as msgspec checks it."""
    if kind is float:
        limits = limits or Limits()
        return Annotated[float, msgspec.Meta(ge=limits.low, le=limits.high)]
    if kind is int and limits:
        low, high = int(limits.low), min(int(limits.high), _INT_BITS)
        return Annotated[int, msgspec.Meta(ge=low, le=high)]
    return Annotated[str, msgspec.Meta(pattern=r"\S")] if kind is str else kind


def _is_mapping(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _plain(kind: Any, value: Any) -> Any:
    """1e9 is a whole number; numbers of NumPy are plain ones."""
    if hasattr(value, "dtype") and not value.shape:
        value = value.item()
    if kind in (int, float) and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def is_list(kind: Any) -> bool:
    """Whether a value of `kind` is, or may be, a list."""
    kind = _unpacked(kind, None)[0]
    if get_origin(kind) in _UNIONS:
        return any(map(is_list, get_args(kind)))
    return get_origin(kind) in (tuple, list)


def describe(kind: Any, limits: Limits | None = None) -> str:
    """What a value of `kind` is, in words."""
    kind, limits = _unpacked(kind, limits)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in _UNIONS:
        return " or ".join(describe(each, limits) for each in inner if each is not NoneType)
    if kind in (int, float):
        words = "a whole number" if kind is int else "a number"
        if limits is None:
            return words
        unit = f", {limits.unit}" if limits.unit else ""
        return f"{words} from {limits.low:g} to {limits.high:g}{unit}"
    if origin is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in inner)
    if origin is tuple and inner[-1] is not ...:
        return "a pair" if len(inner) == 2 else f"a list of {len(inner)}"
    if origin in (tuple, list):
        return f"a list of {'one or more ' * bool(limits)}{_PLURAL.get(inner[0], 'values')}"
    if _is_mapping(origin):
        return "tables of numbers" if _is_mapping(get_origin(inner[1])) else "a table"
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
        text = read_bytes(path, max_bytes=max_bytes).decode("utf-8-sig")
        if deep := _DEEP_KEY.search(text):  # whose time grows with the square of its parts
            line = text.count("\n", 0, deep.end()) + 1
            raise error(f"{where}: not valid TOML: nested too deeply (line {line})")
        return tomllib.loads(text)
    except UnicodeDecodeError as problem:
        raise error(f"{where}: not a text file in UTF-8 (byte {problem.start})") from None
    except ValueError as problem:  # syntax, or a number of thousands of digits
        raise error(f"{where}: not valid TOML: {problem}") from None
    except RecursionError:
        raise error(f"{where}: not valid TOML: nested too deeply") from None
    except PerfmodelError as problem:
        raise problem if isinstance(problem, error) else error(str(problem)) from None


def parse_value(text: str) -> Any:
    """The value that `text` is in a TOML file; what is none there is a text, without quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text.strip()

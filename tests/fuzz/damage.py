"""Damage to any text or bytes, with the class it belongs to."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from fuzz.outcome import VALUE

JUNK = (b"\0", b"\xff", b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"-", b"e", b"null", b"9")
WRONG_TYPES: tuple[Any, ...] = (None, [], [[1]], {}, {"a": 1}, True, "x y")
NUMBER_LINE = re.compile(r"^(\s*[\w.\"-]+\s*=\s*)(-?[\d][\d_.e+-]*)(\s*(?:#.*)?)$")
TEXT_LINE = re.compile(r'^(\s*[\w.-]+\s*=\s*)("[^"]*")(\s*(?:#.*)?)$')


class Damaged(NamedTuple):
    """A damaged file: its class of damage, how it came about, its content."""

    damage: str
    how: str
    content: bytes


Damage = Callable[[bytes, random.Random], Damaged]


def is_json(content: bytes) -> bool:
    """Whether `content` is JSON: UTF-8, no NaN, no key's text cut."""

    def refuse(text: str) -> None:
        raise ValueError(text)

    try:
        json.loads(content.decode(), parse_constant=refuse)
    except (ValueError, RecursionError):
        return False
    return True


def bytes_of(content: bytes, at: random.Random) -> tuple[str, bytes]:
    """Cut, flipped, inserted, removed or repeated bytes."""
    how = at.choice(("cut", "flip", "flips", "insert", "remove", "repeat"))
    data = bytearray(content)
    place = at.randrange(len(data))
    if how == "cut":
        del data[place:]
    elif how == "flip":
        data[place] ^= 1 << at.randrange(8)
    elif how == "flips":
        for _ in range(20):
            data[at.randrange(len(data))] = at.randrange(256)
    elif how == "insert":
        data[place:place] = at.choice(JUNK) * at.choice((1, 1, 1, 2000))
    elif how == "remove":
        del data[place : place + at.randrange(1, 60)]
    else:
        data[place:place] = data[place : place + at.randrange(1, 400)]
    return how, bytes(data)


def json_bytes(content: bytes, at: random.Random) -> Damaged:
    """Bytes of a JSON document: broken syntax, or another value."""
    how, found = bytes_of(content, at)
    return Damaged(VALUE if is_json(found) else "syntax", how, found)


def any_bytes(content: bytes, at: random.Random) -> Damaged:
    """Bytes of a format that need not tell damage from another value."""
    how, found = bytes_of(content, at)
    return Damaged(VALUE, how, found)


def checked_bytes(content: bytes, at: random.Random) -> Damaged:
    """Bytes of a file that carries a digest or ends in a footer: cutting it must show."""
    how, found = bytes_of(content, at)
    return Damaged("syntax" if how == "cut" else VALUE, how, found)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all numbers and texts of a document."""
    if isinstance(value, dict):
        return [p for key, each in value.items() for p in places(each, (*path, key))]
    if isinstance(value, list):
        return [p for key, each in enumerate(value) for p in places(each, (*path, key))]
    return [path] if value is not None and not isinstance(value, bool) else []


def at_path(document: Any, path: tuple[Any, ...]) -> Any:
    """What stands at a path of a document."""
    for key in path:
        document = document[key]
    return document


def json_types(content: bytes, at: random.Random) -> Damaged:
    """One value, not below `about`, gets another type, or is not a number."""
    document = json.loads(content)
    path = at.choice([each for each in places(document) if each[0] != "about"])
    old = at_path(document, path)
    is_number = not isinstance(old, str)
    wrong = [*WRONG_TYPES[:-1], "x y" if is_number else 7]
    new = at.choice([*wrong, float("nan"), float("inf"), 1e300 * 1e300] if is_number else wrong)
    if new is None:
        return Damaged(VALUE, f"{path}: null", _with(document, path, new))
    return Damaged("type", f"{path}: {new!r}", _with(document, path, new))


def _with(document: Any, path: tuple[Any, ...], value: Any) -> bytes:
    at_path(document, path[:-1])[path[-1]] = value
    return json.dumps(document).encode()


def toml_types(content: bytes, at: random.Random) -> Damaged:
    """One value of a TOML file with the wrong type, no finite number, or below nought."""
    lines = content.decode().split("\n")
    rows = [i for i, line in enumerate(lines) if NUMBER_LINE.match(line) or TEXT_LINE.match(line)]
    row = at.choice(rows)
    number, text = NUMBER_LINE.match(lines[row]), TEXT_LINE.match(lines[row])
    found = number or text
    assert found
    choices = {"type": ("[]", "true", "{}", '"x y"', '["a", 1]')}
    if number:
        choices["invariant"] = ("nan", "inf", "-inf", "-5", "1e999", "9" * 400)
    else:
        choices["type"] = ("[]", "true", "5", "nan", "{ a = 1 }")
    damage = at.choice(sorted(choices))
    new = at.choice(choices[damage])
    lines[row] = found[1] + new + found[3]
    return Damaged(damage, f"{found[1].strip()} {new}", "\n".join(lines).encode())


def toml_bytes(content: bytes, at: random.Random) -> Damaged:
    """Bytes of a TOML file."""
    import tomllib

    how, found = bytes_of(content, at)
    try:
        tomllib.loads(found.decode())
    except (ValueError, RecursionError):
        return Damaged("syntax", how, found)
    return Damaged(VALUE, how, found)


def csv_cells(columns: tuple[str, ...], texts: tuple[str, ...]) -> Damage:
    """Damage to the cells of number `columns` and of `texts` that name something."""

    def damaged(content: bytes, at: random.Random) -> Damaged:
        lines = content.decode().split("\n")
        header = lines[0].split(",")
        known = [each for each in (*columns, *texts) if each in header]
        column = at.choice(known)
        row = at.randrange(1, max(2, sum(1 for line in lines if line)))
        cells = lines[row].split(",")
        if column in texts:
            damage, new = "reference", "no such thing"
        else:
            damage, new = at.choice(
                [("type", "abc"), ("type", "[1]"), ("type", "true"), ("invariant", "-5")]
                + [("invariant", each) for each in ("inf", "-inf", "1e999")]
            )
        how = at.choice(("cell", "cell", "cell", "header", "short"))
        if how == "header":
            header[header.index(column)] = "something_else"
            lines[0], damage = ",".join(header), "reference"
        elif how == "short":
            lines[row] = ",".join([*cells, "1", "2"])
            damage = "syntax"
        else:
            cells[header.index(column)] = new
            lines[row] = ",".join(cells)
        return Damaged(damage, f"{how} {column} {new}", "\n".join(lines).encode())

    return damaged

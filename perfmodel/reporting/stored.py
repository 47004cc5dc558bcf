"""Answers that a verb wrote as JSON, read again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perfmodel import __version__
from perfmodel.base.files import DEFAULT_MAX_BYTES, read_bytes, schema_of
from perfmodel.errors import UsageError
from perfmodel.reporting.brief import kinds


def stored_answer(path: str | Path, max_bytes: int = DEFAULT_MAX_BYTES) -> dict[str, Any] | None:
    """The answer at `path`; None where it is another file, or none.

    Raises `UsageError` for an answer of another version, a brief one, and what is no JSON.
    """
    path = Path(path)
    schema = schema_of(path)
    if schema is None:
        return None
    if schema not in kinds():
        name = schema.partition("/")[0]
        own = next((each for each in kinds() if each.partition("/")[0] == name), "")
        hint = f"{own}: make the answer anew" if own else "answers in full (--format json) alone"
        raise UsageError(f"{path}: {schema}: perfmodel {__version__} reads {hint}")
    with sound(schema, str(path)):
        text = read_bytes(path, max_bytes=max_bytes)
        answer: dict[str, Any] = json.loads(text, parse_constant=_refuse)
    return answer


def _refuse(text: str) -> None:
    """What Python reads as a number, and JSON has not."""
    raise ValueError(f"{text} is no number")


@contextmanager
def sound(schema: str, source: str) -> Iterator[None]:
    """Within it, what an answer of that schema lacks, or has of another type, is a `UsageError`."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        what = "a list without items" if isinstance(error, IndexError) else what
        raise UsageError(f"{source}: not a sound {schema}: {what}") from None

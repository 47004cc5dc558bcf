"""Answers as JSON: in at most 2 kB, what was asked, its interval, the largest causes and the next
command; in full, as a verb wrote them, read again."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from perfmodel import __version__
from perfmodel.base.files import DEFAULT_MAX_BYTES, read_bytes, schema_of
from perfmodel.base.units import human_us
from perfmodel.errors import UsageError
from perfmodel.plot.names import named, shortened
from perfmodel.reporting.tables import figure_text, one_line
from perfmodel.timeline.graph.kinds import Cause

SCHEMA = "perfmodel.brief/1"
MAX_BYTES, MAX_CAUSES, MAX_WARNINGS, MAX_ROWS = 2000, 3, 3, 12
_MAX_TEXT, _LONG, _MAX_COMMAND = 160, 400, 600
_CAUSES = {name for c in Cause for name in (c.name.lower(), c.name.removeprefix("HOST_"))}
_PLACE = re.compile(r"\{([\w.*]+)\}")


@cache
def kinds() -> dict[str, dict[str, Any]]:
    """What is told of each answer, by its schema: `brief.toml`, whose head says how."""
    return tomllib.loads(Path(__file__).with_name("brief.toml").read_text("utf-8"))


def brief(
    answer: Mapping[str, Any], given: Mapping[str, Any] | None = None, command: str = ""
) -> dict[str, Any]:
    """`answer` (a verb's JSON) as `docs/schemas/brief.json` describes it, shorter than `MAX_BYTES`.

    `given` are the arguments of the verb and `command` its line without where and how it answers:
    the next one follows from them.
    """
    kind, (first, *others) = kinds()[answer["schema"]], records_of(answer)
    rows = [_told(each, kind) for each in (first, *others[: MAX_ROWS - 1])]
    causes = _causes({**answer, **first}, **kind["causes"]) if "causes" in kind else []
    known = {key: value for key, value in (given or {}).items() if value is not None}
    scope = {**answer, **known, "command": command or None}
    if causes:
        scope["cause"] = causes[0]["name"].partition(": ")[2]
    warnings = [each["what"] for each in answer.get("completeness", ())]
    warnings += [each for each in answer.get("warnings", ()) if each not in answer.get("notes", ())]
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "of": answer["schema"],
        "answer": rows,
        "left_out": 1 + len(others) - len(rows),
        "causes": _short(causes),
        "warnings": _short(warnings[:MAX_WARNINGS]),
        "next": _next(kind.get("next", ("{command}", "--format json")), scope),
    }
    while len(json.dumps(found)) >= MAX_BYTES:  # what is missed least goes first
        if rows[1:]:
            rows.pop()
            found["left_out"] += 1
            continue
        best, said = rows[0], found["warnings"] or found["causes"]
        largest = max(best, key=lambda key: len(json.dumps(best[key])), default="")
        if said and len(json.dumps(best.get(largest))) <= _LONG:
            said.pop()
        else:
            del best[largest]
    return found


def records_of(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The records that an answer consists of, the best first; never none."""
    kind = kinds()[answer["schema"]]
    paths = (f"{path}.*" for path in kind.get("rows", ()))
    rows = next(filter(None, (_at(answer, path) for path in paths)), [answer])
    key = kind.get("order", "")
    sign, key = -1 if key.startswith("-") else 1, key.lstrip("-")
    sizes = ((row.get(key) is None, sign * (row.get(key) or 0.0)) for row in rows)
    return [row for _, row in sorted(zip(sizes, rows, strict=True), key=itemgetter(0))]


def _told(row: Mapping[str, Any], kind: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of a record: its keys (`measured_step_us` of `measured.step_us`), where they are
    known, and between which values the answer lies."""
    told = {path.replace(".", "_"): _first(row, path) for path in kind["keys"]}
    if kind["keys"] == ["*"]:  # keys of axes have dots
        told = {key.replace(".", "_"): value for key, value in row.items()}
    ends = [_first(row, path) for path in kind.get("interval", ("low_us", "high_us"))]
    told["interval"] = None if None in ends else ends
    return {key: _short(value) for key, value in told.items() if value is not None}


def _short(value: Any) -> Any:
    """Numbers of six digits, texts of one line."""
    if isinstance(value, Mapping):
        return {key: _short(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_short(each) for each in value]
    if isinstance(value, str):
        return shortened(one_line(value), _MAX_TEXT)
    return float(f"{value:.6g}") + 0.0 if isinstance(value, float) else value


def _at(holder: Any, path: str) -> list[Any]:
    """Every value at a path of `brief.toml`; none where it leads nowhere."""
    found = [holder]
    for word in path.split("."):
        found = [below for each in found for below in _below(each, word)]
    return found


def _first(holder: Any, path: str) -> Any:
    """The value at a path; None where there is none."""
    return next(iter(_at(holder, path)), None)


def _below(holder: Any, word: str) -> Sequence[Any]:
    if isinstance(holder, Mapping):
        return [holder[word]] if word in holder else []
    if not isinstance(holder, list | tuple):
        return []
    if word == "*":
        return holder
    if word == "steady":  # as the step is their median; all where none is
        return [each for each in holder if each.get("role") == word] or holder
    if word.isdigit():
        return holder[int(word) :][:1]
    return [each["value"] for each in holder if each.get("key") == word]


def _causes(
    scope: Mapping[str, Any],
    of: str,
    name: Sequence[str] = ("name",),
    size: str = "",
    where: Mapping[str, Sequence[Any]] | None = None,
    like: str = "",
) -> list[dict[str, Any]]:
    """The largest of those parts, or where they have no size the first; times of several steps are
    means, and shares of all that add up."""
    several = [parts for parts in _at(scope, of) if parts is not None]
    sizes, unit = defaultdict[str, float](float), size or "time_us"
    for parts in several:
        if isinstance(parts, Mapping):
            named = ((key, us) for key, us in parts.items() if re.fullmatch(like or ".*", key))
            parts = [{"name": key, unit: us} for key, us in named if us is not None]
        for each in parts:
            if all(each[key] in values for key, values in (where or {}).items()):
                key = one_line(": ".join(str(each[key]) for key in name))
                sizes[key] += (each.get(unit) or 0.0) / len(several)
    if not size and not any(sizes.values()):
        return [{"name": key} for key in list(sizes)[:MAX_CAUSES]]
    whole, adds_up = sum(sizes.values()), unit.endswith("_us") and not like
    if min(sizes.values(), default=0.0) < 0:  # of changes those that go the way of their sum
        for key in [key for key, us in sizes.items() if us * whole <= 0]:
            del sizes[key]
        adds_up = False
    largest = sorted(filter(sizes.get, sizes), key=lambda key: -abs(sizes[key]))[:MAX_CAUSES]
    return [
        {"name": key, unit: sizes[key]}
        | ({"share_frac": round(sizes[key] / whole, 4)} if adds_up else {})
        for key in largest
    ]


def _next(words: Sequence[str], scope: Mapping[str, Any]) -> str | None:
    """The command line that asks the next question; None where it is not known, or too long."""
    said = ["perfmodel"]
    for at, text in enumerate(words):
        place = _PLACE.search(text)
        values = _at(scope, place[1]) if place else [None]
        if place and not at and not any(values):  # what all others belong to
            return None
        for value in values:  # of a switch the word alone, of a list one for each
            if place and (value is None or value is False):
                continue
            is_line = place is not None and place[1].endswith("command")  # quoted already
            told = "" if value is True else str(value) if is_line else shlex.quote(str(value))
            word = text.replace(place[0], told) if place else text
            said.append(word.removeprefix("perfmodel ").strip())
    line = " ".join(said)
    if "-" in said or " - " in line:  # standard input, which was read
        return None
    return line if len(json.dumps(line)) <= _MAX_COMMAND else None


def lines_of(found: Mapping[str, Any]) -> list[str]:
    """A brief answer as lines for people: the best record, causes, warnings, the next command."""
    best, kind = found["answer"][0], kinds().get(found["of"], {})
    chosen = [path.replace(".", "_") for path in kind.get("headline", ())] or list(best)
    told = {key: best[key] for key in chosen if key in best}
    said = [_said(*item) for item in told.items() if not isinstance(item[1], list | dict)]
    if "interval" in best:
        said.append(f"90 % interval {' to '.join(map(human_us, best['interval']))}")
    names = [", ".join(_said(*item) for item in each.items()) for each in found["causes"]]
    lines = [", ".join(said), *(f"because of {name}" for name in names), *found["warnings"]]
    return lines + ([f"next: {found['next']}"] if found["next"] else [])


def _said(key: str, value: Any) -> str:
    """A number behind its key, a text alone, its causes in words."""
    if isinstance(value, str):
        return ": ".join(named(p) if p in _CAUSES else p for p in value.split(": "))
    if isinstance(value, bool):
        return "not " * (not value) + key.replace("_", " ")
    return figure_text(key, value)


def annotation(found: Mapping[str, Any]) -> str:
    """A brief answer as an annotation of a job on GitHub: an error where a check failed.

    Source: docs.github.com, "Workflow commands for GitHub Actions".
    """
    best = found["answer"][0]
    level = "error" if best.get("failed") or best.get("passed") is False else "notice"
    kind = found["of"].partition("/")[0].replace(".", " ")
    text = "\n".join(lines_of(found))
    for character, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
        text = text.replace(character, code)
    return f"::{level} title={kind}::{text}"


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

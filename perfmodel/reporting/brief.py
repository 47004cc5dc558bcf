"""An answer in at most 2 kB: what was asked, its interval, the largest causes, the next command."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.base.units import human_us
from perfmodel.plot.names import shortened
from perfmodel.reporting.tables import one_line, percent

SCHEMA = "perfmodel.brief/1"
MAX_BYTES, MAX_CAUSES, MAX_WARNINGS, MAX_ROWS = 2000, 3, 3, 12
_MAX_TEXT, _LONG, _MAX_COMMAND = 160, 400, 600
_PLACE = re.compile(r"\{([\w.]+)\}")


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
    found = {
        "schema": SCHEMA,
        "of": answer["schema"],
        "answer": rows,
        "left_out": 1 + len(others) - len(rows),
        "causes": _short(causes),
        "warnings": _short(warnings[:MAX_WARNINGS]),
        "next": _next(kind.get("next", ("{command}", "--format json")), scope),
    }
    while len(json.dumps(found)) >= MAX_BYTES:
        _cut(found)
    return found


def _cut(found: dict[str, Any]) -> None:
    """Leave out what is missed least: other records, a long value, then warnings and causes."""
    rows, (best, *_) = found["answer"], found["answer"]
    size, largest = max((len(json.dumps(each)), key) for key, each in {**best, "": ""}.items())
    if len(rows) > 1:
        rows.pop()
        found["left_out"] += 1
    elif size > _LONG or not (found["warnings"] or found["causes"]):
        del best[largest]
    else:
        (found["warnings"] or found["causes"]).pop()


def records_of(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The records that an answer consists of, the best first; never none."""
    kind = kinds()[answer["schema"]]
    paths = (f"{path}.*" for path in kind.get("rows", ()))
    rows = next(filter(None, (_at(answer, path) for path in paths)), [answer])
    key = kind.get("order", "")
    sign = -1 if key.startswith("-") else 1

    def size(row: Mapping[str, Any]) -> tuple[bool, float]:
        value = row.get(key.lstrip("-"))
        return value is None, sign * (value or 0.0)

    return sorted(rows, key=size) if key else rows


def _told(row: Mapping[str, Any], kind: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of a record: its keys (`measured_step_us` of `measured.step_us`), where they are
    known, and between which values the answer lies."""
    paths = list(row) if kind["keys"] == ["*"] else kind["keys"]
    told = {
        path.replace(".", "_"): _short(each)
        for path in paths
        for each in _at(row, path)
        if each is not None
    }
    ends = kind.get("interval", ("low_us", "high_us"))
    interval = [_short(each) for path in ends for each in _at(row, path) if each is not None]
    return told | ({"interval": interval} if len(interval) == len(ends) else {})


def _short(value: Any) -> Any:
    """Numbers of six digits, texts of one line."""
    if isinstance(value, Mapping):
        return {key: _short(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_short(each) for each in value]
    if isinstance(value, str):
        return shortened(one_line(value), _MAX_TEXT)
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _at(holder: Any, path: str) -> list[Any]:
    """Every value at a path of `brief.toml`; none where it leads nowhere."""
    found = [holder]
    for word in path.split("."):
        found = [below for each in found for below in _below(each, word)]
    return found


def _below(holder: Any, word: str) -> Sequence[Any]:
    if isinstance(holder, Mapping):
        return [holder[word]] if word in holder else []
    if not isinstance(holder, list | tuple):
        return []
    if word == "*":
        return holder
    if word.isdigit():
        return holder[int(word) :][:1]
    return [each["value"] for each in holder if each.get("key") == word]


def _causes(
    scope: Mapping[str, Any],
    of: str,
    name: Sequence[str] = ("name",),
    size: str = "",
    where: Mapping[str, Sequence[Any]] | None = None,
    ending: str = "",
    skip: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """The largest of those parts, or where they have no size the first; times of several steps are
    means, and shares of all that add up."""

    def sizes(parts: Any) -> Iterator[tuple[str, float]]:
        if isinstance(parts, Mapping):
            named = ((key, us) for key, us in parts.items() if key.endswith(ending))
            yield from ((key, us) for key, us in named if key not in skip and us is not None)
            return
        for each in parts:
            if all(each[key] in values for key, values in (where or {}).items()):
                yield ": ".join(str(each[key]) for key in name), each.get(size) or 0.0

    summed, several = defaultdict[str, float](float), [p for p in _at(scope, of) if p is not None]
    for parts in several:
        for key, value in sizes(parts):
            summed[key] += value / len(several)
    if not size and not any(summed.values()):
        return [{"name": one_line(key)} for key in list(summed)[:MAX_CAUSES]]
    whole, size = sum(map(abs, summed.values())), size or "time_us"
    adds_up = size.endswith("_us") and not ending
    largest = sorted(filter(summed.get, summed), key=lambda key: -abs(summed[key]))[:MAX_CAUSES]
    return [
        {"name": one_line(key), size: summed[key]}
        | ({"share_frac": round(summed[key] / whole, 4)} if adds_up else {})
        for key in largest
    ]


def _next(words: Sequence[str], scope: Mapping[str, Any]) -> str | None:
    """The command line that asks the next question; None where it is not known, or too long."""
    said = ["perfmodel"]
    for at, text in enumerate(words):
        values = {path: next(iter(_at(scope, path)), None) for path in _PLACE.findall(text)}
        if None not in values.values():
            for path, value in values.items():
                text = text.replace(f"{{{path}}}", _word(path, value))
            said.append(text.removeprefix("perfmodel "))
        elif not at:  # what all others belong to
            return None
    line = " ".join(said)
    return line if len(json.dumps(line)) <= _MAX_COMMAND else None


def _word(path: str, value: Any) -> str:
    """A value as a shell takes it; what is a command already as it is."""
    return str(value) if path.endswith("command") else shlex.quote(str(value))


def lines_of(found: Mapping[str, Any]) -> list[str]:
    """A brief answer as lines for people: the best record, causes, warnings, the next command."""
    best, causes = found["answer"][0], found["causes"]
    said = [
        _said(key, value)
        for key, value in best.items()
        if not isinstance(value, bool | list | dict)
    ]
    if "interval" in best:
        said.append(f"90 % interval {' to '.join(map(human_us, best['interval']))}")
    names = [", ".join(_said(*item) for item in each.items()) for each in causes]
    lines = [", ".join(said), *(f"because of {name}" for name in names), *found["warnings"]]
    return lines + ([f"next: {found['next']}"] if found["next"] else [])


def _said(key: str, value: Any) -> str:
    """`step 16.31 ms`, `share 8.1 %`."""
    if key.endswith("_frac"):
        return f"{key.removesuffix('_frac').replace('_', ' ')} {percent(value, 1)}"
    if key.endswith("_us"):
        return f"{key.removesuffix('_us').replace('_', ' ')} {human_us(value)}"
    return str(value) if isinstance(value, str) else f"{key.replace('_', ' ')} {value}"


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

"""What the verbs share: options of their command lines, what they say, and a run of one with its
time, its table and its record."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

from perfmodel.base.files import write_text
from perfmodel.base.registry import offered
from perfmodel.collect.backend import Backend, describe_machine
from perfmodel.collect.timing import write_table
from perfmodel.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Command lines whose mistakes are one line."""

    def error(self, message: str) -> NoReturn:
        say(f"{message}; see {self.prog} --help")
        raise SystemExit(2)


def say(text: str) -> None:
    """One line on standard error: what was written, or why there are no results."""
    print(f"perfmodel: {' '.join(text.split())}", file=sys.stderr)


def add_common(parser: argparse.ArgumentParser, name: str, usual_minutes: float) -> None:
    add_device(parser)
    parser.add_argument(
        "--minutes",
        type=positive(float),
        default=usual_minutes,
        help=f"time to spend ({usual_minutes:g})",
    )
    parser.add_argument("--name", default=name, help=f"stem of the files (default: {name})")


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="what to measure; `cuda` is ROCm too; `auto` takes a GPU where there is one",
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("collected"), help="folder of the results"
    )


def positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    """Reads a finite number above 0 of that kind, for argparse."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is not {kind.__name__} above 0")
        return value

    return read


count = positive(int)


def listed(option: str, text: str, known: Collection[str]) -> list[str]:
    """The comma-separated words of `text`, all those `known` where there is none; `UsageError` for
    another word."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UsageError(f"{option} {offered(name, list(known))}")
    return names or list(known)


def restore_command(verb: str, arguments: argparse.Namespace) -> str:
    """The command that gives these results again, without the output folder; of files the names."""
    words = ["python", "-m", "perfmodel.collect", verb]
    for name, value in sorted(vars(arguments).items()):
        if name in {"output", "verb", "run", "debug"} or value in (None, "", []) or value is False:
            continue
        several = value if isinstance(value, list) else [value]
        texts = [each.name if isinstance(each, Path) else str(each) for each in several]
        if name != "programs":
            words.append(f"--{name.replace('_', '-')}")
            texts = [] if value is True else [",".join(texts)]
        words += texts
    return shlex.join(words)


def stem_of(folder: Path, name: str) -> Path:
    """What the names of a run's files begin with; `UsageError` where `folder` cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output {folder}: cannot be created: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise UsageError(f"--output {folder}: cannot be written; name another folder")
    return folder / name


class Run:
    """What every verb has: its time, what it skipped, its files."""

    def __init__(self, verb: str, arguments: argparse.Namespace, backend: Backend) -> None:
        self.backend, self._began_s = backend, time.monotonic()
        self.end_s: float = self._began_s + 60 * arguments.minutes
        self.skipped: dict[str, Any] = {}
        self.stem = stem_of(arguments.output, arguments.name)
        self._head = {
            "schema": f"perfmodel.collect.{verb}/1",
            "command": restore_command(verb, arguments),
            "machine": describe_machine(backend),
        }

    @property
    def is_over(self) -> bool:
        """Whether the time is used up."""
        return time.monotonic() >= self.end_s

    def path(self, ending: str) -> Path:
        return self.stem.with_name(self.stem.name + ending)

    def write(
        self,
        columns: Sequence[str],
        rows: Sequence[dict[str, Any]],
        said: str,
        ending: str = ".csv",
        **about: Any,
    ) -> None:
        """Write the table and the record beside it, and say so."""
        write_table(self.path(ending), columns, rows)
        meanwhile = {
            "rows": len(rows),
            "skipped": self.skipped,
            "elapsed_s": round(time.monotonic() - self._began_s, 1),
        }
        record = {**self._head, **about, **meanwhile}
        write_text(self.path("_meta.json"), json.dumps(record, indent=1) + "\n")
        skipped = [f"{name}: {why}" for name, why in self.skipped.items()]
        more = f"; {len(skipped)} could not be measured ({skipped[0]})" if skipped else ""
        say(f"wrote {self.path(ending)}: {len(rows):,} {said}{more}")

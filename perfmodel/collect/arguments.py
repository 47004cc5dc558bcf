"""What command lines of the sub-commands share, and what they say, as the other verbs do."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple, NoReturn

from perfmodel.base.registry import offered
from perfmodel.errors import UsageError

PROGRAM = "perfmodel"


class Parser(argparse.ArgumentParser):
    """Command lines whose mistakes are one line."""

    def error(self, message: str) -> NoReturn:
        fault(f"{message}; see {self.prog} --help")
        raise SystemExit(2)


def fault(text: str) -> None:
    """One line on standard error: why there are no results."""
    print(f"{PROGRAM}: {' '.join(text.split())}", file=sys.stderr)


def wrote(path: Path, what: str) -> None:
    """What was written where, on standard error."""
    print(f"{PROGRAM}: wrote {path}: {what}", file=sys.stderr)


class Verb(NamedTuple):
    """A sub-command: what it does, its options, and what runs it."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


def add_common(parser: argparse.ArgumentParser, name: str, usual_minutes: float) -> None:
    """Declare `--device`, `--output`, `--minutes` and `--name`."""
    add_device(parser)
    parser.add_argument(
        "--minutes", type=minutes, default=usual_minutes, help=f"time to spend ({usual_minutes:g})"
    )
    parser.add_argument("--name", default=name, help=f"stem of the files (default: {name})")


def add_device(parser: argparse.ArgumentParser) -> None:
    """Declare `--device` and `--output`."""
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="what to measure; `cuda` is ROCm too; `auto` takes a GPU where there is one",
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("collected"), help="folder of the results"
    )


def count(text: str) -> int:
    """An integer of at least 1, for argparse."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return value


def minutes(text: str) -> float:
    """A positive number of minutes, for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of minutes")
    return value


def listed(option: str, text: str, known: Collection[str]) -> list[str]:
    """The comma-separated words of `text`, all those `known` where there is none; `UsageError` for
    another word."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UsageError(f"{option} {offered(name, list(known))}")
    return names or list(known)


def output_folder(path: Path) -> Path:
    """`path` as an existing folder that can be written; `UsageError` when it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output {path}: cannot be created: {error.strerror}") from None
    if not os.access(path, os.W_OK):
        raise UsageError(f"--output {path}: cannot be written; name another folder")
    return path


def restore_command(verb: str, arguments: argparse.Namespace) -> str:
    """The command that gives these results again, without the output folder."""
    words = ["python", "-m", "perfmodel.collect", verb]
    for name, value in sorted(vars(arguments).items()):
        if name in {"output", "verb", "run", "debug"} or value in (None, "", []) or value is False:
            continue
        words.append(f"--{name.replace('_', '-')}")
        if isinstance(value, (list, tuple)):
            words.append(",".join(map(str, value)))
        elif value is not True:
            words.append(str(value))
    return shlex.join(words)

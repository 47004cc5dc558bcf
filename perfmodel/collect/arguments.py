"""What command lines of the sub-commands share, and what they say, as the other verbs do."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple, NoReturn

from perfmodel.base.registry import offered
from perfmodel.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Command lines whose mistakes are one line."""

    def error(self, message: str) -> NoReturn:
        say(f"{message}; see {self.prog} --help")
        raise SystemExit(2)


def say(text: str) -> None:
    """One line on standard error: what was written, or why there are no results."""
    print(f"perfmodel: {' '.join(text.split())}", file=sys.stderr)


class Verb(NamedTuple):
    """A sub-command: what it does, its options, and what runs it."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


def add_common(parser: argparse.ArgumentParser, name: str, usual_minutes: float) -> None:
    """Declare `--device`, `--output`, `--minutes` and `--name`."""
    add_device(parser)
    parser.add_argument(
        "--minutes",
        type=positive(float),
        default=usual_minutes,
        help=f"time to spend ({usual_minutes:g})",
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

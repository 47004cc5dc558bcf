"""The command line: a file per verb, and one line on standard error for whatever goes wrong.

Verbs import the library inside their function, so that `perfmodel --help` loads none of it, and a
command line loads no other verb than its own.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.resources import files
from typing import Annotated

import typer

from perfmodel import __version__
from perfmodel.base.files import INPUTS
from perfmodel.cli.console import LINE, Line
from perfmodel.cli.options import Command, Group, described, texts_of
from perfmodel.errors import ON_COMMAND_LINE, PerfmodelError, UsageError
from perfmodel.reporting.tables import one_line

VERBS = (
    *("predict", "breakdown", "diff", "compare", "plan", "check", "export", "report"),
    *("hardware", "kernel", "workload", "sweep", "collect", "skill"),
)
GROUPS = ("evaluate", "fit")
"""Verbs of several nouns."""
_FILES = {"check": "evaluate", "report": "export", "diff": "compare", "sweep": "plan"}
"""Of verbs that share one; others have one of their own."""


def collect(context: typer.Context) -> None:
    """Measure this machine and capture traces; needs PyTorch.

    \b
    Examples:
      perfmodel collect --help                      what can be measured
      perfmodel collect kernels --device cuda --minutes 5
      perfmodel collect steps --device cpu --minutes 5
    """
    from perfmodel.collect.__main__ import main

    try:
        status = main(context.args)
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 0
    if status:
        raise typer.Exit(status)


def skill() -> None:
    """What an agent or a script has to know, as this package holds it."""
    sys.stdout.write(files("perfmodel").joinpath("AGENTS.md").read_text("utf-8"))


_MAX_WORD = 4000
"""Of one word: below what Python makes a number of, and systems a path."""
DEBUG = "--debug"
NOTES, SOURCES = ("-v", "--verbose"), "--sources"


def application(word: str | None = None) -> typer.Typer:
    """The command line's verbs; only one of them where `word` names it."""
    app = typer.Typer(
        cls=Group,
        add_completion=word is None,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback(no_args_is_help=True)(perfmodel)
    every = (*VERBS, *GROUPS)
    for name in (word,) if word in every else every:
        if name == "collect":
            as_given = {"ignore_unknown_options": True, "allow_extra_args": True}
            app.command(context_settings={**as_given, "help_option_names": []})(collect)
            continue
        if name == "skill":
            app.command(cls=Command)(described(skill, name))
            continue
        module = import_module(f"perfmodel.cli.{_FILES.get(name, name)}")
        if name not in GROUPS:
            app.command(cls=Command)(described(getattr(module, name), name))
            continue
        group = typer.Typer(
            cls=Group, no_args_is_help=True, rich_markup_mode=None, help=texts_of(name)["help"]
        )
        for noun in module.NOUNS:
            group.command(cls=Command)(described(noun, name, noun.__name__))
        app.add_typer(group, name=name)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"perfmodel {__version__}")
        raise typer.Exit


def perfmodel(
    debug: Annotated[
        bool, typer.Option(DEBUG, help="Show tracebacks; may stand anywhere on the line.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option(*NOTES, help="Show details and notes; anywhere.")
    ] = False,
    sources: Annotated[
        bool, typer.Option(SOURCES, help="List assumed hardware values; also anywhere.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """How long will one batch take on this hardware, and why?

    \b
    Examples:
      perfmodel breakdown demo:2rank                        a bundled trace (demo:, demo:gpu)
      perfmodel predict trace.json.gz --hardware h100-sxm   a trace, on another GPU
      perfmodel predict --workload dlrm-dcnv2 --hardware dgx-h100
                                                            a configuration alone
      perfmodel breakdown trace.json.gz                     where its time went
      perfmodel VERB --help                                 more, with examples

    \b
    Exit codes: 0 answered, 1 a check said no, 2 wrong input, 130 interrupted.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns its exit status: 0, 1 (a check failed), 2 (bad input)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    first = next((word for word in given if not word.startswith("-")), None)
    anywhere = (DEBUG,) if first == "collect" else (DEBUG, *NOTES, SOURCES)
    words = [word for word in given if word not in anywhere]
    line = Line(tuple(words), any(word in given for word in NOTES), SOURCES in given)
    before, elsewhere, inputs_before = LINE.set(line), ON_COMMAND_LINE.set(True), INPUTS.set(set())
    try:
        for word in words:
            if len(word) > _MAX_WORD:
                raise UsageError(f"{word[:40]}...: longer than {_MAX_WORD} characters")
        command = typer.main.get_command(application(first))
        with command.make_context("perfmodel", words) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as stop:
        return stop.exit_code
    except BaseException as error:
        if DEBUG in given:
            traceback.print_exc()
        return report_failure(error)
    finally:
        LINE.reset(before)
        INPUTS.reset(inputs_before)
        ON_COMMAND_LINE.reset(elsewhere)
    return 0


FAILED = 2
INTERRUPTED = 130
_MAX_CHARACTERS = 600
_OF_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""Of files, whoever writes them says which; these of no file are of standard output."""


def report_failure(error: BaseException) -> int:
    """Say on standard error what happened; returns the exit status."""
    if isinstance(error, BrokenPipeError):
        _forget_stdout()
        return 0
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, PerfmodelError):
        return _say(str(error))
    if isinstance(error, OSError) and error.filename is not None:
        return _say(f"{error.filename}: {error.strerror}")
    if isinstance(error, OSError) and error.errno in _OF_WRITING:
        _forget_stdout()
        return _say(f"standard output: cannot be written: {error.strerror}")
    if isinstance(error, MemoryError):
        return _say(
            "not enough memory for this input; --max-memory GB refuses documents above a size"
        )
    if hasattr(error, "format_message"):  # how Typer reports wrong usage, in all its versions
        return _usage(error)
    return _say(f"{_whose(error)}; --debug shows where")


def _whose(error: BaseException) -> str:
    """Whose error it may be: of code of a user's that was loaded, or ours."""
    from perfmodel.base.registry import IN_USE

    told = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SystemExit) and frames:
        return f"{frames[-1].filename}:{frames[-1].lineno}: ends the program ({told})"
    if IN_USE:
        return f"{told}; plug-ins in use: {', '.join(IN_USE)}"
    return f"internal error: {told} (please report)"


def _usage(error: BaseException) -> int:
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(context.get_help() if context else error, file=sys.stderr)
        return FAILED
    path = context.command_path if context else "perfmodel"
    text = error.format_message().replace("Value error, ", "")  # type: ignore[attr-defined]
    return _say(f"{text.rstrip('.')}; see {path} --help")


def _say(text: str) -> int:
    line = one_line(text)
    if len(line) > _MAX_CHARACTERS:
        line = line[: _MAX_CHARACTERS // 2] + " ... " + line[-_MAX_CHARACTERS // 2 :]
    with suppress(OSError):  # nobody can be told
        print(f"perfmodel: {line}", file=sys.stderr)
    return FAILED


def _forget_stdout() -> None:
    """The reader has gone: let what is still buffered go nowhere, quietly."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

"""What a user reads when something goes wrong: one line, never a traceback."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from contextlib import suppress

from perfmodel.errors import PerfmodelError
from perfmodel.reporting.tables import one_line

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

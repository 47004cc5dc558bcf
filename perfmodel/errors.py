"""The exceptions and notes a user can meet. A message says what is wrong, where, and what to do."""

from __future__ import annotations

import re
from contextvars import ContextVar

ON_COMMAND_LINE: ContextVar[bool] = ContextVar("on_command_line", default=False)
"""Whether messages are for someone who types options."""
_OPTION = re.compile(r"(?<!\S)--([a-z][a-z0-9-]*)|(`[^`]*`)")
_ARGUMENTS = {
    "device": "only",
    "inference": "train=False",
    "input": "inputs",
    "rate": "rate_per_s",
    "set": "settings",
    "source": "source_device",
    "tolerance": "tolerance_frac",
    "training": "train",
    "trust-models": "trusted=True",
}
"""Arguments of functions that are not called as their options are."""


class Note(str):
    """A line about an answer that only informs: nothing may be wrong with the answer."""


class SharedNote(Note):
    """One that holds for every machine of an answer."""


def prefixed(prefix: str, line: str) -> str:
    """A line under a name, but for one that holds for all; a note stays one."""
    return line if isinstance(line, SharedNote) else type(line)(f"{prefix}: {line}")


def said_dict(lines: list[str]) -> dict[str, list[str]]:
    """As JSON: every line, and which of them are notes."""
    return {"warnings": lines, "notes": [line for line in lines if isinstance(line, Note)]}


class PerfmodelError(Exception):
    """Base of every error that perfmodel raises on purpose; the CLI prints it and exits 2.

    It is made with a text that names options (`--leave-one-step-out`). Its message, `str` of it,
    is that text on the command line; elsewhere it names the arguments of functions
    (`leave_one_step_out`) for them. What stands between backticks is a command, and stays.
    """

    def __str__(self) -> str:
        text = super().__str__()
        return text if ON_COMMAND_LINE.get() else _OPTION.sub(_as_argument, text)


def _as_argument(option: re.Match[str]) -> str:
    name = option[1]
    return option[0] if name is None else _ARGUMENTS.get(name, name.replace("-", "_"))


class LibraryError(PerfmodelError):
    """A library that this answer needs, and that not every install has, is not there."""


class TraceError(PerfmodelError):
    """A trace file, or what it holds, cannot be used."""


class HardwareError(PerfmodelError):
    """A hardware description is unknown, incomplete or impossible."""


class WorkloadError(PerfmodelError):
    """A model configuration cannot be used."""


class DoesNotFit(WorkloadError):
    """More memory is needed than there is."""


class ModelError(PerfmodelError):
    """A kernel, network or overhead model cannot answer, or its file cannot be used."""


class GraphError(PerfmodelError):
    """A graph breaks an invariant, such as being acyclic."""


class UsageError(PerfmodelError):
    """An option or argument of a call makes no sense."""

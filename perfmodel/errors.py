"""The exceptions and notes a user can meet. A message says what is wrong, where, and what to do."""

from __future__ import annotations


class Note(str):
    """A line about an answer that only informs: nothing may be wrong with the answer."""


def prefixed(prefix: str, line: str) -> str:
    """A line under a name; a note stays one."""
    return type(line)(f"{prefix}: {line}")


def said_dict(lines: list[str]) -> dict[str, list[str]]:
    """As JSON: every line, and which of them are notes."""
    return {"warnings": lines, "notes": [line for line in lines if isinstance(line, Note)]}


class PerfmodelError(Exception):
    """Base of every error that perfmodel raises on purpose; the CLI prints it and exits 2."""


class TraceError(PerfmodelError):
    """A trace file, or what it holds, cannot be used."""


class HardwareError(PerfmodelError):
    """A hardware description is unknown, incomplete or impossible."""


class WorkloadError(PerfmodelError):
    """A model configuration cannot be used."""


class ModelError(PerfmodelError):
    """A kernel, network or overhead model cannot answer, or its file cannot be used."""


class GraphError(PerfmodelError):
    """A graph breaks an invariant, such as being acyclic."""


class UsageError(PerfmodelError):
    """An option or argument of a call makes no sense."""

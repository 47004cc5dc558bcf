"""Files of published figures: `traces/published/*.toml`, each with the figures of one source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from perfmodel.base.registry import offered
from perfmodel.base.schema import Limits, convert, read_toml
from perfmodel.errors import PerfmodelError

FOLDER = Path("traces") / "published"
MAX_BYTES = 1_000_000
EVIDENCE = ("exact", "blind", "seen", "input")
"""What a row shows. `exact`: an identity, or a formula's own output. `blind`: its settings were
fixed before its figure was read, and nothing was changed since. `seen`: any other prediction.
`input`: its figure, or one that it follows from, is an input."""

Count: TypeAlias = Annotated[int, Limits(1, 1e12)]
Percent: TypeAlias = Annotated[float, Limits(0, 1e6)]
Settings: TypeAlias = dict[str, Any]
T = TypeVar("T")
_ID = re.compile(r"[a-z0-9][a-z0-9.-]*")


@dataclass(frozen=True)
class Step:
    """A workload on a machine, each of the catalogue or a `.toml` file in a folder below this
    file's. `settings` are the workload's, `hardware` is `KIND.KEY=VALUE`, and `designs` holds
    settings that a variant has on this step only. Without `train`, its forward pass."""

    workload: str
    machine: str
    nodes: Count | None = None
    gpus: Count | None = None
    batch: Count | None = None
    train: bool = True
    settings: Settings = field(default_factory=dict)
    hardware: tuple[str, ...] = ()
    designs: dict[str, Settings] = field(default_factory=dict)


@dataclass(frozen=True)
class Variant:
    """A design with its settings, another machine, or both."""

    design: str = ""
    machine: str = ""
    settings: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A published figure, as its file has it. `known`: what had been seen of the figure when its
    settings or its mechanism were chosen."""

    id: str
    title: str
    unit: str
    target: float | tuple[float, float]
    provenance: str
    evidence: Literal["exact", "blind", "seen", "input"]
    quantity: str
    settings: Settings = field(default_factory=dict)
    tolerance_pct: Percent = 0.0
    known: str = ""
    assumed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError(f"id: expected a-z, 0-9, hyphens and dots, got {self.id!r}")
        if isinstance(self.target, tuple) and self.target[0] > self.target[1]:
            raise ValueError("target: expected a number, or a band from low to high")
        if self.evidence != "exact" and not self.known:
            raise ValueError(f"evidence {self.evidence!r} needs `known`: what was known beforehand")


@dataclass(frozen=True)
class Defaults:
    """Keys that all figures, and all steps, share: each may have its own in their place, `assumed`
    and tables are added to its own."""

    figure: Settings = field(default_factory=dict)
    step: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class Document:
    """A file. A figure's `provenance`, `known` or item of `assumed` that is a key of `notes` stands
    for that note."""

    figures: Annotated[tuple[Row, ...], Limits()]
    steps: dict[str, Step] = field(default_factory=dict)
    variants: dict[str, Variant] = field(default_factory=dict)
    defaults: Defaults = field(default_factory=Defaults)
    notes: dict[str, str] = field(default_factory=dict)


def read_document(path: Path) -> Document:
    """A file of published figures, its defaults in every figure and step.

    Raises `PerfmodelError` that names the file and the place.
    """
    table = _with_defaults(read_toml(path, MAX_BYTES, PerfmodelError))
    document: Document = convert(Document, table, str(path), PerfmodelError)
    return document


def _with_defaults(document: Any) -> Any:
    """The document with the defaults of figures and steps in each, and notes in their places.

    What is of another type than it should be is left as it is, for the conversion to name.
    """
    match document:
        case {"defaults": {"figure": dict() as shared}, "figures": list() as rows}:
            document["figures"] = [merged(shared, row) for row in rows]
    match document:
        case {"defaults": {"step": dict() as shared}, "steps": dict() as steps}:
            document["steps"] = {name: merged(shared, step) for name, step in steps.items()}
    match document:
        case {"notes": dict() as notes, "figures": list() as rows}:
            document["figures"] = [_with_notes(row, notes) for row in rows]
    return document


def merged(shared: Any, own: Any) -> Any:
    """Two tables as one: of what both have `own`'s, but tables are merged and `assumed` joined."""
    match shared, own:
        case dict(), dict():
            both = {key: merged(shared[key], own[key]) for key in shared.keys() & own.keys()}
            if isinstance(own.get("assumed"), list) and isinstance(shared.get("assumed"), list):
                both["assumed"] = own["assumed"] + shared["assumed"]
            return shared | own | both
        case _:
            return own


def _with_notes(row: Any, notes: Mapping[str, Any]) -> Any:
    """A figure, its texts that are keys of `notes` as those notes."""

    def text(value: Any) -> Any:
        return notes.get(value, value) if isinstance(value, str) else value

    if not isinstance(row, dict):
        return row
    texts = {key: text(row[key]) for key in ("provenance", "known") if key in row}
    if isinstance(row.get("assumed"), list):
        texts["assumed"] = [text(each) for each in row["assumed"]]
    return row | texts


def entry(table: Mapping[str, T], name: str, kind: str) -> T:
    """The entry of that name. Raises `PerfmodelError` for another name, with the nearest."""
    if name not in table:
        raise PerfmodelError(f"unknown {kind} {offered(name, sorted(table))}")
    return table[name]


def published_folder() -> Path:
    """`traces/published` of the working directory, else of the checkout that the package is in.

    Raises `PerfmodelError` where there is none.
    """
    for root in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (root / FOLDER).is_dir():
            return root / FOLDER
    raise PerfmodelError(f"no folder {FOLDER}: run it in a checkout, or name a folder")

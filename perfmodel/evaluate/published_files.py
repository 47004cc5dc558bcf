"""Files of published figures: `traces/published/*.toml`, each with the figures of one source."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec

from perfmodel.errors import PerfmodelError
from perfmodel.files import read_bytes

FOLDER = Path("traces") / "published"
MAX_BYTES = 1_000_000
EVIDENCE = ("exact", "blind", "seen", "input")
"""What a row shows. `exact`: an identity, or a formula's own output. `blind`: its settings were
fixed before its figure was read, and nothing was changed since. `seen`: any other prediction.
`input`: its figure, or one that it follows from, is an input."""

Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
Percent: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
Id: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9.-]*$")]
Settings: TypeAlias = dict[str, Any]
T = TypeVar("T")


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of a file, of which every key is known."""


class Step(_Table, frozen=True):
    """A workload on a machine, each of the catalogue or a `.toml` file in a folder below this
    file's. `settings` are the workload's, `hardware` is `KIND.KEY=VALUE`, and `designs` holds
    settings that a variant has on this step only."""

    workload: Text
    machine: Text
    nodes: Count | None = None
    gpus: Count | None = None
    batch: Count | None = None
    settings: Settings = {}
    hardware: list[str] = []
    designs: dict[str, Settings] = {}


class Variant(_Table, frozen=True):
    """A design with its settings, another machine, or both."""

    design: str = ""
    machine: str = ""
    settings: Settings = {}


class Row(_Table, frozen=True):
    """A published figure, as its file has it. `known`: what had been seen of the figure when its
    settings or its mechanism were chosen."""

    id: Id
    title: Text
    unit: Text
    target: float | tuple[float, float]
    provenance: Text
    evidence: Literal["exact", "blind", "seen", "input"]
    quantity: Text
    settings: Settings = {}
    tolerance_pct: Percent = 0.0
    known: str = ""
    assumed: list[str] = []

    def __post_init__(self) -> None:
        ends = self.target if isinstance(self.target, tuple) else (self.target,)
        if not all(map(isfinite, (*ends, self.tolerance_pct))) or list(ends) != sorted(ends):
            raise ValueError("target: expected a number, or a band from low to high")
        if self.evidence != "exact" and not self.known:
            raise ValueError(f"evidence {self.evidence!r} needs `known`: what was known beforehand")


class Defaults(_Table, frozen=True):
    """Keys that all figures, and all steps, share: each may have its own in their place, `assumed`
    and tables are added to its own."""

    figure: Settings = {}
    step: Settings = {}


class Document(_Table, frozen=True):
    """A file. A figure's `provenance`, `known` or item of `assumed` that is a key of `notes` stands
    for that note."""

    figures: Annotated[list[Row], msgspec.Meta(min_length=1)]
    steps: dict[str, Step] = {}
    variants: dict[str, Variant] = {}
    defaults: Defaults = Defaults()
    notes: dict[str, str] = {}


def read_document(path: Path) -> Document:
    """A file of published figures, its defaults in every figure and step.

    Raises `PerfmodelError` that names the file and the place.
    """
    try:
        document = tomllib.loads(read_bytes(path, max_bytes=MAX_BYTES).decode())
    except (ValueError, RecursionError) as error:
        raise PerfmodelError(f"{path}: not valid TOML: {error}") from None
    figures: Document = converted(_with_defaults(document), Document, str(path))
    return figures


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


def converted(value: Any, kind: Any, where: str) -> Any:
    """`value` as a `kind`. Raises `PerfmodelError` that begins with `where` and the key."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at ")
        inside = place.strip("`").removeprefix("$").lstrip(".")
        raise PerfmodelError(f"{where}: {f'{inside}: ' if inside else ''}{what}") from None


def entry(table: Mapping[str, T], name: str, kind: str) -> T:
    """The entry of that name. Raises `PerfmodelError` for another name, with the nearest."""
    if name not in table:
        near = get_close_matches(name, table, n=3, cutoff=0.4) or sorted(table) or ["none"]
        raise PerfmodelError(f"unknown {kind} {name!r}; nearest: {', '.join(near)}")
    return table[name]


def published_folder() -> Path:
    """`traces/published` of the working directory, else of the checkout that the package is in.

    Raises `PerfmodelError` where there is none.
    """
    for root in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (root / FOLDER).is_dir():
            return root / FOLDER
    raise PerfmodelError(f"no folder {FOLDER}: stand in a checkout, or name a folder")

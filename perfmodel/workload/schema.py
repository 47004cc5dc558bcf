"""From a table of a TOML file to a workload, checking every key, type and range on the way."""

from __future__ import annotations

from dataclasses import MISSING, fields
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from perfmodel.errors import WorkloadError
from perfmodel.workload.checks import check
from perfmodel.workload.model import (
    SCHEMA,
    Evaluation,
    Implementation,
    Interaction,
    Loader,
    Model,
    Training,
    Workload,
)
from perfmodel.workload.tables import Histogram, Table

Section = dict[str, Any]
T = TypeVar("T")

SECTIONS: dict[str, type] = {
    "model": Model,
    "interaction": Interaction,
    "training": Training,
    "implementation": Implementation,
    "evaluation": Evaluation,
    "loader": Loader,
}
TOP_KEYS = ("schema", "title", "batch", "source", *SECTIONS, "tables")
TABLE_KEYS = (
    *("count", "rows", "dim", "pooling", "distribution", "alpha", "histogram", "bags", "source"),
)
INDEPENDENT, BY_KEY = "independent", "by_key"
"""Rows of a bag are drawn one by one; or one key is, and with it always come the same rows."""
MAX_TABLES = 100_000
LIMITS: dict[str, tuple[float, float]] = {
    "rows": (1, 1e13),
    "dim": (1, 1e5),
    "pooling": (1e-3, 1e6),
    "alpha": (0, 10),
    "key_rows": (0, 1e13),
    "share": (1e-15, 1e9),
    "count": (1, MAX_TABLES),
    "batch": (1, 1e9),
    "layers": (1, 100),
    "rank": (1, 1e5),
    "pad_to": (1, 4096),
    "dense_features": (1, 1e6),
    "bottom_mlp": (1, 1e6),
    "top_mlp": (1, 1e6),
    "data_parallel_max_bytes": (0, 1e15),
    "unmodelled_sample_bytes": (0, 1e9),
    "every_samples": (0, 1e15),
    "samples": (0, 1e15),
    "batch_factor": (1, 1e6),
    "beyond_us": (0, 1e12),
    "ddp_bucket_bytes": (1, 1e12),
    "samples_per_s": (0, 1e12),
    "gb_per_s": (0, 1e6),
    "bytes_per_sample": (0, 1e12),
}
"""Key to the smallest and the largest value that can exist."""


def build(document: Section, name: str, where: str) -> Workload:
    """The workload that a file's `document` describes; `where` names the file in messages.

    Raises `WorkloadError` that names file and key.
    """
    _known(document, TOP_KEYS, where)
    if document.get("schema", SCHEMA) != SCHEMA:
        raise WorkloadError(f"{where}: schema: expected {SCHEMA!r}, got {document['schema']!r}")
    if "model" not in document:
        raise WorkloadError(f"{where}: model is missing: expected a section [model]")
    sources = {}
    parts: dict[str, Any] = {}
    for key, kind in SECTIONS.items():
        table = dict(_table(document.get(key, {}), f"{where}: {key}"))
        if "source" in table:
            sources[key] = _text(table.pop("source"), f"{where}: {key}: source")
        parts[key] = section(kind, table, f"{where}: {key}")
    parts["tables"] = _tables(document.get("tables"), sources, where)
    if "source" in document:
        sources["file"] = _text(document["source"], f"{where}: source")
    if "batch" in document:
        parts["batch"] = _number("batch", document["batch"], f"{where}: batch", whole=True)
    title = _text(document["title"], f"{where}: title") if "title" in document else ""
    workload = Workload(name=name, title=title, sources=MappingProxyType(sources), **parts)
    check(workload, where)
    return workload


def section(kind: type[T], table: Section, where: str) -> T:
    """One section as its dataclass."""
    hints = get_type_hints(kind)
    _known(table, list(hints), where)
    for entry in fields(kind):  # type: ignore[arg-type]
        if entry.default is MISSING and entry.name not in table:
            raise WorkloadError(f"{where}: {entry.name} is missing")
    return kind(
        **{key: value_of(key, hints[key], value, f"{where}: {key}") for key, value in table.items()}
    )


def value_of(key: str, kind: Any, value: Any, where: str) -> Any:
    """`value` as a field of type `kind`; raises `WorkloadError` for another type or range."""
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            choices = ", ".join(f'"{choice}"' for choice in get_args(kind))
            raise WorkloadError(f"{where}: expected one of {choices}, got {_short(value)}")
        return value
    if kind is bool:
        if not isinstance(value, bool):
            raise WorkloadError(f"{where}: expected true or false, got {_short(value)}")
        return value
    if kind is str:
        return _text(value, where)
    if kind == Histogram:
        return _histogram(value, where)
    if get_origin(kind) is tuple and get_origin(get_args(kind)[0]) is Literal:
        if not isinstance(value, (list, tuple)):
            raise WorkloadError(f"{where}: expected a list of precisions, got {_short(value)}")
        return tuple(value_of(key, get_args(kind)[0], item, where) for item in value)
    if get_origin(kind) is tuple:
        if not isinstance(value, (list, tuple)) or not value:
            raise WorkloadError(f"{where}: expected a list of widths, got {_short(value)}")
        return tuple(_number(key, item, where, whole=True) for item in value)
    return _number(key, value, where, whole=kind is int)


def _tables(groups: Any, sources: dict[str, str], where: str) -> tuple[Table, ...]:
    if not isinstance(groups, list) or not groups:
        raise WorkloadError(f"{where}: tables is missing: expected at least one [[tables]]")
    found: list[Table] = []
    for number, group in enumerate(groups, 1):
        place = f"{where}: tables[{number}]"
        table = _table(group, place)
        _known(table, TABLE_KEYS, place)
        if "source" in table:
            sources[f"tables[{number}]"] = _text(table["source"], f"{place}: source")
        found += _group(table, place)
    return tuple(found)


def _group(table: Section, where: str) -> list[Table]:
    """The tables of one `[[tables]]`: numbers hold for all of them, lists have one for each."""
    for key in ("rows", "dim"):
        if key not in table:
            raise WorkloadError(f"{where}: {key} is missing")
    alpha = table.get("alpha", 0.0)
    histogram = _histogram(table.get("histogram"), f"{where}: histogram")
    usual = "histogram" if histogram else "zipf" if alpha else "uniform"
    distribution = table.get("distribution", usual)
    if distribution not in ("uniform", "zipf", "histogram"):
        raise WorkloadError(
            f'{where}: distribution: expected "uniform", "zipf" or "histogram", '
            f"got {_short(distribution)}"
        )
    if (distribution == "histogram") != bool(histogram):
        raise WorkloadError(
            f"{where}: histogram: a histogram distribution has pairs of shares, of the lookups and "
            f"of the rows that they go to; another has none"
        )
    if distribution == "zipf" and "alpha" not in table:
        raise WorkloadError(f"{where}: alpha is missing: a zipf distribution needs its exponent")
    if distribution != "zipf" and alpha != 0:
        raise WorkloadError(
            f"{where}: alpha: a {distribution} distribution has none, got {_short(alpha)}"
        )
    bags = table.get("bags", INDEPENDENT)
    if bags not in (INDEPENDENT, BY_KEY):
        raise WorkloadError(
            f'{where}: bags: expected "{INDEPENDENT}" or "{BY_KEY}", got {_short(bags)}'
        )
    columns = {"rows": table["rows"], "dim": table["dim"], "alpha": alpha}
    columns["pooling"] = table.get("pooling", 1.0)
    lengths = {key: len(value) for key, value in columns.items() if isinstance(value, list)}
    count = table.get("count", max(lengths.values(), default=1))
    count = int(_number("count", count, f"{where}: count", whole=True))
    for key, length in lengths.items():
        if length != count:
            raise WorkloadError(f"{where}: {key} has {length} entries for {count} tables")
    checked = {
        key: [
            _number(key, item, f"{where}: {key}", whole=key in ("rows", "dim"))
            for item in (value if isinstance(value, list) else [value])
        ]
        for key, value in columns.items()
    }
    if bags == BY_KEY:
        checked["key_rows"] = checked["rows"]
    return [
        Table(
            **{key: values[number % len(values)] for key, values in checked.items()},
            histogram=histogram,
        )
        for number in range(count)
    ]


def _histogram(pairs: Any, where: str) -> Histogram:
    """Pairs of shares, each above 0."""
    if pairs is None:
        return ()
    if not isinstance(pairs, (list, tuple)) or not pairs:
        raise WorkloadError(f"{where}: expected a list of pairs, got {_short(pairs)}")
    for number, pair in enumerate(pairs, 1):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise WorkloadError(f"{where}[{number}]: expected a pair, got {_short(pair)}")
    return tuple(
        (_number("share", lookups, where, whole=False), _number("share", rows, where, whole=False))
        for lookups, rows in pairs
    )


def _number(key: str, value: Any, where: str, *, whole: bool) -> Any:
    low, high = LIMITS[key]
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
    if not fits or (whole and int(value) != value):
        kind = "a whole number" if whole else "a number"
        raise WorkloadError(
            f"{where}: expected {kind} from {low:g} to {high:g}, got {_short(value)}"
        )
    return int(value) if whole else float(value)


def _known(table: Section, known: Any, where: str) -> None:
    for key in table:
        if key not in known:
            near = get_close_matches(key, known, n=2, cutoff=0.6) or list(known)
            raise WorkloadError(f"{where}: unknown key {key}; expected: {', '.join(near)}")


def _table(value: Any, where: str) -> Section:
    if not isinstance(value, dict):
        raise WorkloadError(f"{where}: expected a section, got {_short(value)}")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise WorkloadError(f"{where}: expected a text in quotes, got {_short(value)}")
    return " ".join(value.split())


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

"""From a TOML file, of the catalogue or of the user, to a workload."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from perfmodel.base.registry import offered
from perfmodel.base.schema import read_toml, require_keys, short
from perfmodel.errors import WorkloadError
from perfmodel.workload.model import SCHEMA, Workload, check_workload
from perfmodel.workload.settings import SECTIONS, Section, workload_section, workload_value
from perfmodel.workload.tables import Histogram, Table

TOP_KEYS = ("schema", "title", "batch", "source", *SECTIONS, "tables")
TABLE_KEYS = (
    *("count", "rows", "dim", "pooling", "distribution", "alpha", "histogram", "bags", "source"),
)
_TYPES: dict[str, type] = {"rows": int, "dim": int, "alpha": float, "pooling": float}
Distribution = Literal["uniform", "zipf", "histogram"]
Bags = Literal["independent", "by_key"]
"""Rows of a bag are drawn one by one; or one key is, and with it always come the same rows."""


def workload_from_document(document: Section, name: str, where: str) -> Workload:
    """The workload that a file's `document` describes; `where` names the file in messages.

    Raises `WorkloadError` that names file and key.
    """
    require_keys(document, TOP_KEYS, where, WorkloadError)
    if document.get("schema", SCHEMA) != SCHEMA:
        raise WorkloadError(f"{where}: schema: expected {SCHEMA!r}, got {document['schema']!r}")
    if "model" not in document:
        raise WorkloadError(f"{where}: model is missing: expected a section [model]")
    sources = {}
    parts: dict[str, Any] = {}
    for key, kind in SECTIONS.items():
        table = document.get(key, {})
        if isinstance(table, dict) and "source" in table:
            sources[key] = workload_value("source", str, table["source"], f"{where}: {key}: source")
            table = {name: value for name, value in table.items() if name != "source"}
        parts[key] = workload_section(kind, table, f"{where}: {key}")
    parts["tables"] = _tables(document.get("tables"), sources, where)
    if "source" in document:
        sources["file"] = workload_value("source", str, document["source"], f"{where}: source")
    if "batch" in document:
        parts["batch"] = workload_value("batch", int, document["batch"], f"{where}: batch")
    title = (
        workload_value("title", str, document["title"], f"{where}: title")
        if "title" in document
        else ""
    )
    workload = Workload(name=name, title=title, sources=MappingProxyType(sources), **parts)
    check_workload(workload, where)
    return workload


def _tables(groups: Any, sources: dict[str, str], where: str) -> tuple[Table, ...]:
    if not isinstance(groups, list) or not groups:
        raise WorkloadError(f"{where}: tables is missing: expected at least one [[tables]]")
    tables: list[Table] = []
    for number, group in enumerate(groups, 1):
        place = f"{where}: tables[{number}]"
        require_keys(group, TABLE_KEYS, place, WorkloadError)
        if "source" in group:
            sources[f"tables[{number}]"] = workload_value(
                "source", str, group["source"], f"{place}: source"
            )
        tables += _group(group, place)
    return tuple(tables)


def _group(table: Section, where: str) -> list[Table]:
    """The tables of one `[[tables]]`: numbers hold for all of them, lists have one for each."""
    for key in ("rows", "dim"):
        if key not in table:
            raise WorkloadError(f"{where}: {key} is missing")
    alpha, histogram = table.get("alpha", 0.0), table.get("histogram", ())
    if "histogram" in table:
        histogram = workload_value("histogram", Histogram, histogram, f"{where}: histogram")
    usual = "histogram" if histogram else "zipf" if alpha else "uniform"
    distribution = table.get("distribution", usual)
    workload_value("distribution", Distribution, distribution, f"{where}: distribution")
    bags = workload_value("bags", Bags, table.get("bags", "independent"), f"{where}: bags")
    if (distribution == "histogram") != bool(histogram):
        raise WorkloadError(
            f"{where}: histogram: a histogram distribution has pairs of shares, of the lookups and "
            "of the rows that they go to; another has none"
        )
    if distribution == "zipf" and "alpha" not in table:
        raise WorkloadError(f"{where}: alpha is missing: a zipf distribution needs its exponent")
    if distribution != "zipf" and alpha != 0:
        raise WorkloadError(
            f"{where}: alpha: a {distribution} distribution has none, got {short(alpha)}"
        )
    given = {"pooling": 1.0, **{key: table[key] for key in _TYPES if key in table}}
    columns = {key: each if isinstance(each, list) else [each] for key, each in given.items()}
    lengths = {key: len(each) for key, each in given.items() if isinstance(each, list)}
    count = table.get("count", max(lengths.values(), default=1))
    count = workload_value("count", int, count, f"{where}: count")
    for key, length in lengths.items():
        if length != count:
            raise WorkloadError(f"{where}: {key} has {length} entries for {count} tables")
    checked = {
        key: [workload_value(key, _TYPES[key], item, f"{where}: {key}") for item in column]
        for key, column in columns.items()
    }
    if bags == "by_key":
        checked["key_rows"] = checked["rows"]
    return [
        Table(
            **{key: values[number % len(values)] for key, values in checked.items()},
            histogram=histogram,
        )
        for number in range(count)
    ]


FOLDER = Path(__file__).parent / "catalogue"
MAX_FILE_BYTES = 10_000_000


def workloads() -> list[str]:
    """Names of the catalogue's workloads, sorted."""
    return sorted(_files())


def load_workload(name_or_path: str | Path) -> Workload:
    """The workload of that name in the catalogue, or in the TOML file at that path.

    What ends in `.toml` or holds a `/` is a path. Raises `WorkloadError`: an unknown name (with the
    nearest ones), or a file that does not hold.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text:
        path = Path(name_or_path)
        return _read(path, path.stem, str(path))
    return _named(text)


@cache
def _files() -> dict[str, Path]:
    return {path.stem: path for path in FOLDER.glob("*.toml")}


@cache
def _named(name: str) -> Workload:
    if name not in _files():
        told = offered(name, workloads(), "perfmodel predict --workload list", cutoff=0.3)
        raise WorkloadError(f"unknown workload {told} (or the path of a .toml file of your own)")
    return _read(_files()[name], name, f"catalogue workload {name}")


def _read(path: Path, name: str, where: str) -> Workload:
    document = read_toml(path, MAX_FILE_BYTES, WorkloadError, where)
    return workload_from_document(document, name, where)

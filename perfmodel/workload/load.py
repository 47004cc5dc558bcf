"""From a TOML file, of the catalogue or of the user, or from a recording (a trace, a folder of
ranks, a module's source) to a workload; how popular rows are, from the ids that were looked up."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from perfmodel.base.arrays import Ints
from perfmodel.base.files import located, read_bytes, schema_of
from perfmodel.base.registry import offered
from perfmodel.base.schema import Limits, convert, read_toml, require_keys, section, short
from perfmodel.embedding.index_streams import (
    population,
    read_stream,
    reuse_histogram,
    stream_alpha,
    traced_lookups,
)
from perfmodel.embedding.popularity import zipf
from perfmodel.errors import TraceError, WorkloadError
from perfmodel.ops.graph import OpGraph
from perfmodel.ops.read.module import Call, graph_of_program, program_of
from perfmodel.trace import Trace, read
from perfmodel.workload.model import SCHEMA, Workload, check_workload
from perfmodel.workload.recorded_layers import recorded_layers, traced_graphs
from perfmodel.workload.recovered import (
    DEFAULT,
    Fact,
    Recovered,
    beside_model,
    recovered,
)
from perfmodel.workload.recovered import SCHEMA as RECOVERED
from perfmodel.workload.recovered_tables import SUMS, UNSEEN, HeldTable
from perfmodel.workload.settings import SECTIONS
from perfmodel.workload.tables import Histogram, Table


def recovered_of(source: str | Path | Trace | OpGraph) -> Recovered:
    """The workload of a trace (its path, or itself), of the ops of a program, or of the class
    `FILE.py:CLASS`, whose file is executed.

    Raises `TraceError` for what cannot be read, and `WorkloadError` for what is no workload.
    """
    if isinstance(source, OpGraph):
        return recovered([source], source.source)
    program = program_of(str(source)) if isinstance(source, (str, Path)) else None
    if program is not None:
        graph = graph_of_program(program, Call(training=True))
        return recovered([graph], program.name, program.class_name)
    trace = source if isinstance(source, Trace) else read(source)
    try:
        graphs = traced_graphs(trace)
    except TraceError as problem:
        raise WorkloadError(f"{problem} (tables and layers are told by shapes)") from None
    found = recovered(graphs, trace.source)
    if trace.ranks and found.train and len(trace.links[0].device_rows):
        found = beside_model(found, trace.ranks[0], trace.links[0])
    # The skew of the ids that PyTorch saved beside the execution traces, if it did: of tables of
    # the same size, in order.
    path = Path(trace.source)
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    files = [each for each in files if each.with_name(f"{each.stem}_resources").is_dir()]
    tables, left = list(found.workload.tables), list(range(len(found.held)))
    for file in files:
        for seen in traced_lookups(file):
            size = seen.table_rows, seen.dim
            at = next((n for n in left if (tables[n].rows, tables[n].dim) == size), None)
            if at is not None:
                left.remove(at)
                tables[at] = with_skew(tables[at], seen.rows, f"{file}: table {at}")
    return found.with_tables(tables, "ids saved beside the trace") if files else found


def with_ids(found: Recovered, path: str | Path) -> Recovered:
    """With the skew of the ids in the file at `path`, of which it holds a stream for each table
    (see `read_stream`): by number where their names end in numbers, else in order.

    Rows that are not told are as many as the ids need at least. Raises `WorkloadError` for streams
    of other tables, ids beyond the rows of a table, or of all tables of one call, and where
    exponents contradict one another.
    """
    streams, tables = read_stream(path), found.workload.tables
    names = list(streams)
    numbers = [re.search(r"\d+$", name) for name in names]
    if all(numbers):
        names.sort(key=lambda name: int(re.search(r"\d+$", name)[0]))  # type: ignore[index]
    if len(names) != len(tables):
        raise WorkloadError(f"{path}: ids of {len(names)} tables, the workload has {len(tables)}")
    held: Sequence[HeldTable | None] = found.held or [None] * len(tables)
    rows = _rows(found.held, [int(streams[name].max()) + 1 for name in names], str(path))
    made = []
    for number, (name, table, own) in enumerate(zip(names, tables, held, strict=True)):
        where = f"{path}: table {name or number}"
        table = replace(table, rows=rows.get(number, table.rows))
        skewed = with_skew(table, streams[name], where)
        is_known = own is not None and own.skew_told and not table.histogram
        if is_known and abs(skewed.alpha - table.alpha) > _FEW_OFF * max(table.alpha, 1.0):
            raise WorkloadError(
                f"{where}: its ids have alpha {skewed.alpha:.2f}, those that were recorded "
                f"{table.alpha:.2f}"
            )
        made.append(skewed)
    found = found.with_tables(made, f"ids in {path}")
    if not rows:
        return found
    why = f"not told one by one: as many as ids in {path} need, with even parts of the others"
    return replace(found, facts=(*found.facts, Fact("tables.rows", len(rows), DEFAULT, why)))


def _rows(held: Sequence[HeldTable], needed: Sequence[int], path: str) -> dict[int, int]:
    """Rows by number of those tables that are not told theirs, where the ids of some need more:
    what all need, and of the others of their call each an even part."""
    found, calls = dict[int, int](), defaultdict[tuple[object, ...], list[int]](list)
    for number, each in enumerate(held):
        if each.told == SUMS:
            seen = each.seen  # without keys sizes tell the calls of a rank apart
            calls[each.ranks, seen.key[:-1], seen.dim, seen.lookups, seen.bags].append(number)
        elif each.told == UNSEEN and needed[number] > each.table.rows:
            found[number] = needed[number]
    for own in calls.values():
        total, least = sum(held[n].table.rows for n in own), sum(needed[n] for n in own)
        if least > total:
            raise WorkloadError(
                f"{path}: ids of {len(own)} tables need {least:,} rows, and these have {total:,} "
                "in all"
            )
        if any(needed[n] > held[n].table.rows for n in own):
            found |= {n: needed[n] + (total - least) // len(own) for n in own}
    return found


_FEW_OFF = 0.05
"""By so much may the distinct rows that a Zipf distribution expects be off, for it to stand; and
two exponents of one table."""


def with_skew(table: Table, ids: Ints, where: str) -> Table:
    """`table`, its rows as popular as `ids` `[lookups]` look them up: by Zipf's law where that
    expects as many distinct rows, else by a histogram."""
    largest = int(ids.max())
    if largest >= table.rows:
        raise WorkloadError(f"{where}: row {largest}, of {table.rows:,} rows from 0")
    alpha, histogram = stream_alpha(ids, table.rows), reuse_histogram(ids, where)
    expected = float(zipf(table.rows, alpha, smooth=True).distinct_rows(len(ids)))
    plain = replace(table, alpha=round(alpha, 4), key_rows=0, histogram=())
    if abs(expected - histogram.distinct_rows) <= _FEW_OFF * histogram.distinct_rows:
        return plain
    found = population(histogram, table.rows)
    rows = np.append(found.rows, max(table.rows - found.total_rows, 0.0)) / table.rows
    shares = np.maximum(np.append(found.share, 0.0), _UNSEEN_SHARE)
    classes = zip(shares.tolist(), rows.tolist(), strict=True)
    return replace(plain, alpha=0.0, histogram=tuple(each for each in classes if each[1] > 0))


_UNSEEN_SHARE = 1e-15
"""Of lookups that go to rows of which a stream has none."""


@dataclass(frozen=True)
class _Group:
    """The tables of one `[[tables]]`: numbers hold for all of them, lists have one for each.

    With bags `independent` rows of a bag are drawn one by one; `by_key` one key is, and with it
    always come the same rows. Of tables that are not `pooled` each row is given by itself.
    """

    rows: Annotated[int | tuple[int, ...], Limits(1, 1e13)]
    dim: Annotated[int | tuple[int, ...], Limits(1, 1e5)]
    pooling: Annotated[float | tuple[float, ...], Limits(1e-3, 1e6)] = 1.0
    alpha: Annotated[float | tuple[float, ...] | None, Limits(0, 10)] = None
    distribution: Literal["uniform", "zipf", "histogram"] | None = None
    histogram: Histogram = ()
    bags: Literal["independent", "by_key"] = "independent"
    ids: Literal["scattered", "by_popularity"] = "scattered"
    pooled: bool = True
    count: Annotated[int | None, Limits(1, 100_000)] = None
    source: str = ""

    def tables(self, where: str) -> list[Table]:
        usual = "histogram" if self.histogram else "zipf" if self.alpha else "uniform"
        distribution = self.distribution or usual
        if (distribution == "histogram") != bool(self.histogram):
            raise WorkloadError(
                f"{where}: histogram: a histogram distribution has pairs of shares, of the lookups "
                "and of the rows that they go to; another has none"
            )
        if distribution == "zipf" and self.alpha is None:
            raise WorkloadError(
                f"{where}: alpha is missing: a zipf distribution needs its exponent"
            )
        if distribution != "zipf" and self.alpha:
            raise WorkloadError(
                f"{where}: alpha: a {distribution} distribution has none, got {short(self.alpha)}"
            )
        if self.bags == "by_key" and not self.pooled:
            raise WorkloadError(f"{where}: bags: rows that are not pooled are drawn one by one")
        keys = self.rows if self.bags == "by_key" else 0
        given = (self.rows, self.dim, self.pooling, self.alpha or 0.0, keys)
        lengths = [len(each) for each in given if isinstance(each, tuple)]
        count = self.count or max(lengths, default=1)
        for key, each in zip(("rows", "dim", "pooling", "alpha"), given, strict=False):
            if isinstance(each, tuple) and len(each) != count:
                raise WorkloadError(f"{where}: {key} has {len(each)} entries for {count} tables")
        columns = (each if isinstance(each, tuple) else (each,) * count for each in given)
        about: dict[str, Any] = {"histogram": self.histogram, "ids": self.ids}
        about["pooled"] = self.pooled
        return [Table(*row, **about) for row in zip(*columns, strict=True)]


@dataclass(frozen=True)
class _Recorded:
    """`[recorded]`: a trace, or `FILE.py:CLASS`, which is executed, at a path from the workload's
    file, of so many samples; what it shows of them where that is not given."""

    source: str
    batch: Annotated[int | None, Limits(1, 1e9)] = None


TOP_KEYS = ("schema", "title", "batch", "source", *SECTIONS, "recorded", "tables")
"""Of a file; `source`, also in each section, tells where its figures come from."""


def workload_from_document(
    document: dict[str, Any], name: str, where: str, folder: Path = Path()
) -> Workload:
    """The workload that a file's `document` describes; `where` names the file in messages, paths
    are from its `folder`.

    Raises `WorkloadError` that names file and key.
    """
    require_keys(document, TOP_KEYS, where, WorkloadError)
    if document.get("schema", SCHEMA) != SCHEMA:
        raise WorkloadError(f"{where}: schema: expected {SCHEMA!r}, got {document['schema']!r}")
    kind, groups = tuple[_Group, ...], document.get("tables", ())
    groups = enumerate(convert(kind, groups, f"{where}: tables", WorkloadError), 1)
    tables = [each for at, group in groups for each in group.tables(f"{where}: tables[{at}]")]
    if not tables:
        raise WorkloadError(f"{where}: tables is missing: expected at least one [[tables]]")
    parts: dict[str, Any] = {"name": name}
    for key in document.keys() - {"schema", "source", "recorded", "tables"}:
        parts[key] = document[key]
        if key in SECTIONS and isinstance(parts[key], dict):
            parts[key] = {name: each for name, each in parts[key].items() if name != "source"}
    recorded = None
    if "recorded" in document:
        about = section(_Recorded, document["recorded"], f"{where}: recorded", WorkloadError)
        program = program_of(about.source)
        if program is None:
            graph = traced_graphs(read(folder / about.source))[0]
        else:
            program = replace(program, path=folder / program.path)
            graph = graph_of_program(program, Call(training=True))
        recorded = recorded_layers(graph, about.batch)
        own = parts.setdefault("implementation", {})
        if isinstance(own, dict):  # what runs recorded layers unless the file says otherwise
            own.setdefault("name", "torchrec")
    workload = section(Workload, parts, where, WorkloadError)
    workload = replace(workload, tables=tuple(tables), recorded=recorded)
    check_workload(workload, where)
    return workload


FOLDER = Path(__file__).parent / "catalogue"
MAX_FILE_BYTES = 10_000_000
TOML = ".toml"


def workloads() -> list[str]:
    """Names of the catalogue's workloads, sorted."""
    return sorted(_files())


def load_workload(name_or_path: str | Path | Trace) -> Workload:
    """The workload of that name in the catalogue, in the TOML file at that path (or the JSON of
    `perfmodel workload`), or that a recording shows: a trace (or itself), a folder of ranks, or the
    module `FILE.py:CLASS`.

    What ends in `.toml` or holds a `/` is a path. Raises `WorkloadError`: an unknown name (with the
    nearest ones), a file that does not hold, or a recording of no such model; `TraceError` for one
    that cannot be read.
    """
    return workload_of(name_or_path).workload


def workload_of(
    source: str | Path | Trace | OpGraph, *, ids: str | Path | None = None
) -> Recovered:
    """The same, with how each setting is known, and where tables lay. With `ids`, a file of ids
    that were looked up, rows are as popular as these look them up.

    Raises as `load_workload` does, and `WorkloadError` for ids of other tables.
    """
    if not isinstance(source, (str, Path)):
        found = recovered_of(source)
    elif is_recording(source):
        path = Path(source)
        if path.is_dir():
            files = [path, *path.iterdir()]
        else:  # of `FILE.py:CLASS` the file
            files = [path.with_name(path.name.split(":")[0])]
        changed_ns = max((each.stat().st_mtime_ns for each in files if each.exists()), default=0)
        found = _recorded(str(source), changed_ns)
    else:
        found = Recovered(_written(source), source=str(source))
    return found if ids is None else with_ids(found, ids)


def is_recording(name_or_path: str | Path) -> bool:
    """Whether it names a trace, a folder of ranks or a module, not a workload."""
    if str(name_or_path) in workloads():
        return False
    path = located(name_or_path)
    if schema_of(path) is not None:
        return False
    suffix = path.suffix.lower()
    return suffix not in ("", TOML) or (path.exists() and suffix != TOML)


@lru_cache(maxsize=8)
def _recorded(source: str, _changed_ns: int) -> Recovered:
    return recovered_of(source)


def _written(name_or_path: str | Path) -> Workload:
    text = str(name_or_path)
    path = Path(name_or_path)
    if schema := schema_of(path):
        if schema != RECOVERED:
            raise WorkloadError(f"{path}: {schema}: a workload is the JSON of {RECOVERED}, or TOML")
        content = read_bytes(path, max_bytes=MAX_FILE_BYTES)
        try:
            document = json.loads(content)["workload"]
        except (ValueError, KeyError, RecursionError) as error:
            raise WorkloadError(f"{path}: not a sound {schema}: {error!r}") from None
        return workload_from_document(document, path.stem, str(path), path.parent)
    if isinstance(name_or_path, Path) or text.endswith(TOML) or "/" in text:
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
    return workload_from_document(document, name, where, path.parent)

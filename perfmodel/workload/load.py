"""From a TOML file, of the catalogue or of the user, or from a recording to a workload."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from perfmodel.base.registry import offered
from perfmodel.base.schema import Limits, convert, read_toml, require_keys, section, short
from perfmodel.errors import WorkloadError
from perfmodel.ops.graph import OpGraph
from perfmodel.trace import Trace
from perfmodel.workload.model import SCHEMA, Workload, check_workload
from perfmodel.workload.recorded_layers import layers_of_source
from perfmodel.workload.recovered import Recovered
from perfmodel.workload.recovered_source import recovered_of, with_ids
from perfmodel.workload.settings import SECTIONS
from perfmodel.workload.tables import Histogram, Table


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
        """The tables; `where` names the group in messages."""
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


RECORDED_SOFTWARE = "torchrec"
"""What runs recorded layers unless the file says otherwise."""
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
        recorded = layers_of_source(about.source, folder, about.batch)
        parts["implementation"] = {"name": RECORDED_SOFTWARE, **parts.get("implementation", {})}
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
    """The workload of that name in the catalogue, in the TOML file at that path, or that a
    recording shows: a trace (or itself), a folder of ranks, or the module `FILE.py:CLASS`.

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
        found = _recorded(str(source), _stamp(Path(source)))
    else:
        written = _written(source)
        found = Recovered(written, source=str(source))
    return found if ids is None else with_ids(found, ids)


def is_recording(name_or_path: str | Path) -> bool:
    """Whether it names a trace, a folder of ranks or a module, not a workload."""
    path = Path(name_or_path)
    suffix = path.suffix.lower()
    is_file = suffix not in ("", TOML) or (path.exists() and suffix != TOML)
    return is_file and str(name_or_path) not in workloads()


def _stamp(path: Path) -> int:
    """Changes when a file, or one in a folder, does."""
    files = [path, *path.iterdir()] if path.is_dir() else [path.with_name(path.name.split(":")[0])]
    return max((each.stat().st_mtime_ns for each in files if each.exists()), default=0)


@lru_cache(maxsize=8)
def _recorded(source: str, stamp: int) -> Recovered:
    return recovered_of(source)


def _written(name_or_path: str | Path) -> Workload:
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(TOML) or "/" in text:
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
    return workload_from_document(document, name, where, path.parent)

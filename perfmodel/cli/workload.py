"""`perfmodel workload`: the workload that a trace, a module or a file is, as a file to edit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.units import counted
from perfmodel.cli.console import LINE, alike
from perfmodel.cli.output import STDOUT, Output, working, wrote
from perfmodel.reporting.tables import Block, Table

if TYPE_CHECKING:
    from perfmodel.workload.recovered import Fact, Recovered


TOML = ".toml"
SHOWN = 40
_FACTS = "setting:name!;value:name!;by:name;why"
_TABLES = (
    "table:name;rows:,.0f;dim:,.0f;pooling:,.4g;alpha=alpha:s;unique=distinct rows|of a batch:s;"
    "where=ranks:name;told=figures:s"
)
_TOLD = {"each": "its own", "sums": "mean of a call", "unseen": "mean of others"}


def workload(source: str, ids: Path | None = None, target: Output = STDOUT) -> None:
    from perfmodel.workload.load import workload_of
    from perfmodel.workload.model import toml_of

    with working(f"reading {source}"):
        found = workload_of(source, ids=ids)
    if target.path and target.path.suffix == TOML:
        wrote(target.path, "the workload", toml_of(found.workload, comments(found)))
        target = STDOUT
    target.write_result(found, _blocks)


def comments(found: Recovered) -> list[str]:
    """What the head of the workload's file says: its source, and each setting that is taken."""
    taken = [each for each in found.facts if each.by == "default"]
    lines = [f"The workload of {found.source}."] + ["Not recorded; defaults:"] * bool(taken)
    return lines + [f"  {each.setting} = {_value(each)}: {each.why}" for each in taken]


def _blocks(found: Recovered) -> Iterator[Block]:
    asked, layers = found.workload, found.workload.model
    elements, how = asked.dense_parameters, "trained" if found.train else "its forward pass alone"
    made = f"recorded layers of {elements:,} elements" if elements else "recorded layers"
    if asked.recorded is None:
        bottom, top = ("-".join(map(str, each)) for each in (layers.bottom_mlp, asked.top_widths))
        made = f"MLPs {layers.dense_features}-{bottom} and {top}, {asked.interaction.kind}"
    yield (
        f"{found.source}: {counted(len(asked.tables), 'table')}, {asked.table_parameters:,} "
        f"elements; {made}; batch {asked.batch:,}"
        + (f" of {counted(found.ranks, 'rank')}, {how}" if found.facts else "")
    )
    facts = [vars(each) | {"value": _value(each)} for each in found.facts]
    if facts:
        heads = _FACTS if LINE.get().notes else _FACTS.removesuffix(";why")
        yield Table("Settings", heads, facts, full_names=True)
        yield "" if LINE.get().notes else "Why each: -v"
    rows = [row for row, _ in alike(found.records(), _row)]
    yield Table("Tables", _TABLES, rows, full_names=True, most=SHOWN)


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown of a table, but for its number."""
    least, most = (f"{each:,.0f}" for each in record["unique_rows"])
    shown = {key: record[key] for key in ("rows", "dim", "pooling")}
    shown["alpha"] = "unknown" if record["skew_told"] is False else f"{record['alpha']:.4g}"
    shown["unique"] = least if least == most else f"{least} to {most}"
    shown["where"] = record["ranks"] and ",".join(map(str, record["ranks"]))
    shown["told"] = _TOLD.get(record["told"])
    return shown


def _value(fact: Fact) -> str:
    """Of tables, of how many it is."""
    value = fact.value
    if fact.setting.startswith("tables.") and isinstance(value, int):
        return f"of {counted(value, 'table')}"
    return f"{value:,}" if type(value) is int else str(value).lower()

"""A workload as its TOML file has it."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from itertools import groupby
from pathlib import Path
from typing import Any

from perfmodel.workload.model import SCHEMA, Workload
from perfmodel.workload.settings import SECTIONS
from perfmodel.workload.tables import Table


def document_of(workload: Workload) -> dict[str, Any]:
    """What the file of `workload` holds: sections with the settings that are not as usual, equal
    tables that follow one another as one group. `workload_from_document` reads it."""
    usual = Workload(workload.name)
    document: dict[str, Any] = {"schema": SCHEMA}
    if workload.title:
        document["title"] = workload.title
    document["batch"] = workload.batch
    for name in SECTIONS:
        own, plain = asdict(getattr(workload, name)), asdict(getattr(usual, name))
        kept = own if name == "model" else {k: v for k, v in own.items() if v != plain[k]}
        if kept and (name != "model" or workload.recorded is None):
            document[name] = kept
    if workload.recorded is not None:
        path, batch = Path(workload.recorded.source).resolve(), workload.recorded.batch
        document["recorded"] = {"source": str(path), "batch": batch}
    document["tables"] = [
        {"count": len(list(each))} | _table(table) for table, each in groupby(workload.tables)
    ]
    return document


def _table(table: Table) -> dict[str, Any]:
    usual = {each.name: each.default for each in fields(Table)}
    keys = ("alpha", "histogram", "pooled")
    more = {key: getattr(table, key) for key in keys if getattr(table, key) != usual[key]}
    if table.key_rows:
        more["bags"] = "by_key"
    return {"rows": table.rows, "dim": table.dim, "pooling": table.pooling} | more


def toml_of(workload: Workload, comments: list[str]) -> str:
    """The file, `comments` at its head."""
    lines = [f"# {line}" for line in comments]
    sections = document_of(workload)
    lines += [f"{key} = {_value(x)}" for key, x in sections.items() if not _is_section(x)]
    for name, section in sections.items():
        if _is_section(section):
            groups = section if isinstance(section, list) else [section]
            head = f"[[{name}]]" if isinstance(section, list) else f"[{name}]"
            for each in groups:
                lines += ["", head, *(f"{key} = {_value(x)}" for key, x in each.items())]
    return "\n".join(lines) + "\n"


def _is_section(value: Any) -> bool:
    return isinstance(value, (dict, list))


def _value(value: Any) -> str:
    """As TOML writes it; numbers from 1,000 on in groups of three digits."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:_}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)

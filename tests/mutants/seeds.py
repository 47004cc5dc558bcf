"""Real traces to mutate: those bundled, and small ones of the reference data where it is there."""

from __future__ import annotations

import gzip
import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
REFERENCE = Path(os.environ.get("PERFMODEL_REFERENCE", ROOT.parent / "shared" / "data"))
MAX_BYTES = 500_000
"""Of a compressed file: larger ones take too long to mutate by the thousand."""
_FOLDERS = ("traces", "traces_2")

Event = dict[str, Any]
Document = dict[str, Any]


class Seed(NamedTuple):
    """A real trace: its name, and its JSON."""

    name: str
    content: bytes


@cache
def seeds() -> tuple[Seed, ...]:
    """All of them, in order of their names."""
    folders = [ROOT / "traces", *(REFERENCE / name for name in _FOLDERS)]
    paths = sorted((ROOT / "perfmodel" / "demo").glob("*.json.gz"))  # others of it are in `traces`
    paths += [path for folder in folders for path in sorted(folder.rglob("*.json.gz"))]
    found = []
    for path in paths:
        if path.stat().st_size > MAX_BYTES:
            continue
        content = gzip.decompress(path.read_bytes())
        if b'"traceEvents"' in content:
            name = f"{path.parent.name}/{path.name.removesuffix('.json.gz')}"
            found.append(Seed(name, content))
    return tuple(found)

"""JSON records that a person can read: one line per list of numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from perfmodel.files import write_text

_FLAT_LIST = re.compile(r"\[\s+([^\[\]{}\"]*?)\s+\]")


def dump_record(record: dict[str, Any]) -> str:
    """`record` as indented JSON, every list of plain numbers on one line."""
    text = json.dumps(record, indent=1)
    return _FLAT_LIST.sub(lambda found: f"[{' '.join(found.group(1).split())}]", text) + "\n"


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write `record` to `path`, whole or not at all."""
    write_text(path, dump_record(record))

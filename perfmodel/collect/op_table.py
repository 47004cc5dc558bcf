"""The tables of `collect ops`: one row per distinct operator, one row per configuration's step."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.collect.ledger import DIMS
from perfmodel.collect.op_samples import OpSamples
from perfmodel.collect.timing import LOW_QUANTILE
from perfmodel.files import atomic_write

IDENTITY = (
    *("configuration", "op", "phase", "node", "input_shapes", "input_dtypes", "input_layouts"),
    *("output_shapes", "scalars", "allocated_bytes", "artefact"),
)
MEASURED = (
    *("count", "unique_rows", "page_faults", "device", "timing", "duration_us", "median_us"),
    *("p90_us", "gap_us", "repeats"),
)
COLUMNS = IDENTITY + MEASURED
STEP_COLUMNS = (
    *("model", "description", *DIMS, "rounds", "steps", "p10_us", "median_us", "p90_us"),
    *("spread_frac", "halves_frac", "page_faults_per_step", "ops_per_step", "metered_steps"),
    *("metered_p10_us", "metered_median_us", "ops_sum_p10_us", "ops_sum_median_us"),
)
DIGITS = 7


def op_rows(name: str, taken: OpSamples, device: str, timing: str) -> list[dict[str, Any]]:
    """One row per distinct operator of configuration `name`: means over its `count` places.

    A place's duration is a low quantile over the steps, so that count times duration sums up.
    """
    if not taken.arrays["op_us"]:
        return []
    quantiles = np.quantile(taken.stacked("op_us"), [LOW_QUANTILE, 0.5, 0.9], axis=0)
    gaps = np.quantile(taken.stacked("gap_us"), LOW_QUANTILE, axis=0)
    faults = np.mean(taken.stacked("op_faults"), axis=0)
    groups: dict[tuple[str, ...], list[int]] = {}
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for place, op in enumerate(taken.signature):
        row = {**op, "configuration": name}
        key = tuple(_text(row[column]) for column in IDENTITY)
        groups.setdefault(key, []).append(place)
        rows.setdefault(key, row)
    for key, places in groups.items():
        low, middle, high = quantiles[:, places].mean(axis=1)
        unique = [taken.signature[place]["unique_rows"] for place in places]
        rows[key] |= {
            "count": len(places),
            "unique_rows": round(float(np.mean(unique)), 1) if any(unique) else None,
            "page_faults": round(float(faults[places].mean()), 2),
            "device": device,
            "timing": timing,
            "duration_us": low,
            "median_us": middle,
            "p90_us": high,
            "gap_us": gaps[places].mean(),
            "repeats": len(taken.arrays["op_us"]),
        }
    return list(rows.values())


def write_table(path: Path, columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write `rows` to the CSV file `path`, whole or not at all; packed if it ends in `.gz`."""
    columns = list(columns)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_text(row.get(name)) for name in columns] for row in rows)
    content = buffer.getvalue().encode()
    with atomic_write(path) as file:
        file.write(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))

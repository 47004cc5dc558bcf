"""Times of operators inside steps: samples kept for later runs, and the tables of them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from perfmodel.collect.ledger import DIMS
from perfmodel.collect.records import REFERENCE_COLUMNS
from perfmodel.collect.reference import reference_columns
from perfmodel.collect.timing import LOW_QUANTILE, halves_frac, summarize
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.files import atomic_write, read_bytes

SCHEMA = "perfmodel.collect.ops.samples/2"
ARRAYS = ("op_us", "gap_us", "op_faults", "metered_us", "step_faults")
"""Per metered step and operator: duration, time since the operator before it, page faults; per
metered step its time, per un-metered step its page faults."""


@dataclass
class OpSamples:
    """Of one configuration: its operators in order, and what each step took, in microseconds."""

    signature: list[dict[str, Any]] = field(default_factory=list)
    rounds_us: list[list[float]] = field(default_factory=list)
    reference_us: list[list[float]] = field(default_factory=list)
    """Before each round, what each part of the reference work took."""
    arrays: dict[str, list[NDArray[np.float32]]] = field(
        default_factory=lambda: {name: [] for name in ARRAYS}
    )

    def add(self, name: str, values: Sequence[Any]) -> None:
        """Keep one more reading of array `name`."""
        self.arrays[name].append(np.asarray(values, dtype=np.float32))

    def stacked(self, name: str) -> NDArray[np.float64]:
        """All readings of array `name`, one per row."""
        return np.asarray(self.arrays[name], dtype=np.float64)

    def step_figures(self) -> dict[str, Any]:
        """Step times without and with the meter, and the sum over operators (not artefacts)."""
        taken_us = [value for taken in self.rounds_us for value in taken]
        figures: dict[str, Any] = {"rounds": len(self.rounds_us), "steps": len(taken_us)}
        figures |= {**summarize(taken_us), "halves_frac": halves_frac(self.rounds_us)}
        figures["page_faults_per_step"] = float(np.median(self.stacked("step_faults")))
        figures["ops_per_step"] = len(self.signature)
        if self.arrays["op_us"]:
            genuine = [not op["artefact"] for op in self.signature]
            sums = summarize(list(self.stacked("op_us")[:, genuine].sum(axis=1)))
            metered = summarize(list(self.stacked("metered_us").ravel()))
            figures["metered_steps"] = len(self.arrays["op_us"])
            figures["metered_p10_us"] = metered["p10_us"]
            figures["metered_median_us"] = metered["median_us"]
            figures["ops_sum_p10_us"] = sums["p10_us"]
            figures["ops_sum_median_us"] = sums["median_us"]
        return figures | reference_columns(self.reference_us)


def save_samples(path: Path, samples: dict[str, OpSamples], setting: dict[str, Any]) -> None:
    """Write all of `samples` that have rounds to `path` (npz), whole or not at all."""
    kept = {name: taken for name, taken in samples.items() if taken.rounds_us}
    header = {
        "schema": SCHEMA,
        "setting": setting,
        "configurations": {
            name: {
                "signature": taken.signature,
                "rounds_us": taken.rounds_us,
                "reference_us": taken.reference_us,
            }
            for name, taken in kept.items()
        },
    }
    arrays: dict[str, Any] = {
        f"{name}/{array}": taken.stacked(array).astype(np.float32)
        for name, taken in kept.items()
        for array in ARRAYS
    }
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with atomic_write(path) as file:
        np.savez(file, header=text, **arrays)


def load_samples(path: Path, setting: dict[str, Any]) -> dict[str, OpSamples]:
    """The samples in `path`; none where there is no such file.

    Raises `UsageError` when it is damaged, of another version, or of another `setting`.
    """
    if not path.exists():
        return {}
    try:
        with np.load(io.BytesIO(read_bytes(path)), allow_pickle=False) as stored:
            header = json.loads(stored["header"].tobytes())
            if header["schema"] != SCHEMA:
                raise UsageError(f"{path}: is of another version; name another --name")
            if header["setting"] != setting:
                raise UsageError(
                    f"{path}: was measured on another machine, with other threads or another "
                    "PyTorch; name another --name"
                )
            return {
                name: OpSamples(
                    samples["signature"],
                    samples["rounds_us"],
                    samples["reference_us"],
                    {array: list(stored[f"{name}/{array}"]) for array in ARRAYS},
                )
                for name, samples in header["configurations"].items()
            }
    except UsageError:
        raise
    except (ValueError, KeyError, TypeError, EOFError, OSError, PerfmodelError, BadZipFile):
        raise UsageError(f"{path}: is damaged; move it away, or name another --name") from None


IDENTITY = (
    *("configuration", "op", "phase", "node", "input_shapes", "input_dtypes", "input_layouts"),
    *("output_shapes", "scalars", "allocated_bytes", "artefact"),
)
MEASURED = (
    *("count", "unique_rows", "page_faults", "device", "timing", "duration_us", "median_us"),
    *("p90_us", "gap_us", "repeats", *REFERENCE_COLUMNS),
)
COLUMNS = IDENTITY + MEASURED
STEP_COLUMNS = (
    *("model", "description", *DIMS, "rounds", "steps", "p10_us", "median_us", "p90_us"),
    *("spread_frac", "halves_frac", "page_faults_per_step", "ops_per_step", "metered_steps"),
    *("metered_p10_us", "metered_median_us", "ops_sum_p10_us", "ops_sum_median_us"),
    *REFERENCE_COLUMNS,
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
    reference = reference_columns(taken.reference_us)
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
            **reference,
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
        file.write(content)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))

"""Step times and times of operators inside steps: samples kept for later runs, and their tables."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from perfmodel.collect.models.configuration import TruthConfig
from perfmodel.collect.records import REFERENCE_COLUMNS, dump_record
from perfmodel.collect.reference import reference_columns
from perfmodel.collect.timing import LOW_QUANTILE, halves_frac, summarize
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.files import atomic_write, read_bytes, write_text

STEPS_SCHEMA = "perfmodel.collect.truth.steps/2"
DIMS = (
    *("name", "device", "ranks", "threads_per_rank", "tables", "rows_per_table", "table_bytes"),
    *("dim", "pooling", "batch_per_rank", "zipf_alpha", "bottom_mlp", "top_mlp"),
)
FIGURES = (
    *("rounds", "steps", "p10_us", "median_us", "p90_us", "spread_frac", "halves_frac"),
    *("profiled_steps", "profiled_p10_us", "profiled_median_us", "profiler_cost_frac"),
    *REFERENCE_COLUMNS,
)
TRUTH_COLUMNS = DIMS + FIGURES


@dataclass
class Samples:
    """Step times of each round, those of the profiled block, and the reference, microseconds."""

    rounds_us: list[list[float]] = field(default_factory=list)
    profiled_us: list[float] = field(default_factory=list)
    reference_us: list[list[float]] = field(default_factory=list)
    """Before each round, what each part of the reference work took."""

    def figures(self) -> dict[str, Any]:
        """The robust step time, its spread, and what the profiler costs."""
        steps_us = [value for taken in self.rounds_us for value in taken]
        if not steps_us:
            return {}
        summary = summarize(steps_us)
        figures = {
            "rounds": len(self.rounds_us),
            "steps": len(steps_us),
            **summary,
            "halves_frac": halves_frac(self.rounds_us),
        }
        if self.profiled_us:
            seen = summarize(self.profiled_us)
            figures["profiled_steps"] = len(self.profiled_us)
            figures["profiled_p10_us"] = seen["p10_us"]
            figures["profiled_median_us"] = seen["median_us"]
            figures["profiler_cost_frac"] = round(seen["p10_us"] / summary["p10_us"] - 1, 4)
        return figures | reference_columns(self.reference_us)


class Ledger:
    """The samples of `configs` under `stem`; those of an earlier run of the same are gone on with.

    `setting` (device, ranks, threads, PyTorch) must be that of the earlier run, and so must a
    configuration of the same name: `UsageError` otherwise.
    """

    def __init__(self, stem: Path, configs: Sequence[TruthConfig], setting: dict[str, Any]) -> None:
        self.stem, self.configs, self.setting = stem, configs, setting
        self.samples = {config.name: Samples() for config in configs}
        self._steps = stem.with_name(f"{stem.name}_steps.json")
        self.table = stem.with_name(f"{stem.name}.csv")
        if self._steps.exists():
            self._resume()

    @property
    def rounds_resumed(self) -> int:
        """The rounds there are of all configurations."""
        return sum(len(samples.rounds_us) for samples in self.samples.values())

    def save(self) -> None:
        """Write the samples and the table, each whole or not at all."""
        measured = [config for config in self.configs if self.samples[config.name].rounds_us]
        record = {
            "schema": STEPS_SCHEMA,
            "setting": self.setting,
            "configurations": {
                config.name: {
                    "dims": dims_of(config),
                    "rounds_us": self.samples[config.name].rounds_us,
                    "profiled_us": self.samples[config.name].profiled_us,
                    "reference_us": self.samples[config.name].reference_us,
                }
                for config in measured
            },
        }
        write_text(self._steps, dump_record(record))
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, TRUTH_COLUMNS, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(self.row(config) for config in measured)
        write_text(self.table, buffer.getvalue())

    def row(self, config: TruthConfig) -> dict[str, Any]:
        """The row of `config` in the table."""
        setting = {name: self.setting[name] for name in ("device", "ranks", "threads_per_rank")}
        return {**setting, **dims_of(config), **self.samples[config.name].figures()}

    def _resume(self) -> None:
        try:
            record = json.loads(read_bytes(self._steps))
            if record["schema"] != STEPS_SCHEMA:
                raise UsageError(f"{self._steps}: is of another version; name another --name")
            if record["setting"] != self.setting:
                raise UsageError(
                    f"{self._steps}: was measured on another machine, with other ranks, threads or "
                    "another PyTorch; name another --name"
                )
            for config in self.configs:
                stored = record["configurations"].get(config.name)
                if stored is None:
                    continue
                if stored["dims"] != dims_of(config):
                    raise UsageError(
                        f"{self._steps}: configuration {config.name} had other dims; name another "
                        "--name"
                    )
                kept = ("rounds_us", "profiled_us", "reference_us")
                samples = Samples(*(list(stored[name]) for name in kept))
                samples.figures()
                self.samples[config.name] = samples
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UsageError(
                f"{self._steps}: is damaged; move it away, or name another --name"
            ) from None
        except UsageError:
            raise
        except PerfmodelError as error:
            raise UsageError(str(error)) from None


def dims_of(config: TruthConfig) -> dict[str, Any]:
    """What the table says of `config`: widths joined by `-`, runs of equal tables as `2x5 1x7`."""
    runs = [f"{len(list(run))}x{rows}" for rows, run in groupby(config.rows)]
    return {
        "name": config.name,
        "tables": len(config.rows),
        "rows_per_table": " ".join(runs),
        "table_bytes": config.table_bytes,
        "dim": config.dim,
        "pooling": config.pooling,
        "batch_per_rank": config.batch,
        "zipf_alpha": config.zipf_alpha,
        "bottom_mlp": "-".join(map(str, config.bottom)),
        "top_mlp": "-".join(map(str, config.top)),
    }


OPS_SCHEMA = "perfmodel.collect.ops.samples/2"
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
        "schema": OPS_SCHEMA,
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
            if header["schema"] != OPS_SCHEMA:
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
OP_COLUMNS = IDENTITY + MEASURED
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

"""Step times of many configurations, kept round by round, and the table made of them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from perfmodel.collect.models.truths import TruthConfig
from perfmodel.collect.records import REFERENCE_COLUMNS, dump_record
from perfmodel.collect.reference import reference_columns
from perfmodel.collect.timing import halves_frac, summarize
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.files import read_bytes, write_text

SCHEMA = "perfmodel.collect.truth.steps/2"
DIMS = (
    *("name", "device", "ranks", "threads_per_rank", "tables", "rows_per_table", "table_bytes"),
    *("dim", "pooling", "batch_per_rank", "zipf_alpha", "bottom_mlp", "top_mlp"),
)
FIGURES = (
    *("rounds", "steps", "p10_us", "median_us", "p90_us", "spread_frac", "halves_frac"),
    *("profiled_steps", "profiled_p10_us", "profiled_median_us", "profiler_cost_frac"),
    *REFERENCE_COLUMNS,
)
COLUMNS = DIMS + FIGURES


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
            "schema": SCHEMA,
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
        writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n", restval="")
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
            if record["schema"] != SCHEMA:
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

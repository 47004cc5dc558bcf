"""DLRM configurations as published, those whose step times are the truth, and seeded data.

The configurations of the truth start from one base and vary one thing at a time, then several at
once; each takes about 2 to 60 ms per step on two CPU cores. They are JSON files of this folder;
`--configs` reads others.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.files import read_bytes
from perfmodel.base.units import BYTES_PER_GB
from perfmodel.collect.models import Options, chosen
from perfmodel.errors import PerfmodelError, UsageError

FP32_BYTES = 4

CRITEO_TB_ROWS = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956),
    *(405_282, 10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152),
    *(12_973, 108, 36),
)
"""Rows of the 26 Criteo Terabyte tables, capped at 40 million.

Source: MLPerf Training DLRM reference (facebookresearch/dlrm, torchrec_dlrm/README.MD).
"""


@dataclass(frozen=True)
class DlrmConfig:
    """A DLRM: MLP widths (the first of `bottom` is the number of dense features), tables, dim."""

    bottom: tuple[int, ...]
    top: tuple[int, ...]
    rows: tuple[int, ...]
    dim: int
    pooling: int


PRESETS = {
    # Source: Lin et al. 2022, owensgroup/ml_perf_model benchmark/dlrm_benchmark.sh.
    "default": DlrmConfig((512, 512, 64), (1024, 1024, 1024, 1), (1_000_000,) * 8, 64, 100),
    "mlperf": DlrmConfig((13, 512, 256, 128), (1024, 1024, 512, 256, 1), CRITEO_TB_ROWS, 128, 1),
    # The script of the DDP configuration sets no pooling: assumed 10, the reference code's limit.
    "ddp": DlrmConfig((128, 128, 128, 128), (512, 512, 512, 256, 1), (80_000,) * 8, 128, 10),
    # This project's own: realistic in kind, small enough for two CPU cores.
    "small": DlrmConfig((64, 256, 128, 64), (256, 128, 1), (100_000,) * 8, 64, 20),
    "tiny": DlrmConfig((4, 8, 4), (8, 1), (100,) * 3, 4, 2),
}


def dlrm_config(options: Options) -> DlrmConfig:
    """The preset that `options` name, with their overrides; `UsageError` when there is none."""
    _, config = chosen(PRESETS, options, "DLRM")
    if options.max_rows:
        config = replace(config, rows=tuple(min(r, options.max_rows) for r in config.rows))
    return replace(config, pooling=options.pooling) if options.pooling else config


def require_room(config: DlrmConfig, tables: list[int], free_bytes: int) -> None:
    """Raise `UsageError` when the `tables` of this rank do not fit into `free_bytes`.

    Checked before anything is allocated: on a host, asking for too much ends the process.
    """
    needed = FP32_BYTES * config.dim * sum(config.rows[table] for table in tables)
    if needed > free_bytes:
        raise UsageError(
            f"the embedding tables need {needed / BYTES_PER_GB:.1f} GB, and "
            f"{free_bytes / BYTES_PER_GB:.1f} GB are free: cap them with --max-rows"
        )


def zipf_indices(
    generator: np.random.Generator, rows: int, count: int, alpha: float
) -> NDArray[np.int64]:
    """`count` row numbers in `[0, rows)`, row of popularity rank r with weight `r ** -alpha`.

    `alpha` 0 is uniform. Drawn by inverting the continuous approximation of the distribution
    function, so that it costs no memory in `rows`; the popular rows are scattered over the table
    by a multiplicative permutation, as they are in a real one.
    """
    uniform = generator.random(count)
    if alpha == 0:
        ranks = uniform * rows
    elif alpha == 1:
        ranks = (rows + 1.0) ** uniform - 1
    else:
        power = 1 - alpha
        ranks = (1 + uniform * ((rows + 1.0) ** power - 1)) ** (1 / power) - 1
    integers = np.minimum(ranks.astype(np.int64), rows - 1)
    if alpha == 0:
        return integers
    permuting = max(1, int(rows * 0.6180339887))  # coprime to `rows`, near its golden ratio
    while np.gcd(permuting, rows) != 1:
        permuting += 1
    return integers * permuting % rows


INT64_BYTES = 8
MAX_CONFIGS_BYTES = 10_000_000
_NAME = re.compile(r"[a-z0-9][a-z0-9_]{0,39}")


@dataclass(frozen=True, kw_only=True)
class TruthConfig(DlrmConfig):
    """A DLRM with a name, its batch per rank and skew.

    Raises `UsageError` when it describes no DLRM.
    """

    name: str
    batch: int
    zipf_alpha: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise UsageError(f"configuration name {self.name!r}: use up to 40 of a-z, 0-9 and _")
        where = f"configuration {self.name}"
        for field in ("rows", "bottom", "top", "dim", "pooling", "batch"):
            value = getattr(self, field)
            values = value if isinstance(value, tuple) else (value,)
            if not values or any(type(each) is not int or each < 1 for each in values):
                raise UsageError(f"{where}: {field} must be integers above 0")
        if len(self.bottom) < 2 or self.bottom[-1] != self.dim or self.top[-1] != 1:
            raise UsageError(f"{where}: the bottom MLP must end in dim, the top MLP in 1")
        if not isinstance(self.zipf_alpha, (int, float)) or not 0 <= self.zipf_alpha < 10:
            raise UsageError(f"{where}: zipf_alpha must lie in 0 to 10")

    @property
    def table_bytes(self) -> int:
        """Bytes of all tables, in fp32."""
        return sum(self.rows) * self.dim * FP32_BYTES

    def held_bytes(self, batches: int) -> int:
        """About what the model holds between steps: tables, row gradients, indices of `batches`."""
        lookups = self.batch * self.pooling * len(self.rows)
        return self.table_bytes + lookups * (self.dim * FP32_BYTES + batches * INT64_BYTES)


def read_configs(path: Path) -> tuple[TruthConfig, ...]:
    """The configurations in the JSON file `path`: a list of objects with the fields above.

    `rows` may be one number beside `tables`. Raises `UsageError` where they cannot be used.
    """
    try:
        items = json.loads(read_bytes(path, max_bytes=MAX_CONFIGS_BYTES))
        if not isinstance(items, list) or not items:
            raise UsageError(f"{path}: must be a list of at least one configuration")
        configs = tuple(map(_from_json, items))
        names = [config.name for config in configs]
        if twice := [name for name in names if names.count(name) > 1]:
            raise UsageError(f"{path}: two configurations are named {twice[0]}")
    except PerfmodelError as error:
        raise UsageError(f"--configs {error}") from None
    except ValueError as error:
        raise UsageError(f"--configs {path}: is not JSON: {error}") from None
    return configs


def _from_json(item: Any) -> TruthConfig:
    if not isinstance(item, dict):
        raise UsageError(f"a configuration must be an object, not {item!r}")
    values = dict(item)
    if "tables" in values:
        tables = values.pop("tables")
        if type(tables) is not int or not 1 <= tables <= 10_000:
            raise UsageError("tables must lie in 1 to 10000")
        values["rows"] = [values.get("rows")] * tables
    known = {field.name for field in fields(TruthConfig)}
    if unknown := sorted(set(values) - known):
        raise UsageError(f"unknown field {unknown[0]!r}; there are {', '.join(sorted(known))}")
    for name in ("rows", "bottom", "top"):
        if not isinstance(values.get(name), list):
            raise UsageError(f"{name} must be a list of integers")
        values[name] = tuple(values[name])
    try:
        return TruthConfig(**values)
    except TypeError as error:
        raise UsageError(f"{error}".replace("TruthConfig.__init__()", "a configuration")) from None


ONE_RANK, TWO_RANKS = (
    read_configs(Path(__file__).with_name(f"{name}.json")) for name in ("one_rank", "two_ranks")
)
"""Of one rank; of two: tables table-wise (all-to-all), MLPs data parallel (all-reduce)."""

"""DLRM configurations whose step times are measured as the truth for predictions from shapes.

They start from one base and vary one thing at a time, then several at once; each takes about 2 to
60 ms per step on two CPU cores. `--configs` reads others from a JSON file of the same fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from perfmodel.collect.models.configuration import CRITEO_TB_ROWS, FP32_BYTES, DlrmConfig
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.files import read_bytes

INT64_BYTES = 8
MAX_CONFIGS_BYTES = 10_000_000
_NAME = re.compile(r"[a-z0-9][a-z0-9_]{0,39}")


@dataclass(frozen=True)
class TruthConfig:
    """A DLRM, its batch per rank and skew; `bottom` begins with the number of dense features.

    `keep_trace` asks for the Kineto and execution traces of its profiled steps. Raises
    `UsageError` when it describes no DLRM.
    """

    name: str
    rows: tuple[int, ...]
    dim: int
    pooling: int
    batch: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    zipf_alpha: float = 0.0
    keep_trace: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise UsageError(f"configuration name {self.name!r}: use up to 40 of a-z, 0-9 and _")
        sizes = {"rows": self.rows, "bottom": self.bottom, "top": self.top}
        single = {"dim": self.dim, "pooling": self.pooling, "batch": self.batch}
        for field, values in (*sizes.items(), *((name, (v,)) for name, v in single.items())):
            if not values or any(type(value) is not int or value < 1 for value in values):
                raise UsageError(f"configuration {self.name}: {field} must be integers above 0")
        if len(self.bottom) < 2 or self.bottom[-1] != self.dim or self.top[-1] != 1:
            raise UsageError(
                f"configuration {self.name}: the bottom MLP must end in dim, the top MLP in 1"
            )
        if not isinstance(self.zipf_alpha, (int, float)) or not 0 <= self.zipf_alpha < 10:
            raise UsageError(f"configuration {self.name}: zipf_alpha must lie in 0 to 10")

    @property
    def dlrm(self) -> DlrmConfig:
        """The model without its data."""
        return DlrmConfig(self.bottom, self.top, self.rows, self.dim, self.pooling)

    @property
    def table_bytes(self) -> int:
        """Bytes of all tables, in fp32."""
        return sum(self.rows) * self.dim * FP32_BYTES

    def held_bytes(self, batches: int) -> int:
        """About what the model holds between steps: tables, row gradients, indices of `batches`."""
        lookups = self.batch * self.pooling * len(self.rows)
        return self.table_bytes + lookups * (self.dim * FP32_BYTES + batches * INT64_BYTES)


_BASE = TruthConfig(
    "base", (100_000,) * 8, 64, 20, 512, (64, 256, 128, 64), (256, 128, 1), keep_trace=True
)


def _vary(name: str, *, tables: int = 8, rows: int = 100_000, **changes: Any) -> TruthConfig:
    """The base with `changes`; its bottom MLP ends in the new dim, and no trace is kept."""
    dim = changes.get("dim", _BASE.dim)
    usual = {
        "rows": (rows,) * tables,
        "bottom": (*_BASE.bottom[:-1], dim),
        "keep_trace": False,
    }
    return replace(_BASE, name=name, **{**usual, **changes})


_MLP_LARGE = (1024, 1024, 1024, 1)
_CRITEO_CAPPED = tuple(min(rows, 100_000) for rows in CRITEO_TB_ROWS)

ONE_RANK = (
    _BASE,
    _vary("tables1", tables=1, batch=2048, keep_trace=True),
    _vary("tables2", tables=2),
    _vary("tables4_wide", tables=4, rows=20_000, dim=256, pooling=10, batch=256),
    _vary("tables16", tables=16, pooling=10, batch=256),
    _vary("tables26", tables=26, rows=50_000, dim=32, pooling=4),
    _vary("rows1k", rows=1_000, keep_trace=True),
    _vary("rows5k", rows=5_000),
    _vary("rows20k_dim32", rows=20_000, dim=32),
    _vary("rows500k", rows=500_000),
    _vary("rows2m", tables=2, rows=2_000_000, dim=32, pooling=40),
    _vary("dim16", dim=16),
    _vary("dim128", dim=128, pooling=10),
    _vary("dim256", dim=256, rows=50_000, pooling=10, batch=256),
    _vary("pool1", pooling=1),
    _vary("pool5", pooling=5),
    _vary("pool100", pooling=100, batch=128),
    _vary("batch64", batch=64),
    _vary("batch256", batch=256),
    _vary("batch2048", batch=2048, pooling=4),
    _vary("batch4096", batch=4096, pooling=1, dim=16, rows=10_000),
    _vary("zipf105", zipf_alpha=1.05),
    _vary("zipf12", zipf_alpha=1.2),
    _vary("zipf105_beyond", tables=4, rows=500_000, dim=128, pooling=10, zipf_alpha=1.05),
    _vary("zipf12_cache", rows=10_000, dim=32, pooling=40, batch=256, zipf_alpha=1.2),
    _vary("mlp_small", bottom=(13, 64), top=(64, 1), pooling=5, batch=256),
    _vary("mlp_top_large", top=_MLP_LARGE, pooling=2, batch=256),
    _vary("mlp_both_large", bottom=(512, 1024, 512, 64), top=_MLP_LARGE, pooling=10, batch=128),
    _vary("mlp_bottom_large", bottom=(512, 1024, 1024, 64), pooling=1, rows=20_000),
    replace(
        _BASE,
        name="like_mlperf",
        keep_trace=False,
        rows=_CRITEO_CAPPED,
        dim=128,
        pooling=1,
        batch=256,
        bottom=(13, 512, 256, 128),
        top=(1024, 1024, 512, 256, 1),
    ),
    _vary(
        "like_ddp",
        rows=80_000,
        dim=128,
        pooling=10,
        batch=128,
        bottom=(128, 128, 128, 128),
        top=(512, 512, 512, 256, 1),
        zipf_alpha=1.05,
    ),
    _vary(
        "like_default",
        rows=200_000,
        pooling=100,
        batch=64,
        bottom=(512, 512, 64),
        top=_MLP_LARGE,
    ),
)
"""For one rank."""

TWO_RANKS = (
    _vary("base", batch=256),
    _vary("rows2k", rows=2_000, dim=32, batch=256),
    _vary("rows500k_zipf", tables=4, rows=500_000, pooling=10, batch=256, zipf_alpha=1.05),
    _vary("dim128", dim=128, pooling=5, batch=256),
    _vary("tables26_pool1", tables=26, rows=50_000, dim=32, pooling=1, batch=256),
    _vary("batch1024", batch=1024, pooling=2),
    _vary("mlp_large", bottom=(512, 512, 64), top=_MLP_LARGE, pooling=2, batch=64),
    _vary("small", tables=2, rows=10_000, dim=16, pooling=5, batch=128, keep_trace=True),
)
"""For two ranks: tables table-wise (all-to-all), MLPs data parallel (all-reduce)."""


def bundled_configs(ranks: int) -> tuple[TruthConfig, ...]:
    """The configurations of this file for so many ranks."""
    return ONE_RANK if ranks == 1 else TWO_RANKS


def read_configs(path: Path) -> tuple[TruthConfig, ...]:
    """The configurations in the JSON file `path`: a list of objects with the fields above.

    `rows` may be one number beside `tables`. Raises `UsageError` where they cannot be used.
    """
    try:
        listed = json.loads(read_bytes(path, max_bytes=MAX_CONFIGS_BYTES))
    except PerfmodelError as error:
        raise UsageError(f"--configs {error}") from None
    except ValueError as error:
        raise UsageError(f"--configs {path}: is not JSON: {error}") from None
    if not isinstance(listed, list) or not listed:
        raise UsageError(f"--configs {path}: must be a list of at least one configuration")
    try:
        return unique(_from_json(item) for item in listed)
    except UsageError as error:
        raise UsageError(f"--configs {path}: {error}") from None


def unique(configs: Iterable[TruthConfig]) -> tuple[TruthConfig, ...]:
    """`configs`; `UsageError` when a name occurs twice."""
    kept: dict[str, TruthConfig] = {}
    for config in configs:
        if config.name in kept:
            raise UsageError(f"two configurations are named {config.name}")
        kept[config.name] = config
    return tuple(kept.values())


def _from_json(item: Any) -> TruthConfig:
    if not isinstance(item, dict):
        raise UsageError(f"a configuration must be an object, not {item!r}")
    values = dict(item)
    tables = values.pop("tables", None)
    if tables is not None:
        if type(tables) is not int or not 1 <= tables <= 10_000:
            raise UsageError("tables must lie in 1 to 10000")
        values["rows"] = [values.get("rows")] * tables
    known = {field.name for field in fields(TruthConfig)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise UsageError(f"unknown field {unknown[0]!r}; there are {', '.join(sorted(known))}")
    for name in ("rows", "bottom", "top"):
        if not isinstance(values.get(name), list):
            raise UsageError(f"{name} must be a list of integers")
        values[name] = tuple(values[name])
    try:
        return TruthConfig(**values)
    except TypeError as error:
        raise UsageError(f"{error}".replace("TruthConfig.__init__()", "a configuration")) from None

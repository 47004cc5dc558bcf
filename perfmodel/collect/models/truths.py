"""DLRM configurations whose step times are measured as the truth for predictions from shapes.

They start from one base and vary one thing at a time, then several at once; each takes about 2 to
60 ms per step on two CPU cores. They are JSON files of this folder; `--configs` reads others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from perfmodel.collect.models.configuration import FP32_BYTES, DlrmConfig
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


ONE_RANK, TWO_RANKS = (
    read_configs(Path(__file__).with_name(f"{name}.json")) for name in ("one_rank", "two_ranks")
)


def bundled_configs(ranks: int) -> tuple[TruthConfig, ...]:
    """The configurations of this folder for one rank, or for two: tables table-wise (all-to-all),
    MLPs data parallel (all-reduce)."""
    return ONE_RANK if ranks == 1 else TWO_RANKS

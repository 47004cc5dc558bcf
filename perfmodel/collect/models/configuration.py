"""DLRM configurations as published, and the seeded data that they train on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.collect.models import Options, chosen
from perfmodel.errors import UsageError
from perfmodel.units import BYTES_PER_GB

FP32_BYTES = 4
Histogram = tuple[tuple[float, float], ...]

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

    def describe(self) -> dict[str, Any]:
        """The configuration as JSON-ready values."""
        return asdict(self)


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
    return integers if alpha == 0 else integers * _coprime(rows) % rows


def histogram_indices(
    generator: np.random.Generator, rows: int, count: int, histogram: Histogram
) -> NDArray[np.int64]:
    """`count` row numbers in `[0, rows)` whose reuse follows `histogram`, scattered as above.

    `histogram` lists classes of rows as pairs of shares: of the lookups, and of the rows that
    these go to, evenly. Every class has at least one row.
    """
    lookups, share = (np.asarray(column, np.float64) for column in zip(*histogram, strict=True))
    ends = np.maximum(np.round(np.cumsum(share) / share.sum() * rows), np.arange(1, len(share) + 1))
    begins = np.concatenate([[0], ends[:-1]])
    chosen = generator.choice(len(lookups), count, p=lookups / lookups.sum())
    ranks = begins[chosen] + generator.random(count) * (ends - begins)[chosen]
    integers = np.minimum(ranks.astype(np.int64), rows - 1)
    return np.asarray(integers * _coprime(rows) % rows, dtype=np.int64)


def parse_histogram(text: str) -> Histogram:
    """The pairs of `text`, such as `0.9:0.1 0.1:0.9`; `UsageError` where they are no shares."""
    try:
        pairs = [tuple(map(float, pair.split(":"))) for pair in text.split()]
    except ValueError:
        pairs = []
    if not pairs or any(len(pair) != 2 or not all(0 < s < 1e9 for s in pair) for pair in pairs):
        raise UsageError(
            f"histogram {text!r}: write LOOKUPS:ROWS pairs of shares above 0, as in 0.9:0.1 0.1:0.9"
        )
    return tuple((pair[0], pair[1]) for pair in pairs)


def _coprime(rows: int) -> int:
    """A multiplier near the golden ratio of `rows` that permutes `range(rows)`."""
    candidate = max(1, int(rows * 0.6180339887))
    while np.gcd(candidate, rows) != 1:
        candidate += 1
    return candidate

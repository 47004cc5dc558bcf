"""Which rows HugeCTR's hybrid embedding calls frequent, and how often a batch of them names which.

Within one group of linked ranks: the rows that a rank's samples name twice in one batch in 3 % of
batches. Between groups: those for which a gradient in the all-reduce is shorter than the exchange
of all their samples.

Source: HugeCTR/src/embeddings/hybrid_embedding/calibration_data.cu of NVIDIA-Merlin/HugeCTR.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from perfmodel.workload.run import Run
from perfmodel.workload.tables import Table, expected_unique_rows, popular_share, rows_above

TWICE_FRAC = 0.03
"""`p_dup_max` of NVIDIA's submissions on one node (training_results_v2.0 and v2.1, dgx_a100.py and
dgx_h100.py)."""
EXCHANGE_OVER_REDUCE = 0.5 * 190e9 / 130e9
"""The rates, and their efficiency, at which NVIDIA's submission on 14 nodes lets rows be chosen
(training_results_v1.1, dgx_a100_14x8x640.py)."""


@dataclass(frozen=True)
class Split:
    """Of all tables together: rows on every rank, and per sample the vectors from them and others;
    distinct frequent rows that a rank's samples name, and distinct others in the global batch."""

    frequent_rows: int
    frequent_vectors: float
    frequent_unique_rows: float
    other_rows: int
    other_vectors: float
    other_unique_rows: float


def split_of(run: Run) -> Split:
    """Which rows every rank holds."""
    least = _least(run)
    tables = run.workload.tables
    rows = [rows_above(table, least) for table in tables]
    shares = [
        float(popular_share(table.rows, table.alpha, count))
        for table, count in zip(tables, rows, strict=True)
    ]
    parts = list(zip(tables, rows, shares, strict=True))
    return Split(
        sum(rows),
        sum(shares),
        sum(_frequent(*part, run.batch) for part in parts),
        sum(table.rows for table in tables) - sum(rows),
        len(tables) - sum(shares),
        sum(_others(*part, run.global_batch) for part in parts),
    )


def _least(run: Run) -> float:
    """The probability from which on a row is frequent."""
    if run.groups == 1:
        return sqrt(2 * TWICE_FRAC / (run.batch * max(run.batch - 1, 1)))
    crossing = run.groups * run.groups / (run.groups - 1)
    return crossing * EXCHANGE_OVER_REDUCE / run.global_batch


def _frequent(table: Table, rows: int, share: float, batch: int) -> float:
    """Distinct ones of the `rows` most popular that `batch` samples name."""
    return expected_unique_rows(rows, table.alpha, max(1, round(batch * share))) if rows else 0.0


def _others(table: Table, rows: int, share: float, batch: int) -> float:
    """Distinct rows that `batch` samples name beside the `rows` most popular."""
    return max(table.unique_rows(batch) - _frequent(table, rows, share, batch), 0.0)

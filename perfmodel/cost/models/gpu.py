"""The families of GPU kernels, each by its physics."""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.contract import KERNELS, Estimate, Explanation
from perfmodel.cost.gpu import (
    attention,
    convolution,
    embedding,
    jagged,
    matmul,
    recurrent,
    streaming,
)
from perfmodel.cost.gpu.analysis import Analyse
from perfmodel.cost.gpu.heuristic import Heuristic
from perfmodel.hardware import Device
from perfmodel.ops.rows import Rows
from perfmodel.ops.vocabulary.host import RECORDED

ANALYSES: dict[str, Analyse] = {
    "attention": attention.analyse_attention,
    "channel": streaming.analyse_channels,
    "convolution": convolution.analyse_convolution,
    "embedding": embedding.analyse,
    "jagged": jagged.analyse,
    "jagged_attention": attention.analyse_jagged_attention,
    "matmul": matmul.analyse,
    "optimizer": streaming.analyse,
    "pooling": convolution.analyse_pooling,
    "recurrent": recurrent.analyse,
    "sort": jagged.analyse_sorting,
    "transfer": streaming.analyse_transfers,
    "vector": streaming.analyse,
}
"""What each family's kernels move, compute and take."""
for family, analyse in ANALYSES.items():
    KERNELS.register(f"gpu/{family}/heuristic")(Heuristic(family, analyse))


NAME = f"gpu/{RECORDED}/heuristic"


class Recorded:
    """`recorded_us` x `ratio`, within a factor `spread` to either side."""

    def estimate(self, rows: Rows, device: Device) -> Estimate:
        """What was recorded, on `device`; raises `ModelError` for a time that is not above 0."""
        recorded_us, ratio, spread = _columns(rows)
        taken = recorded_us * ratio
        return Estimate(taken, taken / spread, taken * spread, NAME, "recorded in the trace")

    def explain(self, rows: Rows, device: Device) -> list[Explanation]:
        """The recorded time, and what it is multiplied with."""
        recorded_us, ratio, _ = (column.tolist() for column in _columns(rows))
        formula = "recorded_us x ratio, of times on this device and on the trace's"
        return [
            Explanation(
                us * times, "what was measured", 0.0, 0.0, 0.0, 0.0, {"recorded_us": us}, formula
            )
            for us, times in zip(recorded_us, ratio, strict=True)
        ]


def _columns(rows: Rows) -> tuple[Floats, Floats, Floats]:
    """Recorded time, ratio and spread of rows that are all of the one op."""
    dims = rows.dims_of(RECORDED, np.arange(len(rows)))
    return dims["recorded_us"], dims["ratio"], np.maximum(dims["spread"], 1.0)


KERNELS.register(NAME)(Recorded())

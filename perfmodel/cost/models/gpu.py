"""The families of GPU kernels, each by its physics."""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.contract import KERNELS, Estimate, Explanation
from perfmodel.cost.gpu import convolution, embedding, jagged, matmul, streaming
from perfmodel.cost.gpu.heuristic import Heuristic
from perfmodel.hardware import Device
from perfmodel.ops.rows import Rows
from perfmodel.ops.vocabulary.host import RECORDED

KERNELS.register("gpu/attention/heuristic")(
    Heuristic("gpu/attention/heuristic", convolution.analyse_attention, 1.7)
)


KERNELS.register("gpu/channel/heuristic")(
    Heuristic("gpu/channel/heuristic", streaming.analyse_channels, 1.6)
)


KERNELS.register("gpu/convolution/heuristic")(
    Heuristic("gpu/convolution/heuristic", convolution.analyse_convolution, 2.0)
)


KERNELS.register("gpu/embedding/heuristic")(
    Heuristic("gpu/embedding/heuristic", embedding.analyse, 1.6)
)


KERNELS.register("gpu/jagged/heuristic")(Heuristic("gpu/jagged/heuristic", jagged.analyse, 1.6))


KERNELS.register("gpu/matmul/heuristic")(Heuristic("gpu/matmul/heuristic", matmul.analyse, 1.7))


KERNELS.register("gpu/optimizer/heuristic")(
    Heuristic("gpu/optimizer/heuristic", streaming.analyse, 1.4)
)


KERNELS.register("gpu/pooling/heuristic")(
    Heuristic("gpu/pooling/heuristic", convolution.analyse_pooling, 1.6)
)


KERNELS.register("gpu/sort/heuristic")(Heuristic("gpu/sort/heuristic", jagged.analyse_sorting, 1.8))


KERNELS.register("gpu/transfer/heuristic")(
    Heuristic("gpu/transfer/heuristic", streaming.analyse_transfers, 1.5)
)


KERNELS.register("gpu/vector/heuristic")(Heuristic("gpu/vector/heuristic", streaming.analyse, 1.4))


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

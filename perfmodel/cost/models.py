"""The kernel models: families of GPU kernels by their physics, of a CPU's operators by terms."""

from __future__ import annotations

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.cost.contract import KERNELS, Estimate, Explanation
from perfmodel.cost.cpu import terms
from perfmodel.cost.cpu.family import CpuFamily
from perfmodel.cost.cpu.parameters import MEMORY_PARAMETERS, THREAD_PARAMETERS, parameters
from perfmodel.cost.gpu import attention, convolution, embedding, rates
from perfmodel.cost.gpu.analysis import Analyse, Heuristic
from perfmodel.cost.learned.features import PHYSICS
from perfmodel.hardware import Device
from perfmodel.ops.rows import Rows
from perfmodel.ops.vocabulary.streaming import RECORDED

ANALYSES: dict[str, Analyse] = {
    "channel": rates.analyse_channels,
    "embedding": embedding.analyse,
    "jagged": embedding.analyse_jagged,
    "jagged_attention": attention.analyse_jagged_attention,
    "optimizer": rates.analyse,
    "pooling": convolution.analyse_pooling,
    "recurrent": attention.analyse_recurrent,
    "sort": embedding.analyse_sorting,
    "transfer": rates.analyse_transfers,
} | {family: physics.analyse for family, physics in PHYSICS.items()}
"""What each family's kernels move, compute and take."""
for family, analyse in ANALYSES.items():
    KERNELS.register(f"gpu/{family}/heuristic")(Heuristic(family, analyse))


_VECTOR = parameters("cpu.vector", terms.VECTORS)
_EMBEDDING = parameters("cpu.embedding", terms.VECTORS) + THREAD_PARAMETERS
_OPTIMIZER = parameters("cpu.optimizer", terms.VECTORS) + THREAD_PARAMETERS
_ON_CPU = {
    "attention": (parameters("cpu.attention", terms.RATES), terms.attention_terms),
    "collective": (parameters("cpu.collective"), terms.collective_terms),
    "convolution": (parameters("cpu.convolution", terms.OF_CONVOLUTIONS), terms.convolution_terms),
    "embedding": (_EMBEDDING, terms.embedding_terms),
    "matmul": (parameters("cpu.matmul", terms.RATES), terms.matmul_terms),
    "optimizer": (_OPTIMIZER, terms.optimizer_terms),
    "sort": (parameters("cpu.sort") + THREAD_PARAMETERS, terms.sort_terms),
    "transfer": (_VECTOR, terms.streaming_terms),
    "vector": (_VECTOR, terms.streaming_terms),
}
"""Parameters of each family's own, and the terms of its durations."""
CPU_FAMILIES = {
    family: CpuFamily(family, MEMORY_PARAMETERS + own, of) for family, (own, of) in _ON_CPU.items()
}
CPU_FAMILIES["host"] = CpuFamily("host", parameters("cpu.host"), terms.host_terms, called=False)
CPU_FAMILIES |= dict.fromkeys(("channel", "jagged", "pooling"), CPU_FAMILIES["vector"])
for family, model in CPU_FAMILIES.items():
    KERNELS.register(f"cpu/{family}/heuristic")(model)


NAME = f"gpu/{RECORDED}/heuristic"


class Recorded:
    """`recorded_us` x `ratio`, within a factor `spread` to either side."""

    def estimate(self, rows: Rows, device: Device) -> Estimate:
        """What was recorded, on `device`; raises `ModelError` for a time that is not above 0."""
        recorded_us, ratio, spread = _columns(rows)
        taken = recorded_us * ratio
        return Estimate(taken, taken / spread, taken * spread, NAME, "recorded in the trace")

    def explain(self, rows: Rows, device: Device) -> list[Explanation]:
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

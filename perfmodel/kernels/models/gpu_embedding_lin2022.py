"""Table lookups by the formulas of Lin et al. (2022), selectable to compare with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.errors import ModelError
from perfmodel.hardware import Device
from perfmodel.kernels.gpu import embedding
from perfmodel.kernels.gpu.floors import floors_of, measured_us
from perfmodel.kernels.gpu.heuristic import explanations
from perfmodel.kernels.gpu.lin2022 import A100, V100, Gpu, Lookup, backward_us, forward_us
from perfmodel.kernels.model import KERNELS, Estimate, Explanation
from perfmodel.ops.rows import Rows

NAME = "gpu/embedding/lin2022"
_GPU_OF_ARCHITECTURE = {"volta": V100, "pascal": V100, "ampere": A100}
"""Their Pascal GPUs reuse the V100's curve."""
_SPREAD = 1.5


@dataclass(frozen=True)
class Lin2022:
    """FBGEMM's kernels on uniform lookups; tables of equal size, fp32 rows, SGD backward."""

    def estimate(self, rows: Rows, device: Device) -> Estimate:
        """Durations of `rows`; `ModelError` for a GPU without constants, or an impossible row."""
        gpu = _gpu(device)
        kernel = np.zeros(len(rows))
        for op, index in rows.groups():
            dims = rows.dims_of(op, index)
            tables = dims["tables"] if "tables" in dims else np.ones(len(index))
            if "lookups" in dims:
                pooling = dims["lookups"] / (tables * dims["batch"])
            else:
                pooling = dims["pooling"]
            for place, row in enumerate(index.tolist()):
                lookup = Lookup(
                    batch=int(dims["batch"][place]),
                    rows=int(dims["hash_size"][place]),
                    tables=int(tables[place]),
                    pooling=max(1, round(float(pooling[place]))),
                    dim=int(dims["dim"][place]),
                )
                each = forward_us if rows.direction[row] == "fwd" else backward_us
                kernel[row] = each(lookup, gpu)
        floor_us, offset_us = floors_of(rows)
        low, usual, high = (
            measured_us(kernel * factor, floor_us, offset_us)
            for factor in (1.0 / _SPREAD, 1.0, _SPREAD)
        )
        return Estimate(usual, low, high, NAME, "constants of Lin et al. 2022")

    def explain(self, rows: Rows, device: Device) -> list[Explanation]:
        """The heuristic's analysis around these durations."""
        found = self.estimate(rows, device)
        return explanations(rows, device, embedding.analyse(rows, device), found.duration_us)


def _gpu(device: Device) -> Gpu:
    gpu = _GPU_OF_ARCHITECTURE.get(device.architecture or "")
    if gpu is None:
        known = ", ".join(sorted(_GPU_OF_ARCHITECTURE))
        raise ModelError(
            f"{NAME}: no constants for {device.name} ({device.architecture}); known: {known}"
        )
    return gpu


KERNELS.register(NAME)(Lin2022())

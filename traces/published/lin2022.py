"""Lookups of DLRM_default at batch 2,048 by the formulas of Lin et al."""

from __future__ import annotations

from typing import Literal

import numpy as np

from perfmodel.cost.models import lin2022
from perfmodel.evaluation.published_designs import Study

LOOKUP = lin2022.Lookup(batch=2048, rows=1_000_000, tables=8, pooling=100, dim=64)


def lookup_us(study: Study, formula: Literal["forward", "forward-naive", "backward"]) -> float:
    """Time of one direction on the paper's V100."""
    gpu = lin2022.V100
    if formula == "forward":
        return float(lin2022.forward_us(LOOKUP, gpu, lin2022.FBGEMM_WARPS))
    if formula == "backward":
        return float(lin2022.backward_us(LOOKUP, gpu, None))
    naive = 96 + LOOKUP.index_bytes + (LOOKUP.pooling + 1) * LOOKUP.row_bytes
    return float(gpu.dram.time_us(np.array(LOOKUP.batch * LOOKUP.tables * naive)))

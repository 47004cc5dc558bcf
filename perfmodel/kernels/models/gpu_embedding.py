"""Table lookups on GPUs: rows from memory or from the L2."""

from __future__ import annotations

from perfmodel.kernels.gpu import embedding
from perfmodel.kernels.gpu.heuristic import Heuristic
from perfmodel.kernels.model import KERNELS

KERNELS.register("gpu/embedding/heuristic")(
    Heuristic("gpu/embedding/heuristic", embedding.analyse, 1.6)
)

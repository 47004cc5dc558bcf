"""Ops that stream their operands on GPUs: bytes against the memory's and the cache's rate."""

from __future__ import annotations

from perfmodel.kernels.gpu import streaming
from perfmodel.kernels.gpu.heuristic import Heuristic
from perfmodel.kernels.model import KERNELS

KERNELS.register("gpu/vector/heuristic")(Heuristic("gpu/vector/heuristic", streaming.analyse, 1.4))

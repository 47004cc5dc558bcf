"""Matrix products on GPUs: tiles, waves and the loop over k against the units' peak."""

from __future__ import annotations

from perfmodel.kernels.gpu import matmul
from perfmodel.kernels.gpu.heuristic import Heuristic
from perfmodel.kernels.model import KERNELS

KERNELS.register("gpu/matmul/heuristic")(Heuristic("gpu/matmul/heuristic", matmul.analyse, 1.7))

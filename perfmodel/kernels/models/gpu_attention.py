"""Fused attention on GPUs: both products in waves of blocks of queries."""

from __future__ import annotations

from perfmodel.kernels.gpu import attention
from perfmodel.kernels.gpu.heuristic import Heuristic
from perfmodel.kernels.model import KERNELS

KERNELS.register("gpu/attention/heuristic")(
    Heuristic("gpu/attention/heuristic", attention.analyse, 1.7)
)

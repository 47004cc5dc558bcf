"""Pooling over windows on GPUs: bytes, against threads that look at each element."""

from __future__ import annotations

from perfmodel.kernels.gpu import pooling
from perfmodel.kernels.gpu.heuristic import Heuristic
from perfmodel.kernels.model import KERNELS

KERNELS.register("gpu/pooling/heuristic")(Heuristic("gpu/pooling/heuristic", pooling.analyse, 1.6))

"""Work on keyed jagged tensors on GPUs: warps that walk segments."""

from __future__ import annotations

from perfmodel.kernels.gpu import jagged
from perfmodel.kernels.gpu.heuristic import Heuristic
from perfmodel.kernels.model import KERNELS

KERNELS.register("gpu/jagged/heuristic")(Heuristic("gpu/jagged/heuristic", jagged.analyse, 1.6))

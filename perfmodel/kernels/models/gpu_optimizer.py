"""Dense optimizers on GPUs: parameters, gradients and states streamed once."""

from __future__ import annotations

from perfmodel.kernels.gpu import streaming
from perfmodel.kernels.gpu.heuristic import Heuristic
from perfmodel.kernels.model import KERNELS

KERNELS.register("gpu/optimizer/heuristic")(
    Heuristic("gpu/optimizer/heuristic", streaming.analyse, 1.4)
)

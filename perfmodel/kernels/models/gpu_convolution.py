"""Convolutions on GPUs: implicit matrix products, Winograd, depthwise kernels."""

from __future__ import annotations

from perfmodel.kernels.gpu import convolution
from perfmodel.kernels.gpu.heuristic import Heuristic
from perfmodel.kernels.model import KERNELS

KERNELS.register("gpu/convolution/heuristic")(
    Heuristic("gpu/convolution/heuristic", convolution.analyse, 2.0)
)

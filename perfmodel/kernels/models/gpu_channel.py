"""Batch normalisation on GPUs: a block per channel."""

from __future__ import annotations

from perfmodel.kernels.gpu import channels
from perfmodel.kernels.gpu.heuristic import Heuristic
from perfmodel.kernels.model import KERNELS

KERNELS.register("gpu/channel/heuristic")(Heuristic("gpu/channel/heuristic", channels.analyse, 1.6))

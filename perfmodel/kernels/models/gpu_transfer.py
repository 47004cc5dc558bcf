"""Copies between a GPU and its host or its peers, over PCIe or a link."""

from __future__ import annotations

from perfmodel.kernels.gpu import transfers
from perfmodel.kernels.gpu.heuristic import Heuristic
from perfmodel.kernels.model import KERNELS

KERNELS.register("gpu/transfer/heuristic")(
    Heuristic("gpu/transfer/heuristic", transfers.analyse, 1.5)
)

"""Sorts, scans and selections on GPUs: passes over their keys."""

from __future__ import annotations

from perfmodel.kernels.gpu import sorting
from perfmodel.kernels.gpu.heuristic import Heuristic
from perfmodel.kernels.model import KERNELS

KERNELS.register("gpu/sort/heuristic")(Heuristic("gpu/sort/heuristic", sorting.analyse, 1.8))

"""Families that have physics of their own on GPUs, and only stream on a CPU."""

from __future__ import annotations

from perfmodel.kernels.cpu.family import CpuFamily
from perfmodel.kernels.model import KERNELS
from perfmodel.kernels.models.cpu_vector import STREAMING, streaming_terms

for _family in ("channel", "jagged", "pooling"):
    KERNELS.register(f"cpu/{_family}/heuristic")(CpuFamily("vector", STREAMING, streaming_terms))

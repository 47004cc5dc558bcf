"""Work on keyed jagged tensors on a CPU: it streams, with the parameters of what streams there."""

from __future__ import annotations

from perfmodel.kernels.cpu.family import CpuFamily
from perfmodel.kernels.model import KERNELS
from perfmodel.kernels.models.cpu_vector import STREAMING, streaming_terms

KERNELS.register("cpu/jagged/heuristic")(CpuFamily("vector", STREAMING, streaming_terms))

"""The machine under test through PyTorch: which device, how to wait for it, CUDA graphs on it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from perfmodel.errors import UsageError

MINIMUM_TORCH = (2, 0)
ASSUMED_HOST_BYTES = 4_000_000_000


def require_torch() -> Any:
    """The `torch` module; `UsageError` when it is missing or too old."""
    try:
        torch = import_module("torch")
    except ImportError as error:
        raise UsageError(
            f"PyTorch cannot be imported here ({error}): run the collector with the Python of "
            "your training environment, or install torch 2.0 or later"
        ) from None
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < MINIMUM_TORCH:
        raise UsageError(f"PyTorch {torch.__version__} is too old: 2.0 or later is needed")
    return torch


@dataclass(frozen=True)
class Backend:
    """PyTorch and the device that is measured (`cpu`, or `cuda` for both CUDA and ROCm)."""

    torch: Any
    kind: str
    index: int = 0
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)

    @property
    def is_gpu(self) -> bool:
        """Whether work is launched asynchronously on a GPU."""
        return self.kind == "cuda"

    @property
    def device(self) -> Any:
        """The `torch.device`."""
        return self.torch.device(self.kind, self.index) if self.is_gpu else self.torch.device("cpu")

    def synchronize(self) -> None:
        """Wait until everything launched has run; nothing to wait for on a CPU."""
        if self.is_gpu:
            self.torch.cuda.synchronize(self.index)

    def free_bytes(self) -> int:
        """Memory that a measurement may take, in bytes."""
        if self.is_gpu:
            return int(self.torch.cuda.mem_get_info(self.index)[0])
        return _available_host_bytes()

    def out_of_memory(self, error: BaseException) -> bool:
        """Whether `error` says that the memory of this device, or of the host, is exhausted."""
        if isinstance(error, (MemoryError, self.torch.cuda.OutOfMemoryError)):
            return True
        text = str(error).lower()
        return isinstance(error, RuntimeError) and (
            "out of memory" in text or "can't allocate memory" in text
        )


def _available_host_bytes() -> int:
    """Host memory that can be had without swapping; an assumption where nothing tells."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return ASSUMED_HOST_BYTES
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    kilobytes = fields.get("MemAvailable", "").split()
    return int(kilobytes[0]) * 1024 if kilobytes else ASSUMED_HOST_BYTES


def open_backend(device: str, *, threads: int | None = None, index: int = 0) -> Backend:
    """The backend for `device` (`auto`, `cpu`, `cuda`); `auto` takes a GPU where there is one.

    `threads` caps the intra-op threads of the host. Raises `UsageError` when a GPU is asked for
    and PyTorch sees none.
    """
    torch = require_torch()
    has_gpu = bool(torch.cuda.is_available())
    if device == "cuda" and not has_gpu:
        raise UsageError(
            f"--device cuda: PyTorch {torch.__version__} sees no CUDA or ROCm device here; "
            "use --device cpu, or a PyTorch build and driver for this GPU"
        )
    kind = device if device != "auto" else "cuda" if has_gpu else "cpu"
    if threads is not None:
        torch.set_num_threads(threads)
    if kind == "cuda":
        torch.cuda.set_device(index)
    return Backend(torch, kind, index, torch.get_num_threads())


GRAPH_WARM_UP_RUNS = 3


def capture_graph(backend: Backend, body: Callable[[], Any]) -> Callable[[], None]:
    """What replays `body`, warmed up on a side stream and captured once.

    Raises `UsageError` where `body` does something that a graph cannot hold.
    """
    cuda = backend.torch.cuda
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(GRAPH_WARM_UP_RUNS):
            body()
    cuda.current_stream().wait_stream(side)
    graph = cuda.CUDAGraph()
    try:
        with cuda.graph(graph):
            body()
    except RuntimeError as error:
        reason = str(error).strip().split("\n")[0]
        raise UsageError(f"this cannot be captured into a CUDA graph: {reason}") from None
    return lambda: graph.replay()


MEMORY_SHARE = 0.75


class Room:
    """Memory for models that stay side by side: a share of what is free now, for other programs
    grow, too."""

    def __init__(self, backend: Backend, processes: int = 1) -> None:
        sharing = 1 if backend.is_gpu else processes
        self._backend = backend
        self._left_bytes = MEMORY_SHARE * backend.free_bytes() / sharing

    def take(self, size_bytes: float) -> bool:
        """Whether there is room for one more; then less is left."""
        fits = size_bytes < min(self._left_bytes, self._backend.free_bytes())
        self._left_bytes -= size_bytes if fits else 0
        return fits

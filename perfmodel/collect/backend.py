"""The machine under test through PyTorch: its device, waiting for it; what it is.

Nothing here names a host, a user or a path.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy

from perfmodel.errors import UsageError

MINIMUM_TORCH = (2, 2)
ASSUMED_HOST_BYTES = 4_000_000_000
"""Free, where there is no `/proc/meminfo` to say."""


def require_torch() -> Any:
    """The `torch` module; `UsageError` when it is missing or too old."""
    try:
        torch = import_module("torch")
    except ImportError as error:
        raise UsageError(
            f"PyTorch cannot be imported here ({error}): run the collector with the Python of "
            "your training environment, or install torch 2.2 or later"
        ) from None
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < MINIMUM_TORCH:
        raise UsageError(f"PyTorch {torch.__version__} is too old: 2.2 or later is needed")
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
        return self.torch.device(self.kind, self.index) if self.is_gpu else self.torch.device("cpu")

    def synchronize(self) -> None:
        """Wait until everything launched has run; nothing to wait for on a CPU."""
        if self.is_gpu:
            self.torch.cuda.synchronize(self.index)

    def free_bytes(self) -> int:
        """Memory that a measurement may take, in bytes: of a host, what it has without swapping."""
        if self.is_gpu:
            return int(self.torch.cuda.mem_get_info(self.index)[0])
        kilobytes = re.search(r"MemAvailable:\s*(\d+)", _system_text("/proc/meminfo"))
        return int(kilobytes.group(1)) * 1024 if kilobytes else ASSUMED_HOST_BYTES

    def out_of_memory(self, error: BaseException) -> bool:
        """Whether `error` says that the memory of this device, or of the host, is exhausted."""
        if isinstance(error, (MemoryError, self.torch.cuda.OutOfMemoryError)):
            return True
        text = str(error).lower()
        return isinstance(error, RuntimeError) and (
            "out of memory" in text or "can't allocate memory" in text
        )


def open_backend(device: str) -> Backend:
    """The backend for `device` (`auto`, `cpu`, `cuda`); `auto` takes a GPU where there is one.

    Raises `UsageError` when a GPU is asked for and PyTorch sees none.
    """
    torch = require_torch()
    has_gpu = bool(torch.cuda.is_available())
    if device == "cuda" and not has_gpu:
        raise UsageError(
            f"--device cuda: PyTorch {torch.__version__} sees no CUDA or ROCm device here; "
            "use --device cpu, or a PyTorch build and driver for this GPU"
        )
    kind = device if device != "auto" else "cuda" if has_gpu else "cpu"
    index = torch.cuda.current_device() if kind == "cuda" else 0
    return Backend(torch, kind, index, torch.get_num_threads())


_SMI_FIELDS = (
    *("driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem"),
    *("power.limit", "temperature.gpu", "pcie.link.gen.current", "pcie.link.width.current"),
)


def describe_machine(backend: Backend) -> dict[str, Any]:
    """Everything about this machine that a later fit has to know, as JSON-ready values."""
    torch = backend.torch
    gpu = None
    if backend.is_gpu:
        properties = torch.cuda.get_device_properties(backend.index)
        gpu = {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "l2_bytes": getattr(properties, "L2_cache_size", None),
            "cudnn": torch.backends.cudnn.version(),
            "smi": gpu_state(backend),
        }
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),  # noqa: UP017 (Python 3.10)
        "device": device_name(backend),
        "cpu": describe_cpu(),
        "gpu": gpu,
        "intra_op_threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "numpy": numpy.__version__,
    }


def device_name(backend: Backend) -> str:
    """The name that the driver, or for a CPU the kernel, reports."""
    if backend.is_gpu:
        return str(backend.torch.cuda.get_device_name(backend.index))
    return str(describe_cpu()["name"])


def describe_cpu() -> dict[str, Any]:
    """Model name, logical CPUs, cache sizes in bytes, memory in bytes, and vector extensions."""
    first = _system_text("/proc/cpuinfo").split("\n\n")[0]
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    info = {key.strip(): value.strip() for key, value in pairs}
    flags = set(info.get("flags", info.get("Features", "")).split())
    wanted = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "asimd", "sve")
    cache_bytes = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (
            _system_text(folder / name).strip() for name in ("level", "type", "size")
        )
        if size:  # such as {"L1d": 49152, "L2": 1048576, "L3": 33554432}
            suffix = {"Data": "d", "Instruction": "i"}.get(kind, "")
            cache_bytes[f"L{level}{suffix}"] = int(size.rstrip("K")) * 1024
    memory_bytes = None
    with suppress(ValueError, OSError):
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "name": info.get("model name", platform.processor() or platform.machine()),
        "usable_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "clock_mhz": info.get("cpu MHz"),
        "vector": [flag for flag in wanted if flag in flags],
        "cache_bytes": cache_bytes,
        "memory_bytes": memory_bytes,
    }


def _system_text(path: str | Path) -> str:
    """A file of the system's, empty where it has none."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def gpu_state(backend: Backend) -> dict[str, str]:
    """Driver, clocks, power limit and temperature now, as the vendor's tool prints them."""
    if not backend.is_gpu:
        return {}
    query = f"--query-gpu={','.join(_SMI_FIELDS)}"
    command = ["nvidia-smi", query, "--format=csv,noheader", f"--id={backend.index}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(_SMI_FIELDS, (part.strip() for part in done.stdout.split(",")), strict=False))

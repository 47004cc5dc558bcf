"""Process groups of ranks on this machine."""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta
from pathlib import Path

from perfmodel.collect.backend import Backend
from perfmodel.collect.models import Ranks

TIMEOUT_S = 300
LOOPBACK = Path("/sys/class/net/lo")


def join_group(backend: Backend, ranks: Ranks, store: Path) -> None:
    """Enter the group of `ranks` through the file `store`: no port or host name is needed."""
    if not backend.is_gpu and LOOPBACK.exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK.name)
    backend.torch.distributed.init_process_group(
        "nccl" if backend.is_gpu else "gloo",
        init_method=store.as_uri(),
        rank=ranks.rank,
        world_size=ranks.world,
        timeout=timedelta(seconds=TIMEOUT_S),
    )


def ensure_group(backend: Backend, ranks: Ranks) -> None:
    """A process group even where this rank is alone, for models that cannot do without."""
    if not backend.torch.distributed.is_initialized():
        join_group(backend, ranks, Path(tempfile.mkdtemp()) / "store")


def leave_group(backend: Backend) -> None:
    """Leave the process group, where there is one."""
    distributed = backend.torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()

"""Steps that are common to implementations which feed a GPU from host tensors."""

from __future__ import annotations

from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.creation import to_device
from perfmodel.workload.eager.recorder import Recorder, Shape


def sent(r: Recorder, shape: Shape, dtype: str, *, pinned: bool) -> Tensor:
    """A host tensor of the batch, sent to the device; from pageable memory the host waits."""
    host = r.tensor(shape, dtype, place="cpu")
    return to_device(r, host, r.place, non_blocking=pinned)

"""Horovod: a thread looks, once in a cycle, for collectives that all ranks are ready for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from perfmodel.graph.ops import Tensor
from perfmodel.workload.autograd.engine import Hook
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.parts.embeddings import stream
from perfmodel.workload.parts.exchange import all_reduce

COMMUNICATION = "comm"
"""The stream of collectives."""
CYCLE_US = 200.0 + 50.0
"""`HOROVOD_CYCLE_TIME`, and Linux's timer slack: the thread sleeps until then. Source:
NVIDIA/DeepLearningExamples, TensorFlow2/Recommendation/DLRM (and DLRM_and_DCNv2), Dockerfile;
prctl(2), PR_SET_TIMERSLACK; horovod/common/operations.cc, `RunLoopOnce`."""
WAKE_US = 2.0
"""Assumed: in so long the thread that waited for a stream goes on."""


def negotiated(r: Recorder) -> None:
    """The host waits for the end of a cycle, half of one on average; the device does not.

    With `HOROVOD_ENABLE_ASYNC_COMPLETION`, as in that Dockerfile, streams wait for each other's
    events. Source: horovod/horovod, pull request 2963.
    """
    _waited(r, CYCLE_US / 2)


def allocated(r: Recorder, *launched: Tensor) -> None:
    """Before an exchange, memory for what it brings; the host waits for `launched` to be there.

    Up to Horovod 0.24: its thread waits for all that TensorFlow's stream was given. The example's
    container (22.06) holds 0.24.3. Source: horovod/horovod, pull request 3464, and its changelog.
    """
    _waited(r, WAKE_US, *launched)


def summed(r: Recorder, gradients: Sequence[Tensor], ranks: int) -> list[Tensor]:
    """`gradients` summed over the ranks: into one buffer, an all-reduce, and out of it.

    All of it on the collectives' stream, started by Horovod's thread: the host goes on. Source:
    horovod/common/ops/gpu_operations.cc, `MemcpyInFusionBuffer`.
    """
    buffer = r.tensor((sum(gradient.elements for gradient in gradients),))
    out = [r.tensor(gradient.shape) for gradient in gradients]
    with r.with_attributes({"stream": COMMUNICATION}):
        stream(r, "packed", tuple(gradients), buffer)
    all_reduce(r, buffer, ranks)
    with r.with_attributes({"stream": COMMUNICATION}):
        stream(r, "unpacked", (buffer,), *out)
    return out


def when_all_are_there(
    group: Sequence[Tensor], then: Callable[[Sequence[Tensor], Mapping[int, Tensor]], None]
) -> Hook:
    """Calls `then` with `group` and its gradients by tensor id, once all of them are there."""
    missing = {tensor.tensor_id for tensor in group}
    found: dict[int, Tensor] = {}

    def arrived(r: Recorder, parameter: Tensor, gradient: Tensor) -> None:
        if parameter.tensor_id in missing:
            missing.remove(parameter.tensor_id)
            found[parameter.tensor_id] = gradient
            if not missing:
                then(group, found)

    return arrived


def _waited(r: Recorder, wait_us: float, *behind: Tensor) -> None:
    about = {"wait_us": str(wait_us), "stream": "horovod", "blocks": "1"}
    r.leaf("tier::pause", behind, about=about)

"""Horovod: a thread looks, once in a cycle, for collectives that all ranks are ready for."""

from __future__ import annotations

from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.recorder import Recorder

CYCLE_US = 200.0
"""`HOROVOD_CYCLE_TIME`. Source: NVIDIA/DeepLearningExamples, TensorFlow2/Recommendation/DLRM (and
DLRM_and_DCNv2), Dockerfile."""
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


def _waited(r: Recorder, wait_us: float, *behind: Tensor) -> None:
    about = {"wait_us": str(wait_us), "stream": "horovod", "blocks": "1"}
    r.leaf("tier::pause", behind, about=about)

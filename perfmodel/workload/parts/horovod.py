"""Horovod: a thread looks, once in a cycle, for collectives that all ranks are ready for."""

from __future__ import annotations

from perfmodel.workload.eager.recorder import Recorder

CYCLE_US = 200.0
"""`HOROVOD_CYCLE_TIME`. Source: NVIDIA/DeepLearningExamples, TensorFlow2/Recommendation/DLRM (and
DLRM_and_DCNv2), Dockerfile."""


def negotiated(r: Recorder) -> None:
    """The host waits for the end of a cycle, half of one on average; the device does not.

    With `HOROVOD_ENABLE_ASYNC_COMPLETION`, as in that Dockerfile, streams wait for each other's
    events. Source: horovod/horovod, pull request 2963.
    """
    about = {"wait_us": str(CYCLE_US / 2), "stream": "horovod", "blocks": "1"}
    r.leaf("tier::pause", (), about=about)

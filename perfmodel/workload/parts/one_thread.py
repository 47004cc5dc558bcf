"""What TensorFlow does on one thread of the host, however many there are."""

from __future__ import annotations

from perfmodel.workload.eager.recorder import Recorder

CALL_US = 200.0
"""From Python into a `tf.function` that runs one node, and back. Source: `traces/tensorflow_cpu`,
kernels.csv, TensorFlow 2.12.1: the least of four runs."""


def one_thread(r: Recorder, measured_us: float) -> None:
    """Work that took so long where it was measured; the host does nothing else meanwhile."""
    about = {"measured_us": str(measured_us), "stream": "python", "blocks": "1"}
    r.leaf("tier::one_thread", (), about=about)


def called(r: Recorder) -> None:
    """A step's one call from Python."""
    one_thread(r, CALL_US)

"""What TensorFlow does on one thread of the host, however many there are.

Source of the figures: `traces/tensorflow_cpu`, TensorFlow 2.12.1, the least of the runs.
"""

from __future__ import annotations

from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.recorder import Recorder

CALL_US = 200.0
"""From Python into a `tf.function` that runs one node, and back: kernels.csv."""
CLUSTER_US = 27.6
"""Of a cluster that XLA compiled, to be found in its cache and run: host.csv."""
SCHEDULE_US = 30.8
"""Of the learning rate, which the example finds in each step (lr_scheduler.py): host.csv."""
UNBATCH_BYTES_PER_US = 18.7e3
"""Of a batch taken out of a batch of one, as the example's dataset ends: host.csv, eight ranks."""


def one_thread(r: Recorder, measured_us: float) -> None:
    """Work that took so long where it was measured; the host does nothing else meanwhile."""
    r.leaf("tier::one_thread", (), about=_about(measured_us, "python", blocks=True))


def called(r: Recorder) -> None:
    """A step's one call from Python."""
    one_thread(r, CALL_US)


def cluster_called(r: Recorder) -> None:
    """A cluster's call, beside what an operator costs."""
    one_thread(r, CLUSTER_US)


def scheduled(r: Recorder) -> None:
    """The step's learning rate."""
    one_thread(r, SCHEDULE_US)


def unbatched(r: Recorder, batch: Tensor, batch_bytes: float) -> None:
    """`batch` out of the dataset, on a thread of its own."""
    about = _about(batch_bytes / UNBATCH_BYTES_PER_US, "dataset", blocks=False)
    r.leaf("tier::one_thread", (), batch, about=about)


def _about(measured_us: float, stream: str, *, blocks: bool) -> dict[str, str]:
    about = {"measured_us": str(measured_us), "stream": stream}
    return about | {"blocks": "1" if blocks else "0"}

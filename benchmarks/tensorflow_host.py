"""What TensorFlow's host spends within a step of NVIDIA's example, beside operators that launch.

    python benchmarks/tensorflow_host.py clusters >> traces/tensorflow_cpu/host.csv
    python benchmarks/tensorflow_host.py step >> traces/tensorflow_cpu/host.csv

Needs `tensorflow-cpu`, in an environment of its own. CPU time of all threads, the least of the
rounds. `product` and `cluster`: what each adds to a chain, a product of 16 x 16 and XLA's cluster
of six operators behind one. `schedule`: the learning rate of the step (lr_scheduler.py).
`unbatch_N`: taking the batch of one of N ranks out of a batch of one (datasets.py).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

FEW, MANY = 1, 31
CALLS, ROUNDS = 20, 80
SIZE, PAIRS = 16, 3
SAMPLES, FEATURES, TABLES = 65_536, 13, {8: 4, 1: 26}
WARMUP, CONSTANT, DECAY = 8_000, 48_000, 24_000
ASKED = sys.argv[1]
os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", OMP_NUM_THREADS="1")
if ASKED == "clusters":
    os.environ["TF_XLA_FLAGS"] = "--tf_xla_auto_jit=fusible --tf_xla_cpu_global_jit"

import tensorflow as tf  # noqa: E402

Call = Callable[[], Any]


def least_us(call: Call) -> float:
    """Of one call, once it is compiled."""
    call()
    call()
    least = sys.maxsize
    for _ in range(ROUNDS):
        before = time.process_time_ns()
        for _ in range(CALLS):
            call()
        least = min(least, time.process_time_ns() - before)
    return least / CALLS / 1e3


def product(y: Any, x: Any, bias: Any) -> Any:
    """An operator that XLA leaves alone."""
    return tf.raw_ops.MatMul(a=y, b=x)


def clustered(y: Any, x: Any, bias: Any) -> Any:
    """A product and a cluster."""
    y = product(y, x, bias)
    for _ in range(PAIRS):
        y = tf.raw_ops.Tanh(x=tf.raw_ops.BiasAdd(value=y, bias=bias))
    return y


def added_us(link: Callable[[Any, Any, Any], Any]) -> float:
    """What one more `link` adds to a call."""

    def of(links: int) -> float:
        @tf.function
        def chain(x: Any, bias: Any) -> Any:
            y = x
            for _ in range(links):
                y = link(y, x, bias)
            return y

        given = tf.ones([SIZE, SIZE]), tf.ones([SIZE])
        return least_us(lambda: chain(*given))

    return (of(MANY) - of(FEW)) / (MANY - FEW)


def scheduled_us() -> float:
    """What a learning rate that warms up, holds and decays adds to a call."""
    x, rate, at = tf.ones([SIZE, SIZE]), tf.Variable(0.1), tf.Variable(0)
    warmup, constant, decay = map(tf.constant, (WARMUP, CONSTANT, DECAY))

    def schedule() -> None:
        rising = 1 - tf.cast(warmup - at, tf.float32) * tf.cast(1 / warmup, tf.float32)
        falling = tf.cast(tf.math.pow((CONSTANT + DECAY - at) / decay, 2), tf.float32)
        later = tf.cond(at < constant, lambda: tf.constant(1.0), lambda: falling)
        rate.assign(24.0 * tf.cond(at < warmup, lambda: rising, lambda: later))
        at.assign(at + 1)

    @tf.function
    def apart() -> Any:
        return tf.matmul(x, x)

    @tf.function
    def within() -> Any:
        schedule()
        return tf.matmul(x, x)

    return least_us(within) - least_us(apart)


def unbatched_us(ranks: int) -> float:
    """Half of what batching and unbatching add, which copy the batch once each."""
    own = SAMPLES // ranks
    batch = (
        tf.zeros([own, 1], tf.int8),
        tf.zeros([own, FEATURES], tf.float16),
        tf.zeros([SAMPLES, TABLES[ranks]], tf.int32),
    )
    options = tf.data.Options()
    options.autotune.enabled = False

    def of(dataset: Any) -> float:
        iterator = iter(dataset.with_options(options))

        @tf.function
        def given() -> Any:
            return tf.shape(iterator.get_next()[0])

        return least_us(given)

    plain = tf.data.Dataset.from_tensors(batch).repeat()
    return (of(plain.batch(1).unbatch()) - of(plain)) / 2


def figures() -> dict[str, float]:
    """What was asked for, by name, microseconds."""
    if ASKED == "clusters":
        of_product = added_us(product)
        return {"product": of_product, "cluster": added_us(clustered) - of_product}
    unbatched = {f"unbatch_{ranks}": unbatched_us(ranks) for ranks in TABLES}
    return {"schedule": scheduled_us(), **unbatched}


def main() -> None:
    """One line per figure."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    for name, us in figures().items():
        sys.stdout.write(f"{name},{us:.4g}\n")


if __name__ == "__main__":
    main()

"""CPU time of TensorFlow's kernels and runtime in a DLRM step, and which kernels one thread does.

    python benchmarks/tensorflow_cpu.py THREADS BATCH >> traces/tensorflow_cpu/kernels.csv

Needs `tensorflow-cpu`, in an environment of its own. Every op runs alone in a function. `cpu_ns` is
the CPU time of all threads per unit, the least of the repeats, since other processes only add;
`busiest_frac` is the busiest thread's share of it: near 1 with two threads, the kernel is serial.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROWS, DIM, TABLES, WIDTH = 1_000_000, 128, 26, 1024
FIELDS = TABLES + 1
PAIRS = FIELDS * (FIELDS - 1) // 2
REPEATS = 7
CALLS, ROUNDS = 20, 25
"""Of the smallest function, whose call is what is timed."""

Timed = tuple[str, int, Callable[[], Any]]


def threads_ns() -> dict[str, int]:
    """CPU time of each thread of this process."""
    found = {}
    for each in Path("/proc/self/task").iterdir():
        try:
            found[each.name] = int((each / "schedstat").read_text().split()[0])
        except OSError:
            continue
    return found


def cpu_of(call: Callable[[], Any], calls: int, rounds: int) -> tuple[float, float]:
    """Least CPU time of one of `calls`, nanoseconds, and the busiest thread's share of all."""
    call()
    least, total = sys.maxsize, dict[str, int]()
    for _ in range(rounds):
        before = threads_ns()
        for _ in range(calls):
            call()
        used = {name: ns - before.get(name, 0) for name, ns in threads_ns().items()}
        least = min(least, sum(used.values()))
        total = {name: total.get(name, 0) + ns for name, ns in used.items()}
    return least / calls, max(total.values()) / max(sum(total.values()), 1)


def kernels(tf: Any, batch: int) -> Iterator[Timed]:
    """Name, units of work and call: rows, elements, or samples of a batched product."""
    import numpy as np

    rng, raw = np.random.default_rng(1), tf.raw_ops
    table = tf.Variable(tf.zeros([ROWS, DIM]))
    anywhere = tf.constant(rng.integers(0, ROWS, batch), tf.int32)
    three = tf.constant(rng.integers(0, 3, batch), tf.int32)
    rows, joined = tf.ones([batch, DIM]), tf.ones([batch, FIELDS, DIM])
    products = tf.ones([batch, FIELDS, FIELDS])
    below = np.tril(np.ones((FIELDS, FIELDS), bool), -1)[None].repeat(batch, 0).reshape(-1)
    mask, places = tf.constant(below, tf.float32), tf.constant(np.flatnonzero(below))
    kept, elements = tf.ones([batch * PAIRS]), batch * FIELDS**2
    hidden, bias = tf.ones([batch, WIDTH]), tf.ones([WIDTH])

    def add(indices: Any) -> Any:
        raw.ResourceScatterAdd(resource=table.handle, indices=indices, updates=rows)
        return tf.constant(0)

    def summed() -> Any:
        return raw.UnsortedSegmentSum(data=kept, segment_ids=places, num_segments=elements)

    yield "unsorted_segment_sum", batch * PAIRS, summed
    yield "where", elements, lambda: raw.Where(condition=mask)
    yield "ones_like", elements, lambda: raw.OnesLike(x=products)
    yield (
        "band_part",
        elements,
        lambda: raw.MatrixBandPart(input=products, num_lower=0, num_upper=-1),
    )
    yield "gather_elements", batch * PAIRS, lambda: tf.gather(tf.reshape(products, [-1]), places)
    yield "batched_product", batch, lambda: raw.BatchMatMulV2(x=joined, y=joined, adj_y=True)
    yield "batched_product_backward", batch, lambda: raw.BatchMatMulV2(x=products, y=joined)
    yield "gather_rows", batch, lambda: tf.gather(table, anywhere)
    yield "gather_three_rows", batch, lambda: tf.gather(table, three)
    yield "scatter_add_rows", batch, lambda: add(anywhere)
    yield "scatter_add_three_rows", batch, lambda: add(three)
    yield "bias", batch * WIDTH, lambda: raw.BiasAdd(value=hidden, bias=bias)
    yield "relu", batch * WIDTH, lambda: raw.Relu(features=hidden)
    yield "bias_backward", batch * WIDTH, lambda: raw.BiasAddGrad(out_backprop=hidden)
    yield "function_call", 1, lambda: raw.MatMul(a=bias[:4][None], b=bias[:4][:, None])


def main() -> None:
    """One line of the table per op."""
    threads, batch = map(int, sys.argv[1:])
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="2", OMP_NUM_THREADS=str(threads))
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    for name, units, call in kernels(tf, batch):
        often = (CALLS, ROUNDS) if name == "function_call" else (1, REPEATS)
        ns, busiest = cpu_of(tf.function(call), *often)
        sys.stdout.write(f"{name},{threads},{batch},{units},{ns / units:.4g},{busiest:.2f}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

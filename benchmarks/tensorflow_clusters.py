"""What XLA Lite compiles of the training step of NVIDIA's TensorFlow 2 DLRM: its clusters, as CSV.

    python benchmarks/tensorflow_clusters.py fp16 8 >> traces/tensorflow_cpu/clusters.csv

Needs `tensorflow-cpu` 2.12, in an environment of its own; clusters are marked in the graph alike
for all devices. Tiny shapes, the example's ops. `RandomShuffle`, which XLA leaves out as well,
stands for Horovod's collectives, a batched product and `StridedSlice` for the fused interaction.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

BATCH, TABLES, DIM, SLICES = 16, 26, 8, 4
PRECISION, RANKS = sys.argv[1], int(sys.argv[2])
OWN = TABLES if RANKS == 1 else SLICES
DUMP = Path(tempfile.mkdtemp())
FLAGS = "--tf_xla_auto_jit=fusible --tf_xla_cpu_global_jit --tf_xla_clustering_debug"
os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_XLA_FLAGS=FLAGS, TF_DUMP_GRAPH_PREFIX=str(DUMP))

import tensorflow as tf  # noqa: E402
from google.protobuf import text_format  # noqa: E402
from tensorflow.core.framework import graph_pb2  # noqa: E402

HALF = tf.float16 if PRECISION == "fp16" else tf.float32
if PRECISION == "fp16":
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
dense = tf.keras.layers.Dense
bottom = [dense(width, activation="relu") for width in (16, 16, DIM)]
top = [*(dense(16, activation="relu") for _ in range(4)), dense(1)]
table = tf.Variable(tf.random.uniform([1000, DIM]))
sgd: Any = tf.keras.optimizers.legacy.SGD(0.01, momentum=0)
if PRECISION == "fp16":
    sgd = tf.keras.mixed_precision.LossScaleOptimizer(sgd, initial_scale=1024, dynamic=False)
loss_of = tf.keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")


@tf.custom_gradient
def exchanged(x: Any) -> Any:
    return tf.random.shuffle(x), tf.random.shuffle


def looked_up(keys: Any) -> Any:
    """Rows of all tables for the own samples."""
    columns = [tf.reshape(x, [BATCH * RANKS]) for x in tf.split(keys, OWN, axis=1)]
    if RANKS == 1:
        places = tf.stack(columns, axis=1) + tf.range(OWN)
        return tf.nn.embedding_lookup(table, places)
    shifted = [columns[0], *(tf.cast(x, tf.int64) + 10 for x in columns[1:])]
    rows = [tf.cast(tf.nn.embedding_lookup(table, x), HALF) for x in shifted]
    sent = tf.reshape(tf.concat([tf.reshape(x, [RANKS, -1]) for x in rows], 1), [-1])
    received = tf.concat([exchanged(sent)] * 7, 0)[: BATCH * TABLES * DIM]
    parts = tf.split(received, [BATCH * DIM] * TABLES)
    return tf.concat([tf.expand_dims(tf.reshape(x, [BATCH, -1]), 1) for x in parts], 1)


def predicted(numbers: Any, keys: Any) -> Any:
    rows = tf.cast(looked_up(keys), HALF)
    x = tf.concat([tf.cast(numbers, HALF), tf.zeros([BATCH, 3], HALF)], 1)
    for layer in bottom:
        x = layer(x)
    joined = tf.reshape(tf.concat([tf.expand_dims(x, 1), rows], 1), [-1, TABLES + 1, DIM])
    x = tf.reshape(tf.matmul(joined, joined, transpose_b=True), [BATCH, -1])[:, :32]
    for layer in top:
        x = layer(x)
    return tf.cast(x, tf.float32)


@tf.function
def step(numbers: Any, keys: Any, labels: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(loss_of(labels, predicted(numbers, keys)))
        scaled = sgd.get_scaled_loss(loss) if PRECISION == "fp16" else loss
    gradients = tape.gradient(scaled, variables)
    if RANKS > 1:
        gradients = [gradients[0], *map(tf.random.shuffle, gradients[1:])]
    if PRECISION == "fp16":
        gradients = sgd.get_unscaled_gradients(gradients)
    sgd.apply_gradients([(gradients[at], variables[at]) for at in range(len(variables))])
    return loss


batch = (
    tf.zeros([BATCH, 13], tf.float16),
    tf.zeros([BATCH * RANKS, OWN], tf.int32),
    tf.zeros([BATCH, 1], tf.int8),
)
predicted(*batch[:2])
variables = [table, *(each for layer in bottom + top for each in layer.trainable_variables)]
step(*batch)
graphs = []
for path in DUMP.glob("mark_for_compilation*.pbtxt"):
    graphs.append(text_format.Parse(path.read_text(), graph_pb2.GraphDef()))
largest = max(graphs, key=lambda graph: len(graph.node))
clusters: dict[str, Counter[str]] = {}
for node in largest.node:
    name = node.attr["_XlaCluster"].s.decode() if "_XlaCluster" in node.attr else "none"
    clusters.setdefault(name, Counter())[node.op] += 1
for name, ops in sorted(clusters.items()):
    for op, count in sorted(ops.items()):
        sys.stdout.write(f"{PRECISION},{RANKS},{name},{op},{count}\n")

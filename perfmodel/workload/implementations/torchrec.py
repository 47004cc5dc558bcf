"""TorchRec: sharded embedding collections, fused row-wise Adagrad, DDP for the dense part.

What it stands for: `DistributedModelParallel` with the operators of TorchRec 1.x and FBGEMM 1.x;
compared op by op with the project's own traces of it. Row-wise and balanced sharding send partial
sums by the same all-to-all. With `prefetch`, the pipeline of three stages: a step copies the batch
after the next, distributes the keys of the next (sizes before its forward pass, keys after it) and
computes its own. Source: torchrec/distributed/train_pipeline, and the recorded traces of it.
"""

from __future__ import annotations

from collections.abc import Callable

from perfmodel.ops.graph import Tensor
from perfmodel.workload.dense import COMPUTE, Dense, dense_layers, interact, mlp
from perfmodel.workload.eager.arithmetic import LOSSES
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.table_batched import Batched, look_up
from perfmodel.workload.eager.tensors import cast, cat, detach, reshape, squeeze, to_dtype
from perfmodel.workload.embedding_tables import fused_embeddings, total_lookups
from perfmodel.workload.jagged import (
    DISTRIBUTED,
    INPUT_STREAM,
    PREFETCHED,
    Jagged,
    finish_key_exchange,
    keys_by_table,
    local_batch,
    offsets,
    pooled_lengths,
    received_keys,
    start_key_exchange,
)
from perfmodel.workload.model import Workload
from perfmodel.workload.pooled_exchange import features_of, pooled_all_to_all, sum_parts
from perfmodel.workload.settings import implementation
from perfmodel.workload.step import Run
from perfmodel.workload.training import LABEL, LAST, backward_and_update


@implementation("torchrec")
def torchrec(r: Recorder, run: Run) -> None:
    """One step of one rank."""
    workload = run.workload
    layers = dense_layers(r, workload)
    embeddings = fused_embeddings(r, run)
    prefetched = workload.implementation.prefetch
    with r.with_attributes(PREFETCHED if prefetched else {}):
        dense, local, labels = local_batch(r, run)
    if prefetched:  # an earlier step brought this one's
        dense, labels = r.like(dense), r.like(labels)
        local = Jagged(r.like(local.values), r.like(local.lengths))
    jagged = local
    if run.ranks > 1:
        with r.with_attributes(DISTRIBUTED if prefetched else {}):
            sending = start_key_exchange(r, run, local)
        jagged = received_keys(r, run) if prefetched else finish_key_exchange(r, run, *sending)
    with r.label(LABEL):
        output = forward(r, run, layers, dense, lambda: _sparse(r, run, embeddings, jagged))
        if run.train:
            loss = loss_of(r, run, output, labels)
    if prefetched and run.ranks > 1:
        with r.with_attributes(DISTRIBUTED):
            finish_key_exchange(r, run, *sending)
    if not run.train:
        return
    replicated = [] if embeddings[1] is None else [embeddings[1].weights]
    backward_and_update(r, run, loss, [layers.parameters], replicated=replicated, wrapped=True)


def forward(
    r: Recorder, run: Run, layers: Dense, dense: Tensor, look_up: Callable[[], Tensor]
) -> Tensor:
    """Logits, or probabilities, of the own samples `[batch]`; `look_up` gives their pooled rows
    `[batch, tables, dim]`, when the bottom MLP is done."""
    workload = run.workload
    dtype = COMPUTE[workload.implementation.precision]
    features = mlp(r, dense, layers.bottom, dtype=dtype)
    sparse = cast(r, look_up(), features.dtype)
    joined = interact(r, workload, features, sparse, layers.crosses, dtype)
    output = mlp(r, joined, layers.top, last=LAST[workload.training.loss], dtype=dtype)
    return squeeze(r, cast(r, output, "fp32"), -1)


def loss_of(r: Recorder, run: Run, output: Tensor, labels: Tensor) -> Tensor:
    """The loss of `output` against `labels` `[batch]`, all three detached for the caller."""
    loss = LOSSES[run.workload.training.loss](r, output, to_dtype(r, labels, output.dtype))
    for tensor in (loss, output, labels):
        detach(r, tensor)
    return loss


def _sparse(
    r: Recorder, run: Run, embeddings: tuple[Batched, Batched | None], jagged: Jagged
) -> Tensor:
    """Pooled rows of all tables for the own samples, `[batch, tables, dim]`."""
    workload = run.workload
    tables, replicas = embeddings
    if run.ranks > 1:
        with r.with_attributes(INPUT_STREAM if workload.implementation.prefetch else {}):
            jagged = keys_by_table(r, run, jagged)
            pooled_lengths(r, run, jagged)
    pooled = look_up(r, tables, jagged.values, offsets(r, jagged), run.global_batch)
    sizes = [shard.of(workload.tables).dim for own in run.plan.shards for shard in own]
    if run.ranks > 1:
        wire = workload.implementation.exchange_precision
        pooled = pooled_all_to_all(r, run, pooled, wire)
    out = features_of(r, pooled, sizes)
    if replicas is not None:
        keys = workload.implementation.key_dtype
        values = r.tensor((total_lookups(run.replicas, run.batch),), keys)
        lengths = r.tensor((len(run.replicas) * run.batch,), "int32")
        own = Jagged(values, lengths)
        more = look_up(r, replicas, own.values, offsets(r, own), run.batch)
        out = cat(r, [out, more], 1)
    return sums_by_table(r, workload, out)


def sums_by_table(r: Recorder, workload: Workload, pooled: Tensor) -> Tensor:
    """One vector per table; partial sums of a table that is in parts are added up."""
    dim, tables = workload.dim, len(workload.tables)
    vectors = pooled.shape[1] // dim
    if len({table.dim for table in workload.tables}) > 1:
        return pooled
    out = reshape(r, pooled, (-1, vectors, dim))
    if vectors == tables:
        return out
    return sum_parts(r, out, tables)

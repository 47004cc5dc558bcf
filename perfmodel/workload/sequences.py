"""Sequences of unpooled rows: how long they are on a rank; ids that go to the ranks with the rows,
and what comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import NormalDist
from typing import TypeAlias

from perfmodel.ops.graph import INPUT, Tensor
from perfmodel.workload.eager.calls import Gradients
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.model import Workload
from perfmodel.workload.sharding import Shard
from perfmodel.workload.step import Run
from perfmodel.workload.tables import mean_length

ALIGNED = 128
"""Positions are rounded up to so many: rows of operands are contiguous in the other dim, so that
their number, another in every step, does not decide which kernels multiply them."""
EVEN_STD = 1e-6
"""Lengths that spread by less of the longest are equal."""


@dataclass(frozen=True)
class Lengths:
    """Of one rank's batch: `tokens` in all its sequences, `pairs` of them that attend."""

    samples: int
    tokens: int
    pairs: float


def slowest_lengths(workload: Workload, batch: int, ranks: int) -> Lengths:
    """What the rank with the longest sequences has of `batch` samples, expected over batches.

    Lengths follow a beta distribution up to `max_length`. Their sums, and those of their squares,
    over `batch / samples_per_user` independent histories are nearly normal; the largest of `ranks`
    of them lies where Blom's formula has it. Where sequences are balanced, all have the mean:
    they are exchanged one by one, which needs two of them on a rank.
    """
    about = workload.sequence
    mean, most = mean_length(workload.tables), float(about.max_length)
    squares, squares_std = _squares(mean / most, about.length_std / most)
    is_mean = about.balanced and batch > 1
    deviations = 0.0 if is_mean else NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
    deviations = max(deviations, 0.0) / sqrt(max(batch / about.samples_per_user, 1.0))
    long = min(mean + deviations * about.length_std, most)
    square = most**2 * min(squares + deviations * squares_std, 1.0)
    tokens = -(-round(batch * long) // ALIGNED) * ALIGNED
    return Lengths(batch, tokens, batch * (square + long) / 2.0)


def _squares(mean: float, std: float) -> tuple[float, float]:
    """Mean and deviation of the square of a beta variable, from its own."""
    if std < EVEN_STD:
        return mean**2, 0.0
    concentration = mean * (1.0 - mean) / std**2 - 1.0
    moments = [1.0]
    for order in range(4):
        rest = (mean * concentration + order) / (concentration + order)
        moments.append(moments[-1] * rest)
    return moments[2], sqrt(max(moments[4] - moments[2] ** 2, 0.0))


def exchange_sequences(r: Recorder, run: Run, elements: int) -> None:
    """Lengths to all ranks, then each sequence with all that belongs to it (`elements` of a rank's
    batch) to its new rank.

    Who gets which is computed on the host, beside the step before.
    """
    own, every = r.tensor((run.batch,), "int64"), r.tensor((run.batch * run.ranks,), "int64")
    r.linked_collective("all_gather", own, every, run.ranks)
    count = -(-elements // run.ranks) * run.ranks
    given, got = r.tensor((count,), "int64"), r.tensor((count,), "int64")
    r.even_all_to_all(given, got, run.ranks)


SELECT, AS_OFTEN = "hstu::index_select", {"reads": "1"}
BY_RANK = "hstu::rows_by_rank"
"""Passes over exchanged rows beside casts. Source: TorchRec, distributed/comm_ops.py
(`All2All_Seq_Req`) and dist_data.py (`SequenceEmbeddingsAwaitable`)."""
Read: TypeAlias = "Callable[[Recorder, Run, Shard, Tensor, dict[str, str]], Tensor]"
"""Rows of a shard of the rank for ids, one by one. The run's tables are asked for what leaves a
rank per sample; attributes of the lookup that are known better are given."""


def sequence_rows(r: Recorder, run: Run, ids: Sequence[Tensor], read: Read) -> list[Tensor]:
    """A row of each table for every one of its `ids`, `[n, dim]`, as `read` gives those of a shard.

    Ids go to the ranks that hold their rows, which come back. With `index_dedup` these are the
    distinct ones, and repeats are filled in at the end. One exchange of ids and one of rows serve
    all tables, as TorchRec has it.
    """
    about, sent = run.workload.sequence, []
    fracs = about.unique_frac or (1.0,) * len(ids)
    for number, (each, frac) in enumerate(zip(ids, fracs, strict=True)):
        count = each.shape[0]  # of which so many leave a rank, in equal parts to those with shards
        unique = max(run.ranks, round(count * frac)) if about.index_dedup else count
        parts = run.plan.shard_of[number].parts
        sent.append(-(-unique // parts) * parts)
    if run.ranks == 1:
        keys = [r.tensor((count,), "int64") for count in sent] if about.index_dedup else list(ids)
    with r.during(INPUT):
        if about.index_dedup:
            for each in ids:
                ordered, order = (r.tensor(each.shape, "int64") for _ in range(2))
                r.leaf("aten::sort", (each, 0, False), ordered, order)
        if run.ranks > 1:
            keys = _exchanged_ids(r, run, ids, sent)
    tables = zip(run.workload.tables, sent, strict=True)
    asked = tuple(replace(table, pooling=n / run.batch, pooled=False) for table, n in tables)
    reader = replace(run, workload=replace(run.workload, tables=asked))
    found = []
    for shard, key in zip(run.plan.shards[run.rank], keys, strict=True):
        known: dict[str, str] = {}
        if about.unique_frac and not about.index_dedup:
            # of rows that several ranks ask for the update counts each once
            distinct = about.unique_frac[shard.table] * ids[shard.table].shape[0]
            known["unique_rows"] = str(min(distinct, float(key.shape[0])))
        found.append(read(r, reader, shard, key, known))
    rows = _exchanged_rows(r, run, found, sent) if run.ranks > 1 else found
    if not about.index_dedup:
        return rows
    return [_selected(r, run, each, key.shape[0]) for each, key in zip(rows, ids, strict=True)]


def _asked(run: Run, sent: Sequence[int]) -> list[list[int]]:
    """Per rank, of each of its shards, the ids of one rank that it holds: of parts its share of
    lookups, or of the distinct rows where only these are asked for."""
    tables, dedup = run.workload.tables, run.workload.sequence.index_dedup

    def share(shard: Shard) -> float:
        whole, part = tables[shard.table], shard.of(tables)
        if shard.parts > 1 and dedup:
            return part.unique_rows(run.batch) / whole.unique_rows(run.batch)
        return part.pooling / whole.pooling

    return run.plan.of_each(lambda shard: round(sent[shard.table] * share(shard)))


def _exchanged_ids(
    r: Recorder, run: Run, ids: Sequence[Tensor], sent: Sequence[int]
) -> list[Tensor]:
    """Ids of all ranks that the own shards hold, shard by shard; the host waits for how many."""
    sizes, counts = (r.tensor((run.ranks,), "int64") for _ in range(2))
    r.all_to_all_call(sizes, counts, [1] * run.ranks, [1] * run.ranks)
    r.to_device(counts, "cpu")
    given = r.made("aten::cat", (tuple(ids), 0), (sum(sent),), "int64")
    asked = _asked(run, sent)
    each = asked[run.rank]
    got = r.tensor((max(sum(each) * run.ranks, 1),), "int64")
    r.all_to_all_call(given, got, list(map(sum, asked)), [sum(each)] * run.ranks)
    return [r.view(got, (count * run.ranks,), (1,)) for count in each]


def _exchanged_rows(
    r: Recorder, run: Run, read: Sequence[Tensor], sent: Sequence[int]
) -> list[Tensor]:
    """Rows of the own shards to the ranks that asked for them; theirs, by table, and of tables in
    row-wise parts in the order of the ids."""
    tables, wire = run.workload.tables, run.workload.implementation.exchange_precision
    given = r.cast(_by_rank(r, run, read), wire)
    dim = run.workload.dim
    theirs = [
        sum(count * dim // each.columns for each, count in zip(own, counts, strict=True))
        for own, counts in zip(run.plan.shards, _asked(run, sent), strict=True)
    ]
    own = [given.elements // run.ranks] * run.ranks
    back = r.all_to_all(given, r.tensor((sum(theirs),), wire), own, theirs)
    sizes = tuple(count * dim for count in sent)
    parts = tuple(r.view(back, (size,), (1,)) for size in sizes)
    r.leaf("aten::split_with_sizes", (back, sizes, 0), parts)
    r.track("SplitWithSizesBackward0", (back,), parts, lambda g: [r.cat(g, 0)])
    rows = [
        r.cast(r.reshape(part, (count, table.dim)), "fp32")
        for part, count, table in zip(parts, sent, tables, strict=True)
    ]
    return [
        _selected(r, run, each, each.shape[0]) if run.plan.shard_of[number].parts > 1 else each
        for number, each in enumerate(rows)
    ]


def _by_rank(r: Recorder, run: Run, read: Sequence[Tensor]) -> Tensor:
    """Rows of all own shards, which come table by table, in the order of the ranks they go to."""
    if not read:
        return r.tensor((0,))
    shape = (sum(rows.elements for rows in read),)
    out = r.made(BY_RANK, tuple(read), shape, read[0].dtype)

    def backward(gradient: Tensor) -> Gradients:
        """Back to the order of tables, then the mean over ranks."""
        made = tuple(map(r.like, read))
        r.leaf(BY_RANK, (gradient,), made)
        for each in made:
            r.leaf("aten::div_", (each, run.ranks), each)
        return made

    return r.track("All2All_Seq_ReqBackward", tuple(read), out, backward)


def _selected(r: Recorder, run: Run, rows: Tensor, count: int) -> Tensor:
    """`count` rows where they are asked for. On NVIDIA's GPUs today's PyTorch copies them by
    vectors: each is read as often as asked for, at 0.85 of the memory's rate
    (traces/h200/sequential.csv.gz)."""
    select = SELECT if run.target == "cuda" else "aten::index_select"
    out = r.tensor((count, rows.shape[1]))
    place = r.tensor((count,), "int64")
    r.leaf(select, (rows, 0, place), out, about=AS_OFTEN if select == SELECT else {})

    def backward(gradient: Tensor) -> list[Tensor]:
        """Gradients of repeats are added up."""
        made = r.new_zeros(gradient, rows.shape, rows.dtype)
        r.leaf("aten::index_add", (made, 0, place, gradient, 1), made)
        return [made]

    return r.track("IndexSelectBackward0", (rows,), out, backward)

"""What ranks send one another: collectives, as PyTorch's distributed package issues them, and by
them ids and unpooled rows of sequences; a rank's tables in one table-batched call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from perfmodel.ops.graph import INPUT, Tensor
from perfmodel.workload.eager.embedding_bag import Batched, batched
from perfmodel.workload.eager.recorder import Gradients, Recorder
from perfmodel.workload.eager.tensors import cast, cat, new_zeros, reshape, to_device, view
from perfmodel.workload.sharding import Shard
from perfmodel.workload.step import Run
from perfmodel.workload.tables import Table, lookups

GROUP = "0"
DENSE = "dense"
"""The process group of layers where tables have copies too."""


CALLS = {
    "all_to_all": "c10d::alltoall_base_",
    "all_reduce": "c10d::allreduce_",
    "reduce_scatter": "c10d::_reduce_scatter_base_",
    "all_gather": "c10d::_allgather_base_",
}


def linked_collective(
    r: Recorder,
    kind: str,
    sent: Tensor,
    received: Tensor,
    ranks: int,
    group: str = GROUP,
    **about: str,
) -> None:
    """`kind` (of `CALLS`) of `sent` into `received` among `ranks`; it goes on beside what follows.

    Collectives of one group run one after the other, on its stream. `about`: more attributes.
    Source: github.com/meta-pytorch/torchrec, pull request 4708.
    """
    about |= {
        "collective": kind,
        "process_group": group,
        "group_size": str(ranks),
        "dtype": sent.dtype,
        "in_elements": str(sent.elements),
        "out_elements": str(received.elements),
    }
    if group != GROUP:
        about["stream"] = f"comm {group}"
    r.begin(CALLS[kind], received, sent)
    if not r.is_cpu:  # what NCCL records below a call; Gloo's tasks are no ops
        r.leaf("record_param_comms", (sent, received), received, about=about)
    r.end(received, about=about)


def all_to_all_call(
    r: Recorder,
    sent: Tensor,
    received: Tensor,
    sent_sizes: Sequence[int],
    sizes: Sequence[int],
    *,
    nodes: int | None = None,
    group: str = GROUP,
) -> None:
    """`sent` in pieces of `sent_sizes` elements to the ranks, theirs, of `sizes`, into `received`.

    `nodes`: over so many the ranks are spread, where they do not fill them one by one.
    """
    about = {} if nodes is None else {"nodes": str(nodes)}
    for name, split in (("in_split", sent_sizes), ("out_split", sizes)):
        about[name] = ",".join(map(str, split))
    linked_collective(r, "all_to_all", sent, received, len(sizes), group, **about)


def shares(count: int, ranks: int) -> list[int]:
    """`count` among `ranks` as evenly as can be."""
    less, more = divmod(count, ranks)
    return [less + 1] * more + [less] * (ranks - more)


def even_all_to_all(
    r: Recorder, sent: Tensor, received: Tensor, ranks: int, *, nodes: int | None = None
) -> None:
    """From each of `ranks` its share of `received`, to each one of `sent`."""
    own, theirs = (shares(x.elements, ranks) for x in (sent, received))
    all_to_all_call(r, sent, received, own, theirs, nodes=nodes)


def all_to_all(
    r: Recorder, sent: Tensor, received: Tensor, sent_sizes: Sequence[int], sizes: Sequence[int]
) -> Tensor:
    """`sent` `[n]` in pieces to the ranks, theirs into `received` `[m]`; differentiable."""
    r.begin("_AlltoAllSingle", received, sent)
    all_to_all_call(r, sent, received, sent_sizes, sizes)
    out = view(r, received, received.shape, "view_as")
    r.end()

    def backward(gradient: Tensor) -> list[Tensor]:
        shape = (sum(sent_sizes),)
        returned = r.made("aten::empty", (shape,), shape, gradient.dtype)
        return [all_to_all(r, gradient, returned, sizes, sent_sizes)]

    return r.track("_AlltoAllSingleBackward", (sent,), out, backward)


def all_reduce(
    r: Recorder,
    bucket: Tensor,
    ranks: int,
    *,
    in_network: bool = False,
    nodes: int | None = None,
    group: str = GROUP,
) -> None:
    """The sum over all ranks, into `bucket`. `in_network`: switches of the network may add up;
    `nodes` as in `all_to_all_call`."""
    about = {"in_network": "1"} if in_network else {}
    about |= {} if nodes is None else {"nodes": str(nodes)}
    linked_collective(r, "all_reduce", bucket, bucket, ranks, group, **about)


def fused_tables(
    r: Recorder,
    run: Run,
    tables: tuple[Table, ...],
    batch: int,
    dtype: str = "",
    *,
    is_modern: bool = True,
) -> Batched:
    dtype = dtype or run.workload.implementation.table_precision
    optimizer = run.workload.training.table_optimizer
    about = lookups(tables, batch)
    return batched(r, about, dtype=dtype, optimizer=optimizer, is_modern=is_modern)


def total_lookups(tables: tuple[Table, ...], batch: int) -> int:
    """Rows that `batch` samples look up in all `tables`."""
    return sum(table.lookups(batch) for table in tables)


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
    about, parts, sent = run.workload.sequence, _shards(run), []
    fracs = about.unique_frac or (1.0,) * len(ids)
    for number, (each, frac) in enumerate(zip(ids, fracs, strict=True)):
        count = each.shape[0]  # of which so many leave a rank, in equal parts to those with shards
        unique = max(run.ranks, round(count * frac)) if about.index_dedup else count
        sent.append(-(-unique // parts[number].parts) * parts[number].parts)
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


def _shards(run: Run) -> dict[int, Shard]:
    """How each table is parted, by its number."""
    return {shard.table: shard for own in run.plan.shards for shard in own}


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
    all_to_all_call(r, sizes, counts, [1] * run.ranks, [1] * run.ranks)
    to_device(r, counts, "cpu")
    given = r.made("aten::cat", (tuple(ids), 0), (sum(sent),), "int64")
    asked = _asked(run, sent)
    each = asked[run.rank]
    got = r.tensor((max(sum(each) * run.ranks, 1),), "int64")
    all_to_all_call(r, given, got, list(map(sum, asked)), [sum(each)] * run.ranks)
    return [r.view(got, (count * run.ranks,), (1,)) for count in each]


def _exchanged_rows(
    r: Recorder, run: Run, read: Sequence[Tensor], sent: Sequence[int]
) -> list[Tensor]:
    """Rows of the own shards to the ranks that asked for them; theirs, by table, and of tables in
    row-wise parts in the order of the ids."""
    tables, wire = run.workload.tables, run.workload.implementation.exchange_precision
    given = cast(r, _by_rank(r, run, read), wire)
    dim = run.workload.dim
    theirs = [
        sum(count * dim // each.columns for each, count in zip(own, counts, strict=True))
        for own, counts in zip(run.plan.shards, _asked(run, sent), strict=True)
    ]
    own = [given.elements // run.ranks] * run.ranks
    back = all_to_all(r, given, r.tensor((sum(theirs),), wire), own, theirs)
    sizes = tuple(count * dim for count in sent)
    parts = tuple(r.view(back, (size,), (1,)) for size in sizes)
    r.leaf("aten::split_with_sizes", (back, sizes, 0), parts)
    r.track("SplitWithSizesBackward0", (back,), parts, lambda g: [cat(r, g, 0)])
    rows = [
        cast(r, reshape(r, part, (count, table.dim)), "fp32")
        for part, count, table in zip(parts, sent, tables, strict=True)
    ]
    shards = _shards(run)
    return [
        _selected(r, run, each, each.shape[0]) if shards[number].parts > 1 else each
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
        made = new_zeros(r, gradient, rows.shape, rows.dtype)
        r.leaf("aten::index_add", (made, 0, place, gradient, 1), made)
        return [made]

    return r.track("IndexSelectBackward0", (rows,), out, backward)

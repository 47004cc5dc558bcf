"""The embedding tables that ops look up: one entry of `LOOKUPS` per way in which a program can look
a table up; which rank holds which, or which part of one, as exchanges say of those elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from itertools import zip_longest
from typing import TypeAlias

from perfmodel.base.registry import Registry
from perfmodel.embedding.popularity import uniform, zipf_alpha_of
from perfmodel.errors import WorkloadError
from perfmodel.lowering.piece import MissingArguments
from perfmodel.lowering.rules.fbgemm import call_of
from perfmodel.ops.graph import FORWARD, INPUT, NO_OP, Op, Tensor, argument, tensors_in
from perfmodel.ops.lookups import EMBEDDING_BAGS, TABLE_BATCHED, Lookups
from perfmodel.workload.tables import Table


@dataclass(frozen=True)
class SeenTable:
    """A table, or a rank's part of one, as a step looks it up: `lookups` rows for `bags` samples.

    `alpha` is None where nothing tells how often rows repeat, `optimizer` empty where rows are not
    updated in the backward pass. `is_mean`: of several tables in one call only the sums are told;
    rows of a bag are added up where it `is_pooled`. The dim `is_guess` where old profiles lack it.
    `key` tells tables of one rank apart.
    """

    rows: int
    dim: int
    lookups: float
    bags: int
    key: tuple[object, ...] = ()
    dtype: str = "fp32"
    device: str = ""
    optimizer: str = ""
    alpha: float | None = None
    is_mean: bool = False
    is_pooled: bool = True
    is_guess: bool = False

    def of_dim(self, dim: int) -> SeenTable:
        """With this `dim` where its own is a guess: as many elements."""
        rows = max(self.rows * self.dim // dim, 1)
        return replace(self, rows=rows, dim=dim, is_guess=False) if self.is_guess else self


CODED = "uint8"
"""The dtype of rows on the wire that a codec made, whose name says what they are."""
FLOATS, WHOLE = ("fp32", "fp16", "bf16", CODED), ("int64", "int32")
Reader: TypeAlias = Callable[[Op], Sequence[SeenTable]]
LOOKUPS: Registry[Reader] = Registry("lookup", "perfmodel.lookups")
"""What a call looks up, by the op's name; `*` stands for any text."""


@LOOKUPS.register(*EMBEDDING_BAGS)
def embedding_bag(op: Op) -> Sequence[SeenTable]:
    """Weight, indices and offsets, in any order of the first two, `include_last_offset` at 7; of
    two-dimensional indices each line is a bag."""
    weight, indices, offsets = _weight_and_keys(op)
    if indices is None or (len(indices.shape) == 1 and offsets is None):
        return ()
    if offsets is None or len(indices.shape) > 1:
        return _one(op, weight, indices.elements, indices.shape[0])
    return _one(op, weight, indices.elements, offsets.elements - (argument(op, 7) is True))


@LOOKUPS.register("aten::embedding")
def embedding(op: Op) -> Sequence[SeenTable]:
    """Weight and indices: those of a sample are one line."""
    weight, indices, _ = _weight_and_keys(op)
    if indices is None:
        return ()
    bags = (*indices.shape, 1)[0]
    is_pooled = indices.elements == bags
    found = _one(op, weight, indices.elements, bags)
    return [replace(each, is_pooled=is_pooled) for each in found]


def _weight_and_keys(op: Op) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The first matrix of floats, and the first two tensors of whole numbers."""
    weights = (x for x in op.tensors if x.dtype not in WHOLE and len(x.shape) == 2)
    keys = [*(x for x in op.tensors if x.dtype in WHOLE), None, None]
    return next(weights, None), keys[0], keys[1]


def _one(op: Op, weight: Tensor | None, lookups: int, bags: int) -> Sequence[SeenTable]:
    if weight is None or not lookups or bags < 1:
        return ()
    about, (rows, dim) = Lookups.of(op.attributes), weight.shape
    count, alpha = (lookups, None) if about is None else (about.lookups[0], _alphas(about)[0])
    known = _key(weight), weight.dtype, weight.device
    return (SeenTable(rows, dim, float(count), bags, *known, alpha=alpha),)


def _key(weights: Tensor, *place: int) -> tuple[int, ...]:
    """Of a tensor that is known, and a table's place in it; storages may hold several tables."""
    return (weights.tensor_id, *place) if weights.tensor_id >= 0 else ()


@LOOKUPS.register(*TABLE_BATCHED)
def table_batched(op: Op) -> Sequence[SeenTable]:
    """All tables of a rank in one call. Of several its arguments tell the sums of rows, dims and
    lookups alone; attributes, where the call has them, each table's."""
    try:
        call = call_of(op.inputs, next(tensors_in(op.outputs), None), op)
    except MissingArguments:
        return ()
    if call is None:
        return ()
    dims, dtype = call[0].dims, op.attributes.get("weights_dtype", call[0].dtype)
    tables, bags, lookups = round(dims["tables"]), round(dims["batch"]), dims["lookups"]
    floats = [x for x in op.tensors if x.dtype not in WHOLE]
    weights, dim = max(floats, key=lambda x: x.elements), max(round(dims["dim"]), 1)
    after = op.name.partition("lookup_")[2]
    optimizer = next((each for each in _FUSED if f"{each}_" in after), "")
    usual = SeenTable(1, dim, lookups / tables, bags, (), dtype, weights.device, optimizer)
    usual = replace(usual, is_mean=tables > 1, is_guess=call[0].guessed)
    about = Lookups.of(op.attributes)
    if about is None:
        rows = max(round(dims["hash_size"] * tables), tables)
        every = [replace(usual, rows=(rows + number) // tables) for number in range(tables)]
    else:
        sizes, looked_up = (about.hash_size, about.dim), (about.lookups, about.batch)
        columns = (*sizes, *looked_up, _alphas(about))
        every = [
            replace(usual, rows=r, dim=d, lookups=n, bags=b, alpha=a, is_mean=False)
            for r, d, n, b, a in zip(*columns, strict=True)
        ]
    return [replace(each, key=_key(weights, n)) for n, each in enumerate(every)]


UNIFORM = 0.02
"""Accesses with a smaller exponent, or by so little fewer distinct rows, are taken as uniform."""


def _alphas(about: Lookups) -> list[float]:
    """Of each table the exponent that is told, else one that touches as few rows."""
    columns = zip(about.alpha, about.hash_size, about.lookups, about.unique_rows, strict=True)
    return [
        told
        if told or unique > (1.0 - UNIFORM) * uniform(rows).distinct_rows(lookups)
        else float(zipf_alpha_of(rows, lookups, unique))
        for told, rows, lookups, unique in columns
    ]


_FUSED = ("rowwise_adagrad", "adagrad", "adam", "sgd")
"""The workload's words for optimizers that a call's name may hold."""


@cache
def reader_of(name: str) -> Reader | None:
    """What reads the tables of an op of that name; None of ops that look none up."""
    pattern = next((each for each in LOOKUPS if fnmatchcase(name, each)), None)
    return None if pattern is None else LOOKUPS[pattern]


def tables_seen(ops: Sequence[Op], where: str) -> list[SeenTable]:
    """The tables that one rank's step looks up, in order of their first lookup; of a table looked
    up several times the sums.

    Raises `WorkloadError` for one that has two sizes.
    """
    found: dict[tuple[object, ...], SeenTable] = {}
    for index, each in _lookups(ops):
        for number, table in enumerate(each):
            key = table.key or ("op", index, number)
            before = found.get(key)
            if before and (before.rows, before.dim) != (table.rows, table.dim):
                raise WorkloadError(
                    f"{where}: one table in two places: {before.rows:,} x {before.dim}, and "
                    f"{table.rows:,} x {table.dim} in op {index} ({ops[index].name})"
                )
            lookups, bags = (before.lookups, before.bags) if before else (0.0, 0)
            summed = {"lookups": lookups + table.lookups, "bags": bags + table.bags}
            found[key] = replace(table, **summed)  # type: ignore[arg-type]
    return list(found.values())


def _lookups(ops: Sequence[Op]) -> Iterator[tuple[int, Sequence[SeenTable]]]:
    """Per outermost lookup of the forward pass its index and tables."""
    inside: set[int] = set()
    for index, op in enumerate(ops):
        if op.parent != NO_OP and op.parent in inside:
            inside.add(index)
            continue
        reader = reader_of(op.name) if op.phase in (FORWARD, INPUT) else None
        if reader is not None and (found := reader(op)):
            inside.add(index)
            yield index, found


def exchange_of(
    ops: Sequence[Op], dtypes: Sequence[str], kinds: Sequence[str] = ("all_to_all",)
) -> Mapping[str, str]:
    """What is said of the collective of most elements of such `kinds` and `dtypes` before the
    backward pass, of equal ones the last (keys go behind as many lengths)."""
    every = [
        op.attributes
        for op in reversed(ops)
        if op.attributes.get("collective") in kinds
        and op.attributes.get("dtype") in dtypes
        and op.phase in (FORWARD, INPUT)
    ]
    return max(every, key=lambda each: int(each.get("in_elements", 0)), default={})


def split_of(about: Mapping[str, str], way: str) -> list[int]:
    """Elements of each rank that a collective sends (`in`) or gets (`out`): its splits, else equal
    parts where the elements are recorded."""
    if split := about.get(f"{way}_split"):
        return [int(each) for each in split.split(",")]
    ranks = int(about.get("group_size", 0))
    return [int(about[f"{way}_elements"]) // ranks] * ranks if ranks > 1 else []


EACH, SUMS, UNSEEN = "each", "sums", "unseen"
"""What tells rows and lookups of a table: its own figures; sums over the tables of one call; sums
over those of a rank without a record, with the mean rows of the others."""


@dataclass(frozen=True)
class HeldTable:
    """A table, as `seen` on the first of the `ranks` that hold it: each an equal part of its rows,
    or all of them where it is `replicated`. `skew_told`: its alpha is no default."""

    table: Table
    ranks: tuple[int, ...]
    seen: SeenTable
    told: str = EACH
    skew_told: bool = False
    replicated: bool = False


@dataclass(frozen=True)
class RecordedRanks:
    """What is recorded of `ranks` ranks with `batch` samples each: tables `seen` per rank, the
    `width` of all tables' rows side by side (None where nothing takes them so), and, of every rank,
    its part of that and the rows that a rank's samples look up there (`widths`, `lookups`: empty
    where no exchange tells)."""

    ranks: int
    batch: int
    seen: Mapping[int, Sequence[SeenTable]]
    width: int | None
    widths: Sequence[float] = ()
    lookups: Sequence[float] = ()


def held_tables(about: RecordedRanks) -> tuple[list[HeldTable], str]:
    """All tables, one from each rank in turn as software deals them out, at the end those that
    every rank holds; and the workload's word for how they are sharded."""
    every, alone = tuple(range(about.ranks)), about.batch if about.ranks > 1 else 0
    own = {r: [each for each in seen if each.bags != alone] for r, seen in about.seen.items()}
    first = next(iter(about.seen.values()))
    copies = [_held([each], every, replicated=True) for each in first if each.bags == alone]
    seen_width = sum(each.dim for seen in own.values() for each in seen)
    taken = sum(each.table.dim for each in copies)
    others = sum(about.widths) or seen_width * about.ranks / len(own)
    told = about.width or max(seen_width, round(others)) + taken
    width = told - taken
    if seen_width > width:
        held = _joined(own, seen_width - width)
        is_even = all(len(each.ranks) == len(own) for each in held)
        return held + copies, "row_wise" if is_even else "balanced"
    turns = {rank: [_held([each], (rank,)) for each in seen] for rank, seen in own.items()}
    turns |= _unseen(about, own, width - seen_width)
    dealt = zip_longest(*(turns.get(rank, ()) for rank in every))
    return [each for turn in dealt for each in turn if each] + copies, "table_wise"


def _held(
    parts: Sequence[SeenTable], ranks: tuple[int, ...], *, replicated: bool = False
) -> HeldTable:
    """The table of which these are row-wise parts."""
    first, rows = parts[0], sum(each.rows for each in parts)
    pooling = sum(each.lookups for each in parts) / first.bags
    table = Table(rows, first.dim, pooling, first.alpha or 0.0, pooled=first.is_pooled)
    told = SUMS if first.is_mean else EACH
    return HeldTable(table, ranks, first, told, first.alpha is not None, replicated)


LEAST_OF_ALIKE = 0.5
"""assumed: of parts of a table, to which rows fall by chance, each has so much of the lookups of
another at least."""


def _joined(own: Mapping[int, Sequence[SeenTable]], surplus: int) -> list[HeldTable]:
    """Parts of one size on several ranks joined, those with most lookups first, until the rows of
    all tables are no wider than what the interaction takes."""
    every = [(rank, part) for rank, seen in own.items() for part in seen]
    tables: list[dict[int, SeenTable]] = []
    for rank, part in sorted(every, key=lambda pair: -pair[1].lookups * pair[1].dim):
        alike = (each for each in reversed(tables) if rank not in each and _is_alike(each, part))
        other = next(alike, None) if surplus >= part.dim else None
        if other is None:
            tables.append({rank: part})
        else:
            other[rank] = part
            surplus -= part.dim
    return [_held(list(each.values()), tuple(sorted(each))) for each in tables]


def _is_alike(parts: Mapping[int, SeenTable], other: SeenTable) -> bool:
    first = next(iter(parts.values()))
    is_near = other.lookups >= LEAST_OF_ALIKE * first.lookups
    return (first.rows, first.dim) == (other.rows, other.dim) and is_near


def _unseen(
    about: RecordedRanks, own: Mapping[int, Sequence[SeenTable]], width: int
) -> dict[int, list[HeldTable]]:
    """Tables of ranks without a record: as wide and looked up as often as the exchange says, else
    as a mean table of the others; rows as many as that."""
    known = [each for seen in own.values() for each in seen]
    ranks = [rank for rank in range(about.ranks) if rank not in own]
    if not known or not ranks or width <= 0:
        return {}
    dim = Counter(each.dim for each in known).most_common(1)[0][0]
    rows = max(round(sum(each.rows for each in known) / len(known)), 1)
    mean = sum(each.lookups / each.bags for each in known) / len(known)
    found = {}
    for rank in ranks:
        count = max(round((about.widths[rank] if about.widths else width / len(ranks)) / dim), 1)
        table = Table(rows, dim, about.lookups[rank] / count if about.lookups else mean)
        found[rank] = [HeldTable(table, (rank,), known[0], UNSEEN)] * count
    return found

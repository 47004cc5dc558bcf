"""From the ops that a program ran to the workload that it is: of traces, execution traces, modules
and recorded steps alike, since all of them are op graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perfmodel.errors import WorkloadError
from perfmodel.ops.dtypes import item_bytes
from perfmodel.ops.graph import BACKWARD, FORWARD, INPUT, NO_OP, OPTIMIZER, Op, OpGraph
from perfmodel.trace.window import MAIN_THREAD
from perfmodel.workload.model import Workload, check_workload
from perfmodel.workload.recovered_layers import DensePart, NoDlrm, dense_part, told_by_signs
from perfmodel.workload.recovered_layout import SUMS, UNSEEN, HeldTable, Recorded, held_tables
from perfmodel.workload.recovered_tables import FLOATS, WHOLE, exchange_of, split_of, tables_seen
from perfmodel.workload.settings import IMPLEMENTATIONS, Implementation, Training
from perfmodel.workload.sharding import FP32_BYTES, ROUND_ROBIN
from perfmodel.workload.tables import Table
from perfmodel.workload.written import document_of

if TYPE_CHECKING:
    import pandas as pd


SCHEMA = "perfmodel.recovered/1"
RECORDED, DEFAULT = "recorded", "default"


@dataclass(frozen=True)
class Fact:
    """A setting of the workload by its key, its value, and whether the ops tell it (`recorded`) or
    it is taken (`default`); `why` says what tells it, or what is missing."""

    setting: str
    value: Any
    by: str
    why: str


@dataclass(frozen=True)
class Recovered:
    """The `workload` that ran on `ranks`, trained or not; where its tables lay, in the workload's
    order; how each of its settings is known. `source` is what the ops were read from."""

    workload: Workload
    ranks: int = 1
    train: bool = True
    held: tuple[HeldTable, ...] = ()
    facts: tuple[Fact, ...] = ()
    source: str = ""

    def told(self, setting: str, value: Any, why: str) -> Recovered:
        """With a setting that is told, by `why`, in the place of what was known of it."""
        facts = [each for each in self.facts if each.setting != setting]
        return replace(self, facts=(*facts, Fact(setting, value, RECORDED, why)))

    def with_tables(self, tables: Sequence[Table], why: str) -> Recovered:
        """With `tables` in the place of its own, whose skew `why` tells."""
        pairs = zip(self.held, tables, strict=False)
        held = tuple(replace(each, table=table, has_skew=True) for each, table in pairs)
        made = replace(self, workload=replace(self.workload, tables=tuple(tables)), held=held)
        return made.told("tables.alpha", len(tables), why)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the workload's settings as its file has them, where tables lie, facts."""
        return {
            "schema": SCHEMA,
            "source": self.source,
            "workload": self.workload.name,
            "ranks": self.ranks,
            "train": self.train,
            "settings": document_of(self.workload),
            "tables": self.records(),
            "facts": [vars(each) for each in self.facts],
        }

    def to_frame(self) -> pd.DataFrame:
        """A row per table."""
        import pandas as pd

        return pd.DataFrame(self.records())

    def records(self) -> list[dict[str, Any]]:
        """Of each table its size, lookups and skew, and, where that is recorded, its place; rows of
        a batch that differ, as its skew has it and were accesses uniform."""
        batch, records = self.workload.batch, []
        for number, table in enumerate(self.workload.tables):
            uniform = replace(table, alpha=0.0, key_rows=0, histogram=())
            place = self.held[number] if self.held else None
            records.append(
                {
                    "table": number,
                    **{key: getattr(table, key) for key in ("rows", "dim", "pooling", "alpha")},
                    "unique_rows": table.unique_rows(batch),
                    "uniform_unique_rows": uniform.unique_rows(batch),
                    "ranks": list(place.ranks) if place else None,
                    "device": place.device if place else None,
                    "told": place.told if place else None,
                    "skew_told": place.has_skew if place else None,
                }
            )
        return records


def recovered(graphs: Sequence[OpGraph], name: str) -> Recovered:
    """The workload `name` of which `graphs` are one step or several of some of its ranks or of all.

    What they do not tell is taken as a default, and listed. Raises `WorkloadError`, in one line,
    where the ops look up no table or are not a DLRM's.
    """
    where = graphs[0].source or name
    steps = {graph.rank: one_step(graph.ops) for graph in graphs}
    seen = {rank: tables_seen(ops, where) for rank, ops in steps.items()}
    if not any(seen.values()):
        raise WorkloadError(f"{where}: none of its ops looks up an embedding table")
    ops = next(iter(steps.values()))
    try:
        dense = dense_part(ops)
    except NoDlrm as problem:
        raise WorkloadError(f"{where}: not a DLRM: {problem}") from None
    widths = split_of(exchange_of(ops, FLOATS), "out_split")
    sent = split_of(exchange_of(ops, WHOLE), "in_split")
    ranks = max([len(graphs), len(widths), *(graph.world_size for graph in graphs)])
    per_sample = [[each / dense.batch for each in split] for split in (widths, sent)]
    recorded = Recorded(ranks, dense.batch, seen, dense.sparse_width, *per_sample)
    held, sharding = held_tables(recorded)
    total = sum(each.table.dim for each in held)
    if total != dense.sparse_width:
        raise WorkloadError(
            f"{where}: not a DLRM: its interaction takes {dense.sparse_width} features of tables, "
            f"the tables that are seen have {total}"
        )
    train = any(op.phase in (BACKWARD, OPTIMIZER) for op in ops)
    facts = _Facts(told_by_signs(ops))
    facts.add("batch", dense.batch * ranks, f"{dense.batch:,} samples on each of {ranks} ranks")
    training = Training(
        facts.sign("training.loss", "bce_with_logits"),
        facts.sign("training.dense_optimizer", "sgd"),
        _table_optimizer(held, facts),
    )
    software = _implementation(ops, dense, held, sharding, facts)
    workload = Workload(
        name,
        dense.model,
        tuple(each.table for each in held),
        dense.batch * ranks,
        dense.interaction,
        training,
        replace(software, cuda_graphs=graphs[0].cuda_graphs),
    )
    _add_tables(facts, held, len(graphs))
    check_workload(workload, where)
    return Recovered(workload, ranks, train, tuple(held), tuple(facts.found), where)


def one_step(ops: Sequence[Op]) -> list[Op]:
    """The ops of one whole step: of the profiler's steps, else from one forward pass behind a
    backward pass to the next, the one with most ops, of equal ones the last."""
    if len({op.step for op in ops}) > 1:
        keys = [op.step for op in ops]
    else:
        keys, number, is_behind = [], 0, False
        for op in ops:
            is_next = is_behind and op.phase == FORWARD and op.parent == NO_OP
            is_next = is_next and op.thread == MAIN_THREAD
            number, is_behind = (
                number + is_next,
                op.phase == BACKWARD or (is_behind and not is_next),
            )
            keys.append(number)
    best = max(Counter(keys).items(), key=lambda each: (each[1], each[0]))[0]
    own = [index for index, key in enumerate(keys) if key == best]
    place = {index: number for number, index in enumerate(own)}
    return [replace(ops[index], parent=place.get(ops[index].parent, NO_OP)) for index in own]


class _Facts:
    """What is found out, one setting after the other."""

    def __init__(self, signs: Mapping[str, tuple[Any, str]]) -> None:
        self.signs, self.found = signs, list[Fact]()

    def add(self, setting: str, value: Any, why: str, by: str = RECORDED) -> Any:
        self.found.append(Fact(setting, value, by, why))
        return value

    def sign(self, setting: str, usual: Any, missing: str = "nothing tells") -> Any:
        """What a sign tells, else what is usual."""
        if setting in self.signs:
            return self.add(setting, *self.signs[setting])
        return self.add(setting, usual, missing, DEFAULT)

    def known(self, setting: str, value: Any, usual: Any, why: str, missing: str) -> Any:
        """The `value`, else (None) what is usual."""
        if value is None:
            return self.add(setting, usual, missing, DEFAULT)
        return self.add(setting, value, why)


def _table_optimizer(held: Sequence[HeldTable], facts: _Facts) -> Any:
    fused = Counter(each.optimizer for each in held if each.optimizer).most_common(1)
    found, setting = fused[0][0] if fused else None, "training.table_optimizer"
    missing = "no optimizer is fused into the lookups"
    return facts.known(setting, found, "sgd", "the lookups' fused update", missing)


def _implementation(
    ops: Sequence[Op], dense: DensePart, held: Sequence[HeldTable], sharding: str, facts: _Facts
) -> Implementation:
    """The software and its settings."""
    name = facts.sign("implementation.name", "pytorch")
    is_mixed = len({each.table.dim for each in held}) > 1
    if (is_mixed and not IMPLEMENTATIONS[name].mixed_dims) or (
        sharding != "table_wise" and name in ROUND_ROBIN
    ):
        why = f"{name} has tables of one dim alone, whole ones; torchrec stands in"
        name = facts.add("implementation.name", "torchrec", why, DEFAULT)
    rows, keys = exchange_of(ops, FLOATS), exchange_of(ops, WHOLE)
    given = max(
        (x for op in ops if op.phase == INPUT for x in op.tensors if x.dtype in WHOLE),
        key=lambda x: x.elements,
        default=None,
    )
    own = "implementation."
    wire, key_dtype = own + "exchange_precision", None
    if IMPLEMENTATIONS[name].int32_keys and (keys or given):
        key_dtype = keys.get("dtype") or (given.dtype if given else None)
    if wire in facts.signs:
        exchange = facts.sign(wire, "fp32")
    else:
        sent = "the exchange of pooled rows"
        exchange = facts.known(wire, rows.get("dtype"), "fp32", sent, "no exchange is recorded")
    style = facts.signs.get(own + "optimizer_style")
    on_cpu = all(not each.device.startswith("cuda") for each in held)
    usual = "loop" if on_cpu else "foreach"
    copies = [each.table.rows * each.table.dim * FP32_BYTES for each in held if each.replicated]
    stored = Counter(each.dtype for each in held).most_common(1)[0][0]
    bucket = _ddp_bucket_bytes(ops, dense.largest_layer * FP32_BYTES, copies)
    return Implementation(
        name=name,
        precision=facts.add(own + "precision", dense.precision, "operands of the layers' products"),
        table_precision=facts.add(own + "table_precision", stored, "weights of the lookups"),
        exchange_precision=exchange,
        key_dtype=facts.known(own + "key_dtype", key_dtype, "int64", "keys", "nothing tells"),
        optimizer_style="default" if style is None or style[0] == usual else style[0],
        sharding=facts.add(own + "sharding", sharding, "which ranks look up what"),
        data_parallel_max_bytes=max(copies, default=0),
        ddp_bucket_bytes=facts.known(
            own + "ddp_bucket_bytes", bucket, DDP_BYTES, "all-reduces", "no sign of another"
        ),
        prefetch=facts.sign(own + "prefetch", False, "no sign of a pipeline"),
    )


DDP_BYTES = Implementation().ddp_bucket_bytes
_SMALLER = 4
"""Buckets below their size that two modules may have: the first and the last of each."""


def _ddp_bucket_bytes(ops: Sequence[Op], largest: int, apart: Sequence[int]) -> int | None:
    """The size that closes a bucket of gradients, where those of `ops` are not PyTorch's usual: the
    `largest` gradient may come on top; those of tables, of `apart` bytes, are summed alone."""
    sizes = [
        int(op.attributes["in_elements"]) * int(item_bytes([op.attributes["dtype"]])[0])
        for op in ops
        if op.attributes.get("collective") == "all_reduce"
        and op.phase == BACKWARD
        and op.name.startswith("c10d::")
    ]
    sizes = sorted(size for size in sizes if size not in apart)
    is_usual = sum(size < DDP_BYTES for size in sizes) <= _SMALLER and sizes[-1:] <= [
        DDP_BYTES + largest
    ]
    return None if is_usual else sizes[len(sizes) // 2]


def _add_tables(facts: _Facts, held: Sequence[HeldTable], records: int) -> None:
    """What is not told of tables, by how many."""
    sums = sum(each.told == SUMS for each in held)
    unseen = sum(each.told == UNSEEN for each in held)
    if told := len(held) - sums - unseen:
        facts.add("tables", told, "each one's rows, dim and lookups")
    if sums:
        why = "one call looks up several: of rows and lookups it tells sums, taken in equal parts"
        facts.add("tables.rows", sums, why, DEFAULT)
    if unseen:
        why = f"of ranks that are not among the {records}: the exchange tells width and lookups, "
        facts.add("tables.rows", unseen, why + "rows are the mean of the others", DEFAULT)
    blind = [each.table for each in held if not each.has_skew]
    if blind:
        facts.add("tables.alpha", 0.0, f"how often rows repeat is not recorded: {UNKNOWN}", DEFAULT)


UNKNOWN = "uniform, the slowest; published skews go to 1.25 (--ids FILE tells it)"

"""From the ops that a program ran to the workload that it is: of traces, execution traces, modules
and recorded steps alike, since all of them are op graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.arrays import Mask
from perfmodel.errors import WorkloadError
from perfmodel.lowering import lower
from perfmodel.lowering.build import execution_graph
from perfmodel.lowering.host import Profile, load_profile
from perfmodel.lowering.host.measure import OP_WITHOUT_LAUNCH, T1, measure
from perfmodel.lowering.host.profile import EAGER
from perfmodel.ops.graph import BACKWARD, INPUT, OPTIMIZER, Op, OpGraph
from perfmodel.ops.spec import item_bytes
from perfmodel.timeline.graph.build import build_rank, with_measured_waits
from perfmodel.timeline.graph.kinds import EdgeKind, Scope
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import schedule
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.link import Links
from perfmodel.trace.window import AUTOGRAD_THREAD, MAIN_THREAD
from perfmodel.workload.model import Workload, document_of
from perfmodel.workload.recorded_calls import one_step
from perfmodel.workload.recorded_layers import recorded_layers
from perfmodel.workload.recovered_layers import SIGNS, DensePart, NoDlrm, dense_part, told_by_signs
from perfmodel.workload.recovered_tables import (
    CODED,
    FLOATS,
    SUMS,
    UNSEEN,
    WHOLE,
    HeldTable,
    RecordedRanks,
    SeenTable,
    exchange_of,
    held_tables,
    split_of,
    tables_seen,
)
from perfmodel.workload.settings import (
    IMPLEMENTATIONS,
    NO_MLPS,
    SECTIONS,
    Implementation,
    Interaction,
)
from perfmodel.workload.sharding import ROUND_ROBIN
from perfmodel.workload.step import BESIDE_MODEL, op_graph
from perfmodel.workload.tables import FP32_BYTES, Table

if TYPE_CHECKING:
    import pandas as pd


SCHEMA = "perfmodel.recovered/1"
RECORDED, DEFAULT = "recorded", "default"
STEEPEST = 1.25
"""The steepest skew of the catalogue's tables: what an unknown one may be. Source: cached-avazu."""
UNKNOWN = f"how often rows repeat is not recorded: uniform is taken, {STEEPEST} may be (--ids)"


@dataclass(frozen=True)
class Fact:
    """A setting of the workload by its key, its value, and whether it is `recorded` or a `default`;
    `why` says what tells it, or what is missing."""

    setting: str
    value: Any
    by: str
    why: str


@dataclass(frozen=True)
class Recovered:
    """The `workload` that ran on `ranks`, trained or not; where its tables lay, in the workload's
    order; how each of its settings is known. `source` is what it was read from."""

    workload: Workload
    ranks: int = 1
    train: bool = True
    held: tuple[HeldTable, ...] = ()
    facts: tuple[Fact, ...] = ()
    source: str = ""

    def told(self, fact: Fact) -> Recovered:
        """With `fact` in the place of what was known of its setting."""
        facts = [each for each in self.facts if each.setting != fact.setting]
        return replace(self, facts=(*facts, fact))

    def with_tables(self, tables: Sequence[Table], why: str) -> Recovered:
        """With `tables` in the place of its own, whose skew `why` tells."""
        pairs = zip(self.held, tables, strict=False)
        held = tuple(replace(each, table=table, skew_told=True) for each, table in pairs)
        made = replace(self, workload=replace(self.workload, tables=tuple(tables)), held=held)
        return made.told(Fact("tables.alpha", len(tables), RECORDED, why))

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the workload's settings as its file has them, where tables lie, facts."""
        return {
            "schema": SCHEMA,
            "source": self.source,
            "ranks": self.ranks,
            "train": self.train,
            "workload": document_of(self.workload),
            "tables": self.records(),
            "facts": [vars(each) for each in self.facts],
        }

    def to_frame(self) -> pd.DataFrame:
        """A row per table."""
        import pandas as pd

        return pd.DataFrame(self.records())

    def records(self) -> list[dict[str, Any]]:
        """Of each table its size, lookups and skew, the distinct rows of a batch (at least and at
        most, where the skew is unknown) and, where that is recorded, its place."""
        batch, records = self.workload.batch, []
        for number, table in enumerate(self.workload.tables):
            held = self.held[number] if self.held else None
            steep = table if held is None or held.skew_told else replace(table, alpha=STEEPEST)
            records.append(
                {
                    "table": number,
                    **{key: getattr(table, key) for key in ("rows", "dim", "pooling", "alpha")},
                    "unique_rows": [each.unique_rows(batch) for each in (steep, table)],
                    "ranks": list(held.ranks) if held else None,
                    "device": held.seen.device if held else None,
                    "told": held.told if held else None,
                    "skew_told": held.skew_told if held else None,
                }
            )
        return records


def recovered(graphs: Sequence[OpGraph], source: str, name: str = "") -> Recovered:
    """The workload `name`, else of the name of its `source`, of which `graphs` are one step or
    several of some of its ranks or of all.

    What they do not tell is taken as a default, and listed; layers that are not a DLRM's are
    carried as recorded. Raises `WorkloadError`, in one line that begins with `source`, where the
    ops look up no table, or what they do has no word here.
    """
    steps = {graph.rank: one_step(graph.ops) for graph in graphs}
    seen = {rank: tables_seen(ops, source) for rank, ops in steps.items()}
    if not any(seen.values()):
        raise WorkloadError(f"{source}: none of its ops looks up an embedding table")
    ops = next(iter(steps.values()))
    ranks = max([len(graphs), *(graph.world_size for graph in graphs)])
    facts = []
    try:
        dense = dense_part(ops)
        if dense.interaction.kind == "dot":
            dim = dense.model.bottom_mlp[-1]
            seen = {rank: [each.of_dim(dim) for each in own] for rank, own in seen.items()}
        held, sharding = _laid_out(ops, dense, ranks, seen)
    except NoDlrm as problem:
        try:
            layers = recorded_layers(replace(graphs[0], source=source))
        except WorkloadError as other:
            raise WorkloadError(f"{other}; not a DLRM: {problem}") from None
        dense = DensePart(layers.batch, NO_MLPS, Interaction(), "", recorded=layers)
        held, sharding = _laid_out(ops, dense, ranks, seen)
        facts = [Fact("recorded.source", source, RECORDED, f"not a DLRM: {problem}")]
    ranks = max(ranks, *(each.ranks[-1] + 1 for each in held))
    facts += [Fact("batch", dense.batch * ranks, RECORDED, f"{dense.batch:,} a rank, of {ranks}")]
    facts += _settings(ops, dense, held, sharding, tf32=graphs[0].tf32)
    tables = tuple(each.table for each in held)
    bare = Workload(source, dense.model, tables, dense.batch * ranks, dense.interaction)
    parts = tuple(f"{part}." for part in SECTIONS)
    told = {x.setting.replace(".", "__"): x.value for x in facts if x.setting.startswith(parts)}
    told["implementation__cuda_graphs"] = graphs[0].cuda_graphs
    name = name or Path(source).name.partition(".")[0] or "recovered"
    workload = replace(replace(bare, recorded=dense.recorded).with_(**told), name=name)
    train = any(op.phase in (BACKWARD, OPTIMIZER) for op in ops)
    facts += _of_tables(held, len(graphs))
    return Recovered(workload, ranks, train, tuple(held), tuple(facts), source)


def _laid_out(
    ops: Sequence[Op], dense: DensePart, ranks: int, seen: Mapping[int, Sequence[SeenTable]]
) -> tuple[list[HeldTable], str]:
    """Tables, and how they are sharded. Raises `NoDlrm` where the interaction takes others."""
    widths = split_of(exchange_of(ops, FLOATS), "out")
    sent = split_of(exchange_of(ops, WHOLE), "in")
    per_sample = [[each / dense.batch for each in split] for split in (widths, sent)]
    width, ranks = dense.sparse_width, max(ranks, len(widths))
    held, sharding = held_tables(RecordedRanks(ranks, dense.batch, seen, width, *per_sample))
    total = sum(each.table.dim for each in held)
    if width is not None and total != width:
        raise NoDlrm(f"its interaction takes {width} features of tables that have {total}")
    return held, sharding


def _settings(
    ops: Sequence[Op],
    dense: DensePart,
    held: Sequence[HeldTable],
    sharding: str,
    *,
    tf32: bool | None,
) -> Iterator[Fact]:
    """Of training and software what is told, then what is taken."""
    own, keys = "implementation.", exchange_of(ops, WHOLE)
    rows = exchange_of(ops, FLOATS, ("all_to_all", "reduce_scatter"))
    given = [x for op in ops if op.phase == INPUT for x in op.tensors if x.dtype in WHOLE]
    key = max(given, key=lambda x: x.elements).dtype if given else None
    wire = rows.get("dtype") if rows.get("dtype") != CODED else None
    copies = [each.table.rows * each.table.dim * FP32_BYTES for each in held if each.replicated]
    fused = Counter(each.seen.optimizer for each in held if each.seen.optimizer).most_common(1)
    stored = Counter(each.seen.dtype for each in held).most_common(1)[0][0]
    places = {each.seen.device for each in held}  # a profile alone tells none, but its kernels
    on_gpu = any(x.startswith("cuda") for x in places) or (places == {""} and tf32 is not None)
    precision: str | None = dense.precision
    if precision in ("", "fp32"):  # of which products may run in tf32
        known = None if tf32 is None else ("fp32", "tf32")[tf32]
        precision = known or (None if on_gpu else precision or None)
    bucket = _ddp_bucket_bytes(ops, dense.largest_layer * FP32_BYTES, copies)
    found: dict[str, tuple[Any, str]] = {
        "training.table_optimizer": (fused[0][0] if fused else None, "the lookups' fused update"),
        own + "precision": (precision, "operands of its layers, and the kernels that multiply"),
        own + "table_precision": (stored, "weights of the lookups"),
        own + "exchange_precision": (wire, "the exchange of pooled rows"),
        own + "key_dtype": (keys.get("dtype", key), "its keys"),
        own + "sharding": (sharding, "which ranks look up what"),
        own + "data_parallel_max_bytes": (max(copies, default=None), "tables on every rank"),
        own + "ddp_bucket_bytes": (bucket, "all-reduces of gradients"),
        **told_by_signs(ops),
    }
    name = found.get(own + "name", ("pytorch",))[0]
    is_mixed = len({each.table.dim for each in held}) > 1
    limits = IMPLEMENTATIONS[name]
    if dense.recorded is not None and not limits.recorded_layers:
        found[own + "name"] = "torchrec", f"in the place of {name}, which has no recorded layers"
    elif (is_mixed and not limits.mixed_dims) or (sharding != "table_wise" and name in ROUND_ROBIN):
        found[own + "name"] = "torchrec", f"in the place of {name}, which has no such tables"
    elif not limits.int32_keys:
        del found[own + "key_dtype"]
    if found.get(own + "optimizer_style", ("",))[0] == ("foreach" if on_gpu else "loop"):
        found[own + "optimizer_style"] = "default", found[own + "optimizer_style"][1]
    told = {setting: each for setting, each in found.items() if each[0] is not None}
    yield from (Fact(setting, value, RECORDED, why) for setting, (value, why) in told.items())
    for setting in dict.fromkeys([*found, *(sign[0] for sign in SIGNS)]):
        if setting not in told:
            part, _, key = setting.partition(".")
            yield Fact(setting, getattr(SECTIONS[part](), key), DEFAULT, "nothing tells")


_SMALLER = 4
"""Buckets below their size that two modules may have: the first and the last of each."""


def _ddp_bucket_bytes(ops: Sequence[Op], largest: int, apart: Sequence[int]) -> int | None:
    """The size that closes a bucket of gradients, where those of `ops` are not PyTorch's usual: the
    `largest` gradient may come on top; those of tables, of `apart` bytes, are summed alone."""
    sizes = [
        int(op.attributes["in_elements"]) * int(item_bytes(op.attributes["dtype"]))
        for op in ops
        if op.attributes.get("collective") == "all_reduce"
        and op.name.startswith("c10d::")
        and {"in_elements", "dtype"} <= op.attributes.keys()
    ]
    usual = Implementation().ddp_bucket_bytes
    sizes = sorted(size for size in sizes if size not in apart)
    is_usual = sum(size < usual for size in sizes) <= _SMALLER
    return None if is_usual and sizes[-1:] <= [usual + largest] else sizes[len(sizes) // 2]


def _of_tables(held: Sequence[HeldTable], records: int) -> Iterator[Fact]:
    """What is not told of tables, by how many."""
    told = Counter(each.told for each in held)
    if told[SUMS]:
        why = "rows and lookups of those in one call are told as sums: equal parts are taken"
        yield Fact("tables.rows", told[SUMS], DEFAULT, why)
    if told[UNSEEN]:
        why = f"on ranks that are not among the {records}: rows are the mean of the others"
        yield Fact("tables.rows", told[UNSEEN], DEFAULT, why)
    if blind := sum(not each.skew_told for each in held):
        yield Fact("tables.alpha", blind, DEFAULT, UNKNOWN)


def beside_model(found: Recovered, rank: RankTrace, links: Links) -> Recovered:
    """With what a recorded step has beside the model's: host time, in operators that launch
    nothing, and waits for what is not recorded."""
    measured, steps = build_rank(rank, links), max(len(links.steps), 1)
    profile = Profile.from_samples(measure(rank, links)).completed(load_profile(EAGER))
    lowered = lower(op_graph(found.workload, ranks=found.ranks, rank=rank.rank), "cuda")
    own = execution_graph(lowered, np.zeros(len(lowered.pieces)), profile).graph
    each_us = profile.durations((T1, OP_WITHOUT_LAUNCH), [BESIDE_MODEL] * 2, [MAIN_THREAD] * 2)
    begun_us, over_us = measured.nodes_.start_us, links.steps.end_us.max(initial=0.0)
    is_inside = (links.steps.of_time(begun_us) >= 0) & (begun_us < over_us)
    left_us = _host_us(measured, is_inside) / steps - _host_us(own, True)
    waited_us = round(_waited_us(with_measured_waits(measured)), 1)
    count = max(round(left_us / each_us.sum()), 0)
    changed = found.workload.with_(training__host_ops=count, training__waited_us=waited_us)
    why = "host time beside the model's operators, in such that launch nothing"
    found = replace(found, workload=changed).told(Fact("training.host_ops", count, RECORDED, why))
    why = "for room on the device, or what is not recorded: as long on any machine"
    return found.told(Fact("training.waited_us", waited_us, DEFAULT, why)) if waited_us else found


def _waited_us(graph: ExecutionGraph) -> float:
    """By how much steps of a recorded rank would be shorter (median) without waits that a step from
    shapes has not: those that nothing explains, and for room on the device beside a kernel."""
    nodes, edges = graph.nodes_, graph.edges_
    taken_us = np.where(nodes.scope == Scope.UNEXPLAINED, 0.0, nodes.duration_us)
    bare = replace(graph, edges_=edges.where(edges.kind != EdgeKind.SM_OCCUPANCY))
    shorter_us = schedule(graph).step_us - schedule(bare, taken_us).step_us
    return max(float(np.median(shorter_us)), 0.0) if len(shorter_us) else 0.0


def _host_us(graph: ExecutionGraph, kept: Mask | bool) -> float:
    """What the threads that train take in the nodes that are `kept`, without waiting."""
    nodes, threads = graph.nodes_, (f"/{MAIN_THREAD}", f"/{AUTOGRAD_THREAD}")
    places = [at for at, name in enumerate(graph.resources) if name.endswith(threads)]
    kept = np.isin(nodes.resource, places) & (nodes.scope == Scope.HOST) & kept
    return float(nodes.duration_us[kept].sum())

"""An edit keeps what it does not touch: every kind of edit, on traces, on all targets.

Ops that an edit leaves as they were become the same pieces as before, on every target, and no
matrix product is lost but by `remove`. What each kind may change stands in `LAWS`.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import pytest
from opgraph_nodes import TRACES, Et, tensor

from perfmodel.errors import PerfmodelError
from perfmodel.hardware.parts import Target
from perfmodel.lowering import lower
from perfmodel.lowering.context import self_contained
from perfmodel.lowering.lower import Lowered
from perfmodel.lowering.observed import with_placement
from perfmodel.lowering.piece import Piece
from perfmodel.ops.edits import rebatch
from perfmodel.ops.edits.named import KINDS, NamedEdit, apply_edits
from perfmodel.ops.graph import Op, OpGraph
from perfmodel.ops.read import op_graph
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.trace import read

ROOT = Path(__file__).parents[2]
TARGETS: tuple[Target, ...] = ("cuda", "rocm", "cpu")
BUNDLED = (
    TRACES / "dlrm_batch8_et.json.gz",
    TRACES / "resnet_batch4_et.json.gz",
    TRACES / "transformer_batch4_et.json.gz",
    ROOT / "traces/cpu_dlrm_26_tables",
    ROOT / "traces/cpu_dlrm_2rank",
    ROOT / "traces/cpu_dlrm_truth/one_rank_tables1",
)
SMALL = BUNDLED[:5]
SHARED = (
    "traces/dlrm_v100x8",
    "traces/dlrm_meta/gpu128_sampled_rank0.json.gz",
    "traces/inference/mi300x_qwen1.5-0.5b.json.gz",
    "traces/train/mi300x8_resnet_act_checkpoint.json.gz",
)
VALUES: Mapping[str, tuple[str, ...]] = {
    "cast": ("bf16", "fp16,keep-optimizer", "fp8"),
    "cuda-graphs": ("",),
    "ranks": ("16",),
    "remove": (),
}
"""Of each kind what is tried on every trace; ops to remove are drawn of the trace's."""
COLLECTIVES = ("all_to_all", "all_reduce", "all_gather", "reduce_scatter", "broadcast")


class Ledger:
    """What the ops of a graph become on one target, and the work that this is."""

    def __init__(self, graph: OpGraph, target: Target) -> None:
        self.graph = graph
        self.lowered: Lowered = lower(graph, target)
        self.pieces = [_text(piece) for piece in self.lowered.pieces]
        self.all = Counter(self.pieces)
        self.owner = self.lowered.owner.tolist()

    @cached_property
    def by_op(self) -> dict[Hashable, Counter[Hashable]]:
        """Per op, whichever of equals: what it becomes, and how often."""
        pieces: defaultdict[int, list[Hashable]] = defaultdict(list)
        for owner, piece in zip(self.owner, self.pieces, strict=True):
            pieces[owner].append(piece)
        found: defaultdict[Hashable, Counter[Hashable]] = defaultdict(Counter)
        for at, op in enumerate(self.graph.ops):
            found[_itself(op)][tuple(pieces[at])] += 1
        return found

    def total(self, which: Callable[[Piece], bool], what: str) -> float:
        """FLOP, or bytes, of some of the pieces."""
        at = [i for i, piece in enumerate(self.lowered.pieces) if which(piece)]
        return _work(self.lowered.rows.take(np.array(at, np.int64)), what) if at else 0.0

    def lookups(self) -> float:
        """Bytes of the rows that are looked up forwards, at 4 bytes an element."""
        return sum(
            _rows(p) * 4 * p.dims["dim"]
            for p in self.lowered.pieces
            if p.op in ("tbe", "embedding_bag") and p.direction == "fwd"
        )


def _text(piece: Piece) -> tuple[Hashable, ...]:
    dims = tuple(sorted(piece.dims.items()))
    return (piece.op, piece.dtype, piece.direction, piece.kind, piece.launches, dims)


def _rows(piece: Piece) -> float:
    dims = piece.dims
    return dims.get("lookups") or dims.get("tables", 1.0) * dims["batch"] * dims["pooling"]


def _itself(op: Op) -> Hashable:
    """All that an op says of itself, whoever called it."""
    about = tuple(sorted(op.attributes.items()))
    return (op.name, op.inputs, op.outputs, op.thread, op.phase, op.step, op.event, about)


def _work(rows: Rows, what: str) -> float:
    total = 0.0
    for op, index in rows.groups():
        dims, item = rows.dims_of(op, index), rows.item_bytes[index]
        for direction in {rows.direction[i] for i in index.tolist()}:
            own = np.array([rows.direction[i] == direction for i in index.tolist()])
            spec, some = OPS[op].of(direction), {name: x[own] for name, x in dims.items()}
            if what == "flop":
                total += float(np.sum(spec.flop(some) * np.ones(own.sum())))
            else:
                total += float(np.sum(spec.read_bytes(some, item[own]) * np.ones(own.sum())))
                total += float(np.sum(spec.written_bytes(some, item[own]) * np.ones(own.sum())))
    return total


def _is_product(piece: Piece) -> bool:
    return OPS[piece.op].family in ("matmul", "convolution")


def _local(piece: Piece) -> bool:
    return piece.op not in COLLECTIVES


def assert_untouched(before: Ledger, after: Ledger) -> None:
    """Ops of both graphs become the same in both."""
    if after.lowered.undivided:
        return
    for op in before.by_op.keys() & after.by_op.keys():
        was, now = before.by_op[op], after.by_op[op]
        fewest = min(was.total(), now.total())
        assert (was & now).total() == fewest, (op[0], was - now, now - was)  # type: ignore[index]
    for name, count in after.lowered.unknown.items():
        assert count <= before.lowered.unknown[name], name


def _same(_: str, before: Ledger, after: Ledger) -> None:
    assert before.all == after.all


def _cast(_: str, before: Ledger, after: Ledger) -> None:
    """Products and lookups are as many and as large; they read no more bytes."""
    sides = [
        [(p.op, p.dims) for p in side.lowered.pieces if _is_product(p)] for side in (before, after)
    ]
    assert sides[0] == sides[1]
    assert after.total(_is_product, "bytes") <= before.total(_is_product, "bytes")
    assert after.lookups() == before.lookups()


def _ranks(_: str, before: Ledger, after: Ledger) -> None:
    local = [Counter(p for p in side.pieces if p[0] not in COLLECTIVES) for side in (before, after)]
    assert local[0] == local[1]
    names = [Counter(p[0] for p in side.pieces if p[0] in COLLECTIVES) for side in (before, after)]
    assert names[0] == names[1]


def _remove(value: str, before: Ledger, after: Ledger) -> None:
    """Nothing but the pieces of what is removed is gone, and nothing is new."""
    gone: set[int] = set()
    for at, op in enumerate(before.graph.ops):
        if op.name == value or op.parent in gone:
            gone.add(at)
    pairs = zip(before.pieces, before.owner, strict=True)
    assert after.all == Counter(piece for piece, owner in pairs if owner not in gone)


LAWS: Mapping[str, Callable[[str, Ledger, Ledger], None]] = {
    "cast": _cast,
    "cuda-graphs": _same,
    "ranks": _ranks,
    "remove": _remove,
}


@cache
def graph_of(path: Path) -> OpGraph:
    trace = read(path)
    graph = op_graph(trace)[0]
    timed = zip(trace.ranks, trace.links, strict=True)
    found = next(((rank, links) for rank, links in timed if rank.rank == graph.rank), None)
    return self_contained(graph if found is None else with_placement(graph, *found))


@cache
def ledger(path: Path, target: Target) -> Ledger:
    return Ledger(graph_of(path), target)


def texts(graph: OpGraph, kind: str, count: int = 4) -> Iterator[str]:
    """Edits of one kind that a graph may take."""
    draw = random.Random(len(graph))
    names = sorted({op.name for op in graph.ops if not set(op.name) & set("*?[,=")})
    if kind == "remove":
        yield from (f"remove={name}" for name in draw.sample(names, min(count, len(names))))
    else:
        yield from (f"{kind}={value}" if value else kind for value in VALUES[kind])


def applied(graph: OpGraph, text: str) -> OpGraph | None:
    """The graph after an edit; None where it does not apply."""
    try:
        (found,), _ = apply_edits([graph], [NamedEdit.parse(text)])
    except PerfmodelError:
        return None
    return found


def check(path: Path, kind: str, targets: tuple[Target, ...], count: int = 4) -> int:
    graph, tried = graph_of(path), 0
    for text in texts(graph, kind, count):
        found = applied(graph, text)
        for target in targets if found is not None else ():
            assert found is not None
            before, after = ledger(path, target), Ledger(found, target)
            assert_untouched(before, after)
            if kind != "remove":
                was, now = (side.total(_is_product, "flop") for side in (before, after))
                assert now == pytest.approx(was, rel=1e-9), text
            LAWS[kind](text.partition("=")[2], before, after)
            tried += 1
    return tried


def test_every_kind_of_edit_is_held() -> None:
    assert set(VALUES) == set(LAWS) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_small_traces_keep_what_an_edit_does_not_touch(kind: str) -> None:
    assert sum(check(path, kind, ("cuda",), 1) for path in (*SMALL[:2], SMALL[-1]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_bundled_traces_keep_what_an_edit_does_not_touch(kind: str) -> None:
    assert sum(check(path, kind, TARGETS, 2) for path in BUNDLED)


@pytest.mark.slow
@pytest.mark.parametrize("path", SHARED)
def test_shared_traces_keep_what_an_edit_does_not_touch(path: str, reference: Path) -> None:
    assert sum(check(reference / path, kind, TARGETS, 2) for kind in KINDS)


@pytest.mark.slow
def test_what_is_guessed_of_neighbours_is_guessed_before_an_edit(reference: Path) -> None:
    path = reference / "traces/dlrm_meta/a100x8_trace_diff_control.json.gz"
    found = applied(graph_of(path), "remove=aten::linear")
    assert found is not None
    assert_untouched(ledger(path, "cuda"), Ledger(found, "cuda"))


@pytest.mark.slow
@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.name)
def test_edits_one_after_another_keep_what_neither_touches(path: Path) -> None:
    graph, draw = graph_of(path), random.Random(7)
    all_texts = [text for kind in KINDS for text in texts(graph, kind, 2)]
    done = 0
    for _ in range(8):
        first, second = draw.sample(all_texts, 2)
        once = applied(graph, first)
        twice = None if once is None else applied(once, second)
        if twice is None:
            continue
        done += 1
        before, after = ledger(path, "cuda"), Ledger(twice, "cuda")
        assert_untouched(before, after)
        if not any(text.startswith("remove") for text in (first, second)):
            flop = [side.total(_is_product, "flop") for side in (before, after)]
            assert flop[1] == pytest.approx(flop[0], rel=1e-9), (first, second)
    assert done


@pytest.mark.slow
@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.name)
def test_twice_the_batch_is_twice_the_products(path: Path) -> None:
    trace_graph = op_graph(read(path))[0]
    batch = {"dlrm_batch8_et.json.gz": 8}.get(path.name)
    twice = rebatch(trace_graph, 2 * (batch or _batch(trace_graph))).graph
    before, after = Ledger(trace_graph, "cuda"), Ledger(twice, "cuda")
    flop = [side.total(_is_product, "flop") for side in (before, after)]
    assert flop[1] == pytest.approx(2 * flop[0], rel=1e-9)
    assert after.lookups() == pytest.approx(2 * before.lookups())


def _batch(graph: OpGraph) -> int:
    from perfmodel.ops.edits.leaves import batch_of

    found = batch_of(graph)
    assert found is not None
    return found


def test_a_caller_does_not_stand_in_for_what_was_removed() -> None:
    et = Et()
    x, w, y = tensor(1, 8, 4), tensor(2, 4, 4), tensor(3, 8, 4)
    linear = et.add("aten::linear", [x, w, tensor(4, 4)], [y])
    et.add("aten::t", [w], [w], at=linear)
    et.add("aten::addmm", [tensor(4, 4), x, w], [y], at=linear)
    found = applied(et.graph(), "remove=aten::addmm")
    assert found is not None
    assert not lower(found, "cuda").pieces
    assert [op.name for op in found.removed] == ["aten::addmm"]

"""A DLRM from its configuration has the calls that PyTorch recorded of it, and as much work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from workload.captured import TRACES, step_of, workload_of

from perfmodel.hardware import cluster, device, node_of
from perfmodel.lowering import lower
from perfmodel.lowering.arguments import REUSE
from perfmodel.ops.graph import OpGraph
from perfmodel.ops.lookups import with_recorded_lookups
from perfmodel.ops.read import op_graph as graph_of_trace
from perfmodel.prediction.shapes import predict_shapes
from perfmodel.trace import read
from perfmodel.workload import load_workload, op_graph

ONE_RANK = [
    ("cpu_dlrm_truth/one_rank_base/trace", 4),
    ("cpu_dlrm_truth/one_rank_rows1k/trace", 4),
    ("cpu_dlrm_truth/one_rank_tables1/trace", 4),
    ("cpu_dlrm_26_tables/dlrm26", 0),
]


def called(graph: OpGraph) -> list[tuple[str, str, str]]:
    return [(op.name, op.thread, op.phase) for op in (graph.ops[at] for at in graph.top_level())]


def work(graph: OpGraph) -> list[tuple[object, ...]]:
    """What each op becomes on a CPU, but for how often rows repeat, which tensors do not tell."""
    lowered = lower(graph, "cpu")
    pieces = zip(lowered.pieces, lowered.top_level.tolist(), strict=True)
    return [
        (
            *(graph.ops[top].name, piece.op, piece.dtype, piece.direction),
            *sorted((k, v) for k, v in piece.dims.items() if k not in REUSE),
        )
        for piece, top in pieces
    ]


@pytest.mark.parametrize(("stem", "step"), ONE_RANK)
def test_one_rank_equals_its_trace(stem: str, step: int) -> None:
    workload, batch, _ = workload_of(TRACES / f"{stem}.json")
    graph = op_graph(workload, batch, target="cpu")
    traced = OpGraph(tuple(step_of(TRACES / f"{stem}_et.json.gz", step)))
    assert called(graph) == called(traced)
    assert work(graph) == work(traced)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_two_ranks_equal_their_trace(rank: int) -> None:
    """Gloo's asynchronous tasks leave ops below them that are not: the work alone compares."""
    stem = TRACES / f"cpu_dlrm_truth/two_ranks_small/trace_rank{rank}"
    workload, batch, ranks = workload_of(stem.with_suffix(".json"))
    graph = op_graph(workload, batch * ranks, ranks=ranks, rank=rank, target="cpu")
    traced = OpGraph(tuple(step_of(stem.parent / f"{stem.name}_et.json.gz", 4)))
    assert [each[1:] for each in work(graph)] == [each[1:] for each in work(traced)]


def waits(graph: OpGraph) -> set[tuple[int, int]]:
    """Which op that does something waits for which, counted in order."""
    lowered = lower(graph, "cpu")
    place = {owner: number for number, owner in enumerate(dict.fromkeys(lowered.owner.tolist()))}
    return {
        (place[before], place[after])
        for after, needed in (lowered.waits_for or {}).items()
        for before in needed
        if before in place and after in place
    }


def test_data_edges_are_those_of_the_trace() -> None:
    """All but those that depend on which freed storage was used again."""
    stem = TRACES / "cpu_dlrm_truth/one_rank_tables1/trace"
    workload, batch, _ = workload_of(stem.with_suffix(".json"))
    found = waits(op_graph(workload, batch, target="cpu"))
    whole = graph_of_trace(read(stem.parent / "trace_et.json.gz"))[0]
    ops = step_of(stem.parent / "trace_et.json.gz", 4)
    first = next(index for index, op in enumerate(whole.ops) if op.step == 4)
    data = whole.data - first
    inside = ((data >= 0) & (data < len(ops))).all(axis=1)
    known = waits(OpGraph(tuple(ops), data[inside]))
    assert len(known - found) <= 0.05 * len(known)
    assert len(found - known) <= 0.05 * len(found)


def _outermost(graph: OpGraph, skipped: tuple[str, ...]) -> list[tuple[str, str]]:
    return [
        (op.name, op.thread)
        for op in (graph.ops[index] for index in graph.top_level())
        if op.name not in skipped
    ]


def test_lin_default_equals_the_published_execution_graph(reference: Path) -> None:
    """The outermost ops in order, but for what PyTorch of 2022 did otherwise."""
    path = reference / "execution_graphs" / "dlrm_default_1024_et_v1.0.0.json.gz"
    made_by_labels = ("aten::zeros", "aten::ones", "aten::empty")
    views = ("aten::view", "aten::reshape")
    older = ("autograd::engine::evaluate_function: ReshapeAliasBackward0",)
    updated = ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",)
    skipped = (*made_by_labels, *views, *older, *updated)
    traced = _outermost(graph_of_trace(read(path))[0], skipped)
    ours = _outermost(op_graph(load_workload("lin-dlrm-default"), 1024), skipped)
    assert ours == traced


@pytest.mark.parametrize(("stem", "step"), ONE_RANK[-2:])
def test_predicted_time_is_that_of_the_trace(stem: str, step: int) -> None:
    """On a CPU of the catalogue; all that tensors do not tell is how often rows repeat."""
    workload, batch, _ = workload_of(TRACES / f"{stem}.json")
    ours = op_graph(workload, batch, target="cpu")
    traced = replace(
        ours, ops=tuple(with_recorded_lookups(step_of(TRACES / f"{stem}_et.json.gz", step)))
    )
    machine = cluster(replace(node_of(device("epyc-7543")), gpus=1), None)
    times = [
        predict_shapes([graph], machine, name="epyc-7543", costs=None).step_us
        for graph in (ours, traced)
    ]
    assert times[0] == pytest.approx(times[1], rel=0.02)

"""Kernels that no rule stands for, as ops that take as long as they did."""

from __future__ import annotations

import pytest
from tiny import COPIES, Tiny, float_inputs

from perfmodel.lowering import lower
from perfmodel.lowering.observed import launched_by, with_placement
from perfmodel.lowering.recorded import (
    CALL,
    STAND_IN,
    Recorded,
    with_recorded,
    with_waits,
)
from perfmodel.ops.graph import Op
from perfmodel.ops.read.profile import of_kineto
from perfmodel.timeline.graph.build import build_rank


def found(t: Tiny) -> Recorded:
    rank, links = t.linked()
    graph = with_placement(of_kineto(rank, links), rank, links)
    return with_recorded(lower(graph, "cuda"), rank, links, build_rank(rank, links))


def recorded(what: Recorded) -> list[tuple[str, str, float]]:
    """(caller or '', kernel, microseconds) of the recorded kernels, in order."""
    ops = what.graph.ops
    return [
        (
            ops[op.parent].name if op.parent >= 0 else "",
            op.name.removeprefix("recorded::"),
            float(op.attributes["recorded_us"]),
        )
        for op in ops
        if "recorded_us" in op.attributes
    ]


def test_where_rules_stand_for_everything_nothing_is_added() -> None:
    t = Tiny()
    t.step(1, 0, 200)
    t.product(10, (30, 90))
    what = found(t)
    assert [op.name for op in what.graph.ops] == ["aten::mm"]
    assert (what.modelled_frac, what.recorded_frac) == pytest.approx((1.0, 0.0))


def test_a_graph_launch_outside_of_all_ops_is_an_op_with_its_kernels() -> None:
    t = Tiny()
    t.step(1, 0, 400)
    t.product(10, (30, 90))
    t.launch(50, 70, kernel=[(100, 160), (165, 215)], name="fused", call="cudaGraphLaunch")
    t.product(80, (220, 250))
    what = found(t)
    names = [op.name for op in what.graph.ops]
    assert names == ["aten::mm", "cudaGraphLaunch", *["recorded::fused"] * 2, "aten::mm"]
    assert [names for *names, _ in recorded(what)] == [["cudaGraphLaunch", "fused"]] * 2
    assert [us for *_, us in recorded(what)] == pytest.approx([60, 50])
    assert STAND_IN in what.graph.ops[1].attributes
    assert what.modelled_frac == pytest.approx(90 / 200)
    assert what.by_launcher_us == pytest.approx({"cudaGraphLaunch": 110})


def test_a_compiled_region_keeps_what_it_launches_beside_the_ops_it_calls() -> None:
    t = Tiny()
    t.step(1, 0, 400)
    t.op("Torch-Compiled Region: 0/0", 5, 100)
    t.launch(8, 10, kernel=(20, 60), name="triton_poi_fused_add_0")
    t.product(20, (60, 90))
    t.launch(70, 75, kernel=(90, 190), name="triton_red_fused_norm_1")
    what = found(t)
    region = "Torch-Compiled Region: 0/0"
    assert recorded(what) == [
        (region, "triton_poi_fused_add_0", 40.0),
        (region, "triton_red_fused_norm_1", 100.0),
    ]
    assert [op.name for op in what.graph.ops][2] == "aten::mm"
    assert what.modelled_frac == pytest.approx(30 / 170)
    pieces = lower(what.graph, "cuda").pieces
    assert [piece.op for piece in pieces] == ["recorded", "mm", "recorded"]


def test_an_op_without_a_rule_takes_what_its_kernel_took_and_streams_nothing() -> None:
    t = Tiny()
    t.step(1, 0, 200)
    cache = float_inputs([4_200_000, 16, 8, 128], [4, 8, 128])
    t.op("_C_cache_ops::reshape_and_cache_flash", 10, 40, **cache)
    t.launch(15, 20, kernel=(30, 33), name="reshape_and_cache_flash_kernel")
    pieces = lower(found(t).graph, "cuda").pieces
    assert [(piece.op, piece.dims["recorded_us"]) for piece in pieces] == [("recorded", 3.0)]


def test_a_rule_around_stands_for_what_is_launched_within() -> None:
    t = Tiny()
    t.step(1, 0, 200)
    t.op("aten::mm", 10, 40, **float_inputs([64, 32], [32, 16]))
    t.op("mylib::gemm_impl", 12, 38)
    t.launch(15, 20, kernel=(30, 90))
    assert recorded(found(t)) == []


def test_before_the_window_belongs_to_a_single_step_and_to_none_of_several() -> None:
    def trace(steps: int) -> Tiny:
        t = Tiny()
        t.kernel(-50, 40, "earlier")
        for number in range(steps):
            t.step(number, number * 200, number * 200 + 190)
            t.product(number * 200 + 10, (number * 200 + 50, number * 200 + 90))
        return t

    one, two = found(trace(1)), found(trace(2))
    assert recorded(one) == [("launch not recorded", "earlier", 40.0)]
    assert [op.name for op in one.graph.ops][-1] == "aten::mm"
    assert one.modelled_frac == pytest.approx(40 / 80)
    assert recorded(two) == []
    assert two.modelled_frac == pytest.approx(80 / 120)


def test_work_whose_launch_is_missing_stands_before_what_came_next_on_its_stream() -> None:
    t = Tiny()
    t.step(1, 0, 500)
    t.product(10, (30, 60))
    t.kernel(60, 160, "unlaunched")
    t.product(100, (160, 190))
    what = found(t)
    names = [op.name for op in what.graph.ops]
    assert names == ["aten::mm", "launch not recorded", "recorded::unlaunched", "aten::mm"]
    assert CALL not in what.graph.ops[1].attributes


def test_each_kernel_is_its_own_op_and_keeps_its_stream() -> None:
    t = Tiny()
    t.step(1, 0, 400)
    t.product(10, (30, 90))
    t.launch(50, 70, kernel=(100, 160), name="apart", stream=COPIES, call="cudaGraphLaunch")
    rank, links = t.linked()
    graph = found(t).graph
    owners = [graph.ops[at].name for at in launched_by(graph, rank, links).tolist()]
    assert owners == ["aten::mm", "recorded::apart"]


def test_waits_reach_the_ops_that_they_are_of() -> None:
    t = Tiny()
    t.step(1, 0, 400)
    t.launch(50, 70, kernel=(100, 160), name="fused", call="cudaGraphLaunch")
    t.product(80, (220, 250))
    rank, links = t.linked()
    graph = found(t).graph
    product_row = int(links.device_rows[1])
    waiting = with_waits(graph, rank, links, {product_row: 70.0})

    def waits(op: Op) -> str | None:
        return op.attributes.get("waited_us")

    assert [waits(op) for op in waiting.ops] == [None, None, "70.0"]


def test_a_cpu_has_no_counterpart() -> None:
    t = Tiny()
    t.step(1, 0, 400)
    t.launch(50, 70, kernel=(100, 160), name="fused", call="cudaGraphLaunch")
    t.product(80, (220, 250))
    assert "recorded" not in {piece.op for piece in lower(found(t).graph, "cpu").pieces}

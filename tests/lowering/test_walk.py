"""Rules, calls and the fallback; what is around a call."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from perfmodel.hardware import device
from perfmodel.lowering import Lowered, lower
from perfmodel.lowering.lower import fallback
from perfmodel.lowering.piece import Piece
from perfmodel.ops.graph import NO_OP, Op, OpGraph, Tensor
from perfmodel.ops.lookups import Lookups

MODULE = sys.modules[lower.__module__]  # the package shows its function in its place
T = Tensor
X = T((8, 32))
KEYS = "int64"


def graph(*ops: Op) -> OpGraph:
    return OpGraph(ops, world_size=8)


def ops_of(lowered: Lowered) -> list[tuple[str, str]]:
    """(owner, op of the table) per piece."""
    owners = [lowered.graph.ops[at].name for at in lowered.owner.tolist()]
    return [(owner, piece.op) for owner, piece in zip(owners, lowered.pieces, strict=True)]


def test_calls_come_before_what_an_op_launches_itself() -> None:
    found = lower(
        graph(
            Op("aten::sum", (T((4,), "int32"), None)),
            Op("aten::copy_", (T((4,), KEYS), T((4,), "int32"), False), parent=0),
            Op("aten::mm", (X, T((32, 4)))),
        ),
        "cuda",
    )
    assert ops_of(found) == [
        ("aten::copy_", "elementwise"),
        ("aten::sum", "sum"),
        ("aten::mm", "mm"),
    ]
    assert found.top_level.tolist() == [0, 0, 2]
    assert found.answered_by.tolist() == [0, 1, 2]


@pytest.mark.parametrize("place", ["cpu", "cuda:0"])
def test_what_a_cpus_operator_calls_within_itself_does_not_move_to_a_gpu(place: str) -> None:
    """Its `addmm` copies the bias first; a GPU's adds it in the product, or copies it too."""
    x, weight, out, bias = (T(shape, device=place) for shape in ((8, 4), (4, 2), (8, 2), (2,)))
    linear = Op("aten::linear", (x, weight, bias), (out,))
    product = Op("aten::addmm", (bias, x, weight, 1, 1), (out,), parent=0)
    copied = Op("aten::copy_", (out, out, False), parent=1)
    found = ops_of(lower(graph(linear, product, copied), "cuda"))
    copy = [("aten::copy_", "copy")] if place != "cpu" else []
    assert found == [*copy, ("aten::addmm", "linear")]


def test_the_bias_that_a_cpus_convolution_adds_is_a_kernel_on_a_gpu() -> None:
    x, weight, out = (T(each, device="cpu") for each in ((1, 2, 8, 8), (4, 2, 1, 1), (1, 4, 8, 8)))
    numbers = ((0, 0), (1, 1), (1, 1), 1)
    for bias, more in ((None, []), (T((4,), device="cpu"), ["elementwise"])):
        op = Op("aten::mkldnn_convolution", (x, weight, bias, *numbers), (out,))
        pieces = ops_of(lower(graph(op), "cuda"))
        assert [piece for _, piece in pieces] == ["conv2d", *more]


def test_another_rule_is_asked_about_the_same_call(monkeypatch: pytest.MonkeyPatch) -> None:
    for work in ("copy", "fill"):

        def rule(_: Op, work: str = work) -> list[Piece]:
            return [Piece(work, {"elements": 8.0}, "fp32")]

        monkeypatch.setattr(MODULE, "rule_of", lambda *_, rule=rule: rule)
        assert ops_of(lower(graph(Op("my::own", (X,))), "cuda")) == [("my::own", work)]


def test_a_rule_may_read_any_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that differ in attributes have answers of their own, equal ones share one."""
    asked = []

    def rule(op: Op) -> list[Piece]:
        asked.append(op)
        heads = float(op.attributes.get("heads", "1"))
        if heads > 2:
            heads *= float(op.attributes["width"])
        return [Piece("copy", {"elements": heads}, "fp32")]

    monkeypatch.setattr(MODULE, "rule_of", lambda *_: rule)
    about = [
        {"heads": "2"},
        {"heads": "2", "module": "another"},
        {"heads": "4", "width": "8"},
        {"heads": "4", "width": "16", "module": "another"},
        {},
        {"heads": "2"},
    ]
    calls = graph(*(Op("my::attention", (X,), attributes=each) for each in about))
    for _ in range(2):
        found = lower(calls, "cuda")
        assert [piece.dims["elements"] for piece in found.pieces] == [2, 2, 32, 64, 1, 2]
    assert len(asked) == 5


def test_a_rule_sees_no_identities(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not part of what answers are kept by."""
    seen = []

    def rule(op: Op) -> list[Piece]:
        seen.append((op.parent, op.step, [each.tensor_id for each in op.tensors]))
        return []

    monkeypatch.setattr(MODULE, "rule_of", lambda *_: rule)
    lower(graph(Op("my::own", ((T((3,), tensor_id=7),), T((2,), tensor_id=8)), step=4)), "cuda")
    assert seen == [(NO_OP, 0, [-1, -1])]


def test_a_composite_becomes_what_it_calls() -> None:
    linear = Op("aten::linear", (X, T((4, 32)), T((4,))))
    addmm = Op("aten::addmm", (T((4,)), X, T((32, 4))), parent=0)
    found = lower(graph(linear, addmm), "cuda")
    assert ops_of(found) == [("aten::addmm", "linear")]
    assert found.answered_by.tolist() == [NO_OP, 1]
    assert ops_of(lower(graph(linear), "cuda")) == [("aten::linear", "linear")]


def test_work_is_done_once() -> None:
    outer = Op("aten::nan_to_num", (X, None, None, None))
    inner = Op("aten::nan_to_num", (X, None, None, None, X), parent=0)
    assert len(lower(graph(outer, inner), "cuda")) == 1
    bag = Op(
        "aten::_embedding_bag_dense_backward", (X, T((16,), KEYS), T((16,), KEYS), None, None, 9)
    )
    fill = Op("aten::fill_", (T((9, 32)), 0), parent=0)
    became = ("fill", "sort_pairs", "embedding")
    assert ops_of(lower(graph(bag, fill), "cuda")) == [(bag.name, op) for op in became]


def test_the_fallback_is_counted_and_said() -> None:
    found = lower(graph(*[Op("my::kernel", (X, X))] * 2, Op("aten::view", (X,))), "cuda")
    assert found.unknown == {"my::kernel": 2}
    assert found.notes == (
        "2 calls of my::kernel have no rule on cuda: taken to stream their operands",
    )
    assert [piece.dims["reads"] for piece in found.pieces] == [2, 2]


def test_a_rule_without_its_arguments_falls_back() -> None:
    found = lower(graph(Op("aten::bmm", (X, None))), "cuda")
    assert found.unknown == {"aten::bmm": 1}


def test_ops_on_the_host_launch_nothing_on_a_gpu() -> None:
    host = T((8,), device="cpu")
    op, elsewhere = Op("aten::add_", (host, host, 1)), Op("aten::relu", (X,))
    assert ops_of(lower(graph(op, elsewhere), "cuda")) == [("aten::relu", "relu")]
    assert ops_of(lower(graph(op), "cpu")) == [("aten::add_", "add_inplace")]


def test_rows_of_the_measurement_table() -> None:
    found = lower(graph(Op("aten::mm", (X, T((32, 4)))), Op("aten::relu", (X,))), "cuda")
    assert found.rows.op == ("mm", "relu")
    assert found.rows.dims["m"][0] == 8
    assert found.rows.dims["rows"][1] == 8
    assert found.owner.tolist() == [0, 1]


def test_tf32_where_the_device_has_it_and_it_is_allowed() -> None:
    product = graph(Op("aten::mm", (X, T((32, 4)))))
    old, new = device("v100-sxm2-16gb"), device("a100-sxm-80gb")
    dtypes = [
        lower(replace(product, tf32=allowed), "cuda", device=on).pieces[0].dtype
        for on, allowed in ((old, True), (new, True), (new, False))
    ]
    assert dtypes == ["fp32", "tf32", "fp32"]


LOOKUP = "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function"
BACKWARD = "torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>"


def lookup(tables: int, batch: int, lookups: int, dim: int) -> Op:
    """A call in the layout of FBGEMM 0.4."""
    weights = T((tables * 100 * dim,), "fp16")
    bounds = T((tables + 1,), KEYS)
    return Op(
        LOOKUP,
        (
            *(T((0,)), weights, T((0,)), T((0, 0)), T((tables,), "int32"), T((tables,), KEYS)),
            *(T((tables + 1,), "int32"), None, None, bounds, None),
            *(T((lookups,), KEYS), T((tables * batch + 1,), KEYS), None, None, None),
            *(T((0,), "int32"), None, None, None, T((tables * 100,)), T((0,)), bounds, bounds),
        ),
    )


def test_a_lookup_and_its_backward_know_each_other() -> None:
    small, large = lookup(2, 4, 10, 8), lookup(3, 4, 30, 16)
    found = lower(
        graph(small, large, Op(BACKWARD, (T((4, 48)),)), Op(BACKWARD, (T((4, 16)),))), "cuda"
    )
    tables = [(p.direction, p.dims["tables"], p.dims["dim"]) for p in found.pieces if p.op == "tbe"]
    assert tables == [("fwd", 2, 8), ("fwd", 3, 16), ("bwd", 3, 16), ("bwd", 2, 8)]
    backward = [p for p in found.pieces if p.direction == "bwd"]
    assert [p.dims["state_bytes"] for p in backward] == [4, 4]
    sorts = [p.dims["cols"] for p in found.pieces if p.op == "sort_pairs"]
    assert sorts == [30, 10]
    assert not any(p.guessed for p in found.pieces)


def test_tables_of_several_widths_read_as_wide_rows_as_are_looked_up() -> None:
    """Two tables of 128 and 32 wide, 1 and 9 lookups per bag: 41.6 wide are read, 80 written."""
    about = Lookups((50, 50), (128, 32), (4, 4), (1.0, 9.0), (4.0, 30.0), (0.0, 0.0))
    call = replace(lookup(2, 4, 40, 80), attributes=about.to_attributes())
    backward = Op(BACKWARD, (T((4, 160)),), attributes=about.to_attributes())
    for piece in lower(graph(call, backward), "cuda").pieces:
        if piece.op == "tbe":
            dims = {name: np.array([value]) for name, value in piece.dims.items()}
            assert dims["lookups"] * dims["dim"] == pytest.approx(4 * (128 + 9 * 32))
            pooled = dims["output_bytes"] * dims["tables"] * dims["batch"] * dims["dim"]
            assert pooled == pytest.approx(4 * 4 * (128 + 32))


@pytest.mark.parametrize("mode", [2, None])
def test_rows_that_are_not_pooled_are_bags_of_their_own(mode: int | None) -> None:
    """By the pooling mode, or by an output with a row for each of 30 lookups."""
    call = lookup(3, 4, 30, 16)
    at = [isinstance(item, Tensor) and item.shape == (30,) for item in call.inputs].index(True) + 2
    inputs = (*call.inputs[:at], mode, *call.inputs[at + 1 :])
    unpooled = replace(call, inputs=inputs, outputs=(T((30, 16)),))
    found = lower(graph(unpooled, Op(BACKWARD, (T((30, 16)),))), "cuda")
    tables = [p for p in found.pieces if p.op == "tbe"]
    assert [(p.direction, p.dims["batch"], p.dims["dim"]) for p in tables] == [
        ("fwd", 10, 16),
        ("bwd", 10, 16),
    ]
    assert {p.dims["longest_bag"] for p in tables} == {1}


def test_a_convolution_finds_its_output_in_what_is_read_next() -> None:
    unknown = (None,) * 7
    found = lower(
        graph(
            Op("aten::cudnn_convolution", (T((2, 3, 8, 8)), T((4, 3, 3, 3)), *unknown)),
            Op("aten::relu", (T((2, 4, 4, 4)),)),
        ),
        "cuda",
    )
    assert found.pieces[0].dims["stride"] == 2
    assert not found.pieces[0].guessed


def test_sizes_that_old_profiles_lack_are_guessed_and_said() -> None:
    gradients = Op("torch::autograd::AccumulateGrad", (T((100,)),), thread="autograd")
    call = Op("c10d::allreduce_", (), thread="autograd")
    record = Op("record_param_comms", (), parent=2, thread="autograd")
    found = lower(graph(Op("aten::relu", (X,)), gradients, call, record), "cuda")
    assert [(p.op, p.guessed) for p in found.pieces] == [("relu", False), ("all_reduce", True)]
    assert found.pieces[1].dims == {"size_bytes": 400, "ranks": 8}
    assert any("guessed" in note for note in found.notes)


def test_a_program_that_ran_on_a_cpu_moves_as_a_whole() -> None:
    host = T((8, 32), device="cpu")
    sparse = T((8, 32), layout="sparse")
    product = Op("aten::mm", (host, T((32, 4), device="cpu")))
    add = Op("aten::add_", (host, sparse))
    assert ("aten::mm", "mm") in ops_of(lower(graph(product, add), "cuda"))
    told = Op("aten::mm", product.inputs, attributes={"device": "cpu"})
    assert ops_of(lower(graph(told), "cuda")) == []


def streamed_bytes(op: Op) -> float:
    (piece,) = fallback(op)
    dims = piece.dims
    return dims["elements"] * (dims["reads"] + dims["writes"]) * 2.0


CACHE = T((4_200_000, 16, 8, 128), "bf16")
TOKENS = T((32, 8, 128), "bf16")


def test_of_a_pool_the_fallback_streams_a_row_per_index() -> None:
    slots = T((32,), KEYS)
    op = Op("_C_cache_ops::reshape_and_cache_flash", (TOKENS, TOKENS, CACHE, CACHE, slots, "auto"))
    rows = 32 * 16 * 8 * 128
    read = 2 * rows + 2 * 32 * 8 * 128 + 32 * 4
    assert streamed_bytes(op) == pytest.approx(2.0 * (read + rows))


def test_a_tensor_without_dimensions_is_no_pool() -> None:
    slots, scale = T((32,), KEYS), T((), "fp32")
    op = Op("_C_cache_ops::reshape_and_cache_flash", (TOKENS, scale, CACHE, slots, "auto"))
    rows = 32 * 16 * 8 * 128
    read = rows + 32 * 8 * 128 + 2 + 32 * 4
    assert streamed_bytes(op) == pytest.approx(2.0 * (read + rows))


def test_a_pool_is_streamed_no_more_than_once() -> None:
    small = T((4, 16, 8, 128), "bf16")
    op = Op("mylib::attend", (T((2, 8, 128), "bf16"), small, T((2, 64), "int32")))
    whole = 4 * 16 * 8 * 128
    assert streamed_bytes(op) == pytest.approx(2.0 * (2 * whole + 2 * 8 * 128 + 2 * 64 * 2))


def test_without_indices_everything_is_streamed() -> None:
    weight, values = T((4096, 1024), "bf16"), T((1, 1024), "bf16")
    read = 4096 * 1024 + 1024
    assert streamed_bytes(Op("mylib::gemv", (values, weight))) == pytest.approx(
        2.0 * (read + 4096 * 1024)
    )


def test_sequences_of_several_lengths_are_no_pool() -> None:
    """Query, key and value are as long as one another; offsets point into all."""
    values = T((5000, 8, 128), "bf16")
    op = Op("mylib::varlen", (values, values, values, T((9,), "int32")))
    size = 5000 * 8 * 128
    assert streamed_bytes(op) == pytest.approx(2.0 * (4 * size + 9 * 2))

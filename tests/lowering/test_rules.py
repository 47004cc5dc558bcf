"""What single ops become, by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from perfmodel.lowering import Piece, lower
from perfmodel.lowering.rules.vector import multi_tensor_launches
from perfmodel.ops.graph import Argument, Op, OpGraph, Tensor
from perfmodel.ops.rows import FRAMEWORK, TORCH, framework_code
from perfmodel.workload.tables import Table, lookup_attributes

T = Tensor


def pieces(op: Op, target: str = "cuda") -> list[Piece]:
    return list(lower(OpGraph((op,)), target).pieces)  # type: ignore[arg-type]


def becomes(name: str, *inputs: Argument, out: Tensor | None = None, target: str = "cuda") -> str:
    """`op dim=value …` per piece, defaults left out; with direction and launches where unusual."""
    found = pieces(Op(name, inputs, (out,) if out else ()), target)
    return "; ".join(map(written, found))


def written(piece: Piece) -> str:
    head = piece.op if piece.direction == "fwd" else f"{piece.op}.{piece.direction}"
    dims = " ".join(f"{name}={value:g}" for name, value in piece.dims.items() if name != FRAMEWORK)
    times = f" x{piece.launches}" if piece.launches > 1 else ""
    return f"{head} {dims}{times}" + (" ?" if piece.guessed else "")


X = T((8, 32))


@pytest.mark.parametrize(
    ("name", "inputs", "expected"),
    [
        ("aten::mm", (X, T((32, 4))), "mm b=1 m=8 n=4 k=32"),
        ("aten::addmm", (T((4,)), X, T((32, 4))), "linear b=1 m=8 n=4 k=32 bias=1"),
        ("aten::linear", (X, T((4, 32)), None), "linear b=1 m=8 n=4 k=32 bias=0"),
        ("aten::bmm", (T((2, 3, 5)), T((2, 5, 7))), "bmm b=2 m=3 n=7 k=5"),
        ("aten::mm", (T((0, 32)), T((32, 4))), ""),
        ("aten::add", (X, X, 1), "add rows=8 cols=32"),
        ("aten::add_", (X, X, 1), "add_inplace rows=8 cols=32"),
        ("aten::mul", (X, 2.0), "mul_scalar rows=8 cols=32"),
        ("aten::mul", (X, T(()), X), "mul_scalar rows=8 cols=32"),  # into the third
        ("aten::mul", (X, X, X), "mul rows=8 cols=32"),
        (
            "aten::add",
            (X, T((32,)), 1),
            "elementwise elements=256 reads=1.125 writes=1 flop_per_element=1 broadcast=1",
        ),
        (
            "aten::mul",
            (T((8, 32), strides=(0, 0)), 2.0),
            "elementwise elements=256 reads=0.00390625 writes=1 flop_per_element=1 broadcast=1",
        ),
        (
            "aten::gather",
            (T((9, 32)), 0, T((8, 32), "int64", strides=(1, 0))),
            "gather rows=8 cols=32 hash_size=9",
        ),
        (
            "aten::native_layer_norm_backward",
            (X, X, (32,), T((8, 1)), T((8, 1)), T((32,)), None, (True, True, False)),
            "layer_norm.bwd rows=8 cols=32; sum_rows rows=16 cols=32",
        ),
        (
            "aten::native_layer_norm_backward",
            (X, X, (32,), T((8, 1)), T((8, 1)), None, None, (True, False, False)),
            "layer_norm.bwd rows=8 cols=32",
        ),
        ("aten::mean", (T((8, 5, 32)), (1,), False), "sum_rows rows=5 cols=256"),
        ("aten::sum", (T((8, 5, 1)), (1,), False), "sum rows=8 cols=5"),
        ("aten::eq", (X, X), "elementwise elements=256 reads=2 writes=0.25 flop_per_element=1"),
        ("aten::relu", (X,), "relu rows=8 cols=32"),
        ("aten::zero_", (X,), "fill rows=8 cols=32"),
        (
            "aten::zero_",
            (T((8, 32), strides=(64, 1)),),
            "elementwise elements=256 reads=0 writes=1 flop_per_element=0 apart=1",
        ),
        ("aten::silu", (T((8, 32), strides=(64, 1)),), "silu rows=8 cols=32 apart=1"),
        ("aten::silu", (T((8, 32), strides=(64, 2)),), "silu rows=8 cols=32 strided=1"),
        (
            "aten::copy_",
            (X, T((8, 32), "bf16"), False),
            "elementwise elements=256 reads=0.5 writes=1 flop_per_element=0 widened=1",
        ),
        ("aten::sum", (X, (0,), True, None), "sum_rows rows=8 cols=32"),
        ("aten::sum", (X, (1,), True, None), "sum rows=8 cols=32"),
        ("aten::sum", (X, None), "sum rows=1 cols=256"),
        ("aten::mean", (X, None), "mean rows=1 cols=256"),
        ("aten::_softmax", (X, -1, False), "softmax rows=8 cols=32"),
        ("aten::special_softmax", (X, -1, False), "softmax rows=8 cols=32"),
        ("aten::_softmax", (T((2, 4, 5, 5)), 1, False), "softmax rows=50 cols=4 strided=1"),
        (
            "aten::native_group_norm",
            (T((2, 6, 5)), None, None, 2, 6, 5, 3, 1e-5),
            "group_norm rows=6 cols=10 x2",
        ),
        ("aten::_softmax_backward_data", (X, X, -1, 6), "softmax.bwd rows=8 cols=32 x2"),
        ("aten::native_layer_norm", (X, (32,), T((32,))), "layer_norm rows=8 cols=32"),
        ("aten::cudnn_batch_norm", (T((2, 3, 4, 4)),), "batch_norm rows=32 cols=3"),
        (
            "aten::native_batch_norm",  # statistics, running statistics, normalisation
            (X, T((32,)), T((32,)), T((32,)), T((32,)), True, 0.1, 1e-5),
            "batch_norm rows=8 cols=32 x3",
        ),
        (
            "aten::native_batch_norm_backward",  # sums over gradient and input, then the gradient
            (X, X, T((32,))),
            "batch_norm.bwd rows=8 cols=32 x2",
        ),
        ("aten::copy_", (X, X, False), "copy elements=512"),
        ("aten::copy_", (T((8, 32), tensor_id=3),) * 2, ""),  # onto itself
        ("aten::copy_", (X, T((8, 32), strides=(1, 8)), False), "transpose_copy rows=32 cols=8"),
        (
            "aten::copy_",
            (T((8, 32), "bf16"), X, False),
            "elementwise elements=256 reads=1 writes=0.5 flop_per_element=0",
        ),
        ("aten::cat", ((X, X, X), 1), "cat rows=8 cols=32 tensors=3"),
        ("aten::index_select", (X, 0, T((5,), "int64")), "index_select rows=5 cols=32 hash_size=8"),
        (
            "aten::gather",
            (X, 1, T((8, 2), "int64")),
            "gather rows=16 cols=1 hash_size=256 by_elements=8",
        ),
        (
            "aten::_cudnn_attention_forward",
            (*(T((2, 4, 16, 64)),) * 3, None, None, None, 16, 16, False, 0.0, True),
            "attention b=2 s=16 heads=4 head_dim=64 kv_heads=4 s_kv=16 causal=1",
        ),
        ("aten::view", (X, (256,)), ""),
        ("aten::topk", (X, 3, -1, True, True), "topk rows=8 cols=32 k=3 x2"),
        ("aten::cumsum", (T((100,)), 0), "fill rows=1 cols=1; cumsum rows=1 cols=100"),
        ("aten::cumsum", (X, 1), "cumsum rows=8 cols=32"),
        (
            "aten::_embedding_bag",
            (T((100, 16)), T((40,), "int64"), T((8,), "int64")),
            "embedding_bag hash_size=100 dim=16 batch=8 pooling=5",
        ),
        (
            "aten::max_pool2d_with_indices",
            (T((1, 2, 8, 8)), (2, 2), (2, 2)),
            "max_pool elements=128 outputs=32 kernel_size=2",
        ),
        (
            "aten::avg_pool2d",
            (T((1, 2, 8, 8), strides=(128, 1, 16, 2)), (2, 2), (2, 2)),
            "avg_pool elements=128 outputs=32 kernel_size=2 channels_last=1",
        ),
        (
            "aten::_flash_attention_forward",
            (*(T((2, 16, 4, 64)),) * 3, None, None, 16, 16, 0.0, True, False),
            "attention b=2 s=16 heads=4 head_dim=64 kv_heads=4 s_kv=16 causal=1",
        ),
        (
            "aten::_foreach_add_",
            ((X, X), (X, X)),
            "foreach elements=256 tensors=2 reads=2 writes=1",
        ),
        (
            "aten::_foreach_copy_",
            ((X, X), (X, X)),
            "foreach elements=256 tensors=2 reads=1 writes=1",
        ),
        (
            "aten::_fused_adam_",
            ((X, X),) * 4,
            "optimizer_adam.update elements=256 tensors=2",
        ),
        (
            "fbgemm::asynchronous_complete_cumsum",
            (T((9,), "int32"),),
            "fill rows=1 cols=1; cumsum rows=1 cols=9",
        ),
        (  # of two features of 20 keys each, the second twice
            "fbgemm::permute_2D_sparse_data",
            (T((3,), "int32"), T((2, 4), "int32"), T((40,), "int64"), None, 60),
            "index_select rows=3 cols=4; fill rows=1 cols=1; cumsum rows=1 cols=8; "
            "fill rows=1 cols=1; cumsum rows=1 cols=12; "
            "jagged_permute elements=60 segments=12 weighted=0",
        ),
        (
            "fbgemm::bounds_check_indices",
            (T((2,), "int64"), T((40,), "int64"), T((17,), "int64"), 1),
            "bounds_check elements=40 segments=17",
        ),
        ("aten::nobody_knows_this", (X,), "unknown elements=256 reads=1 writes=1 ?"),
        ("AddBackward0", (X,), ""),
        ("an annotation", (), ""),
    ],
)
def test_one_op(name: str, inputs: Sequence[Argument], expected: str) -> None:
    assert becomes(name, *inputs) == expected


def test_products_are_by_pytorch() -> None:
    (piece,) = pieces(Op("aten::mm", (X, T((32, 4))), ()))
    assert piece.dims[FRAMEWORK] == framework_code(TORCH)
    graph = OpGraph((Op("aten::mm", (X, T((32, 4))), ()), Op("aten::relu", (X,), ())))
    assert lower(graph, "cuda").rows.in_framework().tolist() == [framework_code(TORCH), 0]


CONV = (T((2, 3, 8, 8)), T((4, 3, 3, 3)))
DIMS = "batch=2 in_channels=3 out_channels=4 groups=1 dilation=1"


def test_convolution_forward() -> None:
    expected = f"conv2d {DIMS} input_size=8 kernel_size=3 stride=2 padding=1 x2"
    settings = ((1, 1), (2, 2), (1, 1), 1, False, True, True)
    assert becomes("aten::cudnn_convolution", *CONV, *settings) == expected
    unknown = (None,) * 7
    made = T((2, 4, 4, 4))
    assert becomes("aten::cudnn_convolution", *CONV, *unknown, out=made) == expected


def test_a_transposed_convolution_is_the_gradient_of_one() -> None:
    values, weight = T((2, 8, 5, 5)), T((8, 4, 3, 3))
    settings = ((1, 1), (1, 1), (2, 2), (1, 1), 1)  # padding, output padding, stride, dilation
    found = becomes("aten::cudnn_convolution_transpose", values, weight, *settings)
    general = becomes(
        "aten::convolution", values, weight, None, (2, 2), (1, 1), (1, 1), True, (1, 1), 1
    )
    assert found == general
    assert "input_size=10" in found  # (5 - 1) * 2 - 2 + 3 + 1


def test_logsumexp_is_the_kernels_of_its_parts() -> None:
    found = [piece.op for piece in pieces(Op("aten::logsumexp", (X, (1,), True)))]
    assert found == ["amax", "elementwise", "elementwise", "sum"]


def test_convolution_backward_as_its_mask_says() -> None:
    gradient = T((2, 4, 8, 8))
    settings = ((4,), (1, 1), (1, 1), (1, 1), False, (0, 0), 1, (False, True, True))
    found = pieces(Op("aten::convolution_backward", (gradient, *CONV, *settings)))
    assert [(p.op, p.direction) for p in found] == [("conv2d", "bwd_weight"), ("sum", "fwd")]


def test_libraries_launch_more_than_the_convolution() -> None:
    call = (T((2, 3, 8, 8)), T((2, 4, 8, 8)), T((4, 3, 3, 3)))
    for name, target, launches in (("cudnn", "cuda", 2), ("miopen", "rocm", 5)):
        found = pieces(Op(f"aten::{name}_convolution_backward_input", call), target)
        assert [(p.op, p.launches) for p in found] == [("conv2d", launches)]


def test_one_dimensional_convolution() -> None:
    found = pieces(
        Op("aten::cudnn_convolution", (T((2, 3, 10)), T((4, 3, 3)), (1,), (1,), (1,), 1))
    )
    dims = found[0].dims
    assert (dims["input_h"], dims["input_w"], dims["kernel_h"], dims["kernel_w"]) == (1, 10, 1, 3)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [(("cpu", "cuda:0"), "copy_d2h"), (("cuda:0", "cpu"), "copy_h2d")],
)
def test_copies_between_host_and_device(devices: tuple[str, str], expected: str) -> None:
    target, source = (T((4,), device=device) for device in devices)
    found = pieces(Op("aten::copy_", (target, source, False)))
    assert [p.op for p in found] == [expected]
    assert all(p.blocks and p.kind == "copy" for p in found)
    free = pieces(Op("aten::copy_", (target, source, True)))
    assert not any(p.blocks for p in free)


def test_a_sparse_gradient_adds_the_rows_that_it_holds() -> None:
    table, gradient = T((1000, 16)), T((1000, 16), layout="sparse")
    about = {"tables": "1", "lookups": "24"}
    op = Op("aten::add_", (table, gradient, -0.1), (table,), attributes=about)
    assert [written(piece) for piece in pieces(op)] == ["index_add rows=24 cols=16 hash_size=1000"]
    more = replace(op, attributes={**about, "lookups": "48"})
    found = lower(OpGraph((op, more)), "cuda").pieces
    assert [piece.dims["rows"] for piece in found] == [24, 48]


def test_rows_that_are_added_tell_how_often_the_most_popular_one_comes() -> None:
    """Drawn in proportion to 1 / x from 1 to 4, the first of three rows gets ln 2 / ln 4, 32 of 64
    lookups; of four rows alike 128 lookups bring 32 each. Twice the samples bring twice as many."""
    drawn = Table(3, 16, 1.0, alpha=1.0), Table(4, 16, 2.0)
    table, rows = T((7, 16)), T((264, 16))
    op = Op("aten::index_add_", (table, 0, T((264,), "int64"), rows, 1))
    known = [replace(op, attributes=lookup_attributes(drawn, batch)) for batch in (64, 128)]
    found = lower(OpGraph(tuple(known)), "cuda").pieces
    assert [piece.dims["most_repeated"] for piece in found] == pytest.approx([32.0, 64.0])
    assert "most_repeated" not in pieces(op)[0].dims


def test_a_scalar_read_by_the_host_blocks() -> None:
    assert pieces(Op("aten::_local_scalar_dense", (T(()),)))[0].blocks
    assert pieces(Op("aten::_local_scalar_dense", (T((), device="cpu"),))) == []


def about(**known: str) -> Mapping[str, str]:
    return known


@pytest.mark.parametrize(
    ("known", "op", "size_bytes"),
    [
        (about(collective="all_reduce", in_elements="10", dtype="fp32"), "all_reduce", 40),
        (
            about(collective="all_gather", in_elements="10", out_elements="40", dtype="bf16"),
            "all_gather",
            80,
        ),
        (about(collective="send", in_elements="8", dtype="int8"), "send_recv", 8),
    ],
)
def test_collectives(known: Mapping[str, str], op: str, size_bytes: float) -> None:
    record = Op("record_param_comms", attributes={**known, "group_size": "4"})
    (found,) = pieces(record)
    assert (found.op, found.dims, found.kind, found.stream) == (
        op,
        {"size_bytes": size_bytes, "ranks": 4},
        "collective",
        "comm",
    )


def test_waiting_for_a_collective_launches_nothing() -> None:
    assert pieces(Op("record_param_comms", attributes={"collective": "wait"})) == []


@pytest.mark.parametrize(
    ("sizes", "lists", "launches"),
    [
        ([10], 1, 1),
        ([10] * 110, 1, 1),
        ([10] * 111, 1, 2),
        ([10] * 37, 4, 2),
        ([65536 * 320], 2, 1),
        ([65536 * 320 + 1], 2, 2),
        ([65536 * 641], 2, 3),
    ],
)
def test_launches_over_lists(sizes: list[int], lists: int, launches: int) -> None:
    assert multi_tensor_launches(sizes, lists) == launches


def test_what_is_put_tells_the_indices_that_a_profile_does_not_record() -> None:
    """`Z[:, i, j]` of a dot interaction backwards, and rows of a table."""
    pairs = becomes("aten::_index_put_impl_", T((16, 27, 27)), None, T((16, 351)))
    assert pairs.endswith("index_put_accumulate rows=5616 cols=1 hash_size=11664")
    rows = becomes("aten::_index_put_impl_", T((1000, 64)), None, T((32, 64)))
    assert rows.endswith("index_put_accumulate rows=32 cols=64 hash_size=1000")


@pytest.mark.parametrize("name", ["SelectBackward", "ViewBackward0", "ExpandBackward1"])
def test_backward_nodes_that_pass_on_launch_nothing(name: str) -> None:
    assert pieces(Op(name, (Tensor((64, 64), device="cuda:0"),), ())) == []


@pytest.mark.parametrize("name", ["MyFusedFnBackward0", "aten::_is_any_true"])
def test_what_no_rule_knows_streams_its_operands(name: str) -> None:
    """A user's own node of the backward pass, and a question that a kernel answers."""
    (piece,) = pieces(Op(name, (Tensor((64, 64), device="cuda:0"),), ()))
    assert piece.op == "unknown"


@pytest.mark.parametrize(
    ("before", "after", "copied"),
    [
        (("fp32", "cuda:0"), ("fp32", ""), False),  # which device, one side does not say
        (("fp32", ""), ("bf16", ""), True),
        (("fp32", "cuda:0"), ("fp32", "cpu"), True),
    ],
)
def test_a_conversion_copies_where_type_or_device_differ(
    before: tuple[str, str], after: tuple[str, str], copied: bool
) -> None:
    source, result = (Tensor((64, 64), dtype, device=on) for dtype, on in (before, after))
    assert bool(pieces(Op("aten::to", (source,), (result,)))) == copied

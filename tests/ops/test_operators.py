"""Records of operators: sizes by their signatures, by hand."""

from __future__ import annotations

import pytest

from perfmodel.lowering.arguments import by_record
from perfmodel.ops.graph import Argument, Op, Tensor
from perfmodel.ops.operators import (
    ALL,
    OPERATORS,
    OUTPUT,
    WAIT,
    WHOLE_TENSORS,
    Operator,
    operator_of,
)
from perfmodel.ops.spec import OPS

T = Tensor


def bound(signature: str, *inputs: Argument) -> dict[str, tuple[int, ...]] | None:
    shapes = [item.shape if isinstance(item, Tensor) else None for item in inputs]
    sizes = Operator(signature).bind(Op("my::op", inputs), shapes.__getitem__)
    return None if sizes is None else dict(sizes)


@pytest.mark.parametrize(
    ("signature", "inputs", "expected"),
    [
        ("a[m,k] b[k,n]", (T((2, 3)), T((3, 5))), {"m": (2,), "k": (3,), "n": (5,)}),
        ("a[m,k]", (T((2, 3, 4)),), None),
        ("x[*r,c]", (T((2, 3, 4)),), {"r": (2, 3), "c": (4,)}),
        ("x[*a,c,*z] @c", (T((2, 3, 4)), 1), {"a": (2,), "c": (3,), "z": (4,)}),
        ("x[*a,c,*z] @c", (T((2, 3, 4)), None), {"a": (2, 3), "c": (4,), "z": ()}),
        ("x[*a,c,*z] @c=0", (T((2, 3)), None), {"a": (), "c": (2,), "z": (3,)}),
        ("x[*a,c,*z] @c", (T((2, 3)), 7), None),
        ("x[*r,*c] (c)", (T((2, 3, 4)), (3, 4)), {"r": (2,), "c": (3, 4)}),
        ("_ x[n]", (T((2, 3)), 1), None),
    ],
)
def test_sizes_by_name(
    signature: str, inputs: tuple[Argument, ...], expected: dict[str, tuple[int, ...]] | None
) -> None:
    assert bound(signature, *inputs) == expected


def test_sizes_of_what_is_returned() -> None:
    record = Operator("x[*r,*c] (c) w bias? -> [*r,*c] [*r,1*c] =...")
    made = (T((2, 3)), T((2, 1)), T((9,)), None)
    sizes = record.returned({"r": (2,), "c": (3,)}, made, tuple)
    assert list(sizes) == [(2, 3), (2, 1), (9,), None]
    assert record.parameters == [2, 3]


def test_one_record_is_all_that_a_new_operator_takes() -> None:
    record = Operator("_ x[m] y[n] -> [m,n]", "mm b=1 m n k=1; relu rows=m cols=n x2")
    first, second = by_record(record)(Op("my::outer", (None, T((8,)), T((4,)))))
    assert (first.op, [first.dims[name] for name in "bmnk"]) == ("mm", [1, 8, 4, 1])
    assert (second.op, second.dims, second.launches) == ("relu", {"rows": 8, "cols": 4}, 2)


@pytest.mark.parametrize(
    ("name", "inputs", "piece", "dims"),
    [
        ("aten::hardshrink", (T((8, 4)), 0.5), "elementwise", {"elements": 32, "reads": 1}),
        (
            "aten::_cdist_forward",
            (T((2, 8, 4)), T((2, 6, 4)), 2.0),
            "bmm",
            {"b": 2, "m": 8, "n": 6, "k": 4},
        ),
        (
            "aten::_embedding_bag_per_sample_weights_backward",
            (T((3, 16)), T((100, 16)), T((12,), "int64"), T((3,), "int64")),
            "tbe",
            {"tables": 1, "batch": 3, "lookups": 12, "dim": 16, "hash_size": 100},
        ),
    ],
)
def test_operators_that_are_a_record_alone(
    name: str, inputs: tuple[Argument, ...], piece: str, dims: dict[str, float]
) -> None:
    record = operator_of(name)
    assert record is not None
    (found,) = by_record(record)(Op(name, inputs))
    assert found.op == piece
    assert dims.items() <= dict(found.dims).items()


def test_a_record_has_integers_quotients_and_waits() -> None:
    """Three groups of two channels each, of two samples; one group where nothing is said."""
    record = Operator("x[n,*s] _ #g", "group_norm rows=n*g cols=s/g; wait")
    norm, wait = by_record(record)(Op("my::norm", (Tensor((2, 6, 4)), None, 3)))
    assert (norm.dims, wait.blocks) == ({"rows": 6, "cols": 8}, True)
    norm, _ = by_record(record)(Op("my::norm", (Tensor((2, 6, 4)),)))
    assert norm.dims == {"rows": 2, "cols": 24}


def test_what_is_made_is_a_guess_where_the_graph_does_not_say() -> None:
    record = Operator("x[*s]", "cumsum:out rows=1 cols=out")
    made = Tensor((3,), "int64")
    (told,) = by_record(record)(Op("my::made", (Tensor((5,)),), (made,)))
    assert (told.dims["cols"], told.dtype, told.guessed) == (3, "int64", False)
    (guess,) = by_record(record)(Op("my::made", (Tensor((5,)),)))
    assert (guess.dims["cols"], guess.dtype, guess.guessed) == (5, "fp32", True)


def test_records_launch_what_there_is() -> None:
    for name in OPERATORS:
        for row in OPERATORS[name].rows:
            if row.op in WHOLE_TENSORS:
                words = {word for _, text in row.dims for word in text.split(",")}
                operands = {word.partition(":")[0] for word in words if not word.isdigit()}
                assert operands <= {ALL, OUTPUT, *OPERATORS[name].tensors}, name
                continue
            if row.op == WAIT:
                assert {dim for dim, _ in row.dims} <= {"if"}, name
                continue
            spec = OPS[row.op]
            known = {*spec.dims, *spec.defaults, "if"}
            assert {dim for dim, _ in row.dims} <= known, name
            assert row.direction in spec.directions, name

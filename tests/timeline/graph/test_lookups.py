"""What the attributes and tensors of embedding ops tell of lookups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.ops.graph import Op, Tensor
from perfmodel.ops.lookups import Lookups, is_lookup, with_recorded_lookups

TABLE = st.tuples(
    st.integers(1, 10**12),
    st.integers(1, 1024),
    st.integers(1, 10**6),
    st.floats(0.01, 1000),
    st.floats(1, 1e9),
    st.floats(0, 3),
)


@given(st.lists(TABLE, min_size=1, max_size=5))
def test_attributes_name_every_table_and_all_together(tables: list[tuple[float, ...]]) -> None:
    columns = [tuple(column) for column in zip(*tables, strict=True)]
    about = Lookups(*columns)  # type: ignore[arg-type]
    found = about.to_attributes()
    for name in ("hash_size", "dim", "batch", "pooling", "unique_rows", "alpha"):
        each = [float(value) for value in found[f"table_{name}"].split(",")]
        assert each == pytest.approx(list(getattr(about, name)))
    assert int(found["tables"]) == len(tables)
    assert float(found["lookups"]) == pytest.approx(sum(about.lookups))
    assert float(found["longest_bag"]) == pytest.approx(max(about.pooling))


def test_tensors_tell_sizes_but_not_repeats() -> None:
    weight, values = Tensor((100, 8), tensor_id=1), Tensor((12, 8), tensor_id=2)
    gradient = Tensor((100, 8), tensor_id=3, layout="sparse")
    bag = Op("aten::_embedding_bag", (weight, Tensor((12,), "int64"), Tensor((4,), "int64")))
    maker = "aten::_sparse_coo_tensor_unsafe"
    made = Op(maker, (Tensor((1, 12), "int64"), values, (100, 8)), (gradient,))
    update = Op("aten::add_", (weight, gradient, -0.01), (weight,))
    dense = Op("aten::add_", (weight, weight, -0.01), (weight,))
    looked_up, _, updated, untouched = with_recorded_lookups([bag, made, update, dense])
    assert looked_up.attributes["pooling"] == "3.0"
    assert looked_up.attributes["lookups"] == updated.attributes["lookups"] == "12"
    assert "unique_rows" not in updated.attributes
    assert untouched is dense


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("aten::embedding_bag", True),
        ("fbgemm::split_embedding_codegen_lookup_sgd_function_pt2", True),
        ("torch::autograd::CppNode<SplitLookupFunction_sgd_Op_pt2>", True),
        ("fbgemm::permute_multi_embedding", False),  # reorders what was looked up
        ("aten::addmm", False),
    ],
)
def test_lookups_are_told_by_their_names(name: str, told: bool) -> None:
    assert is_lookup(name) is told

"""What the attributes and tensors of embedding ops tell of lookups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import GraphError
from perfmodel.graph.lookups import Lookups, lookups_of
from perfmodel.graph.ops import Op, Tensor
from perfmodel.graph.told_lookups import with_told_lookups

TABLE = st.tuples(
    st.integers(1, 10**12),
    st.integers(1, 1024),
    st.integers(1, 10**6),
    st.floats(0.01, 1000),
    st.floats(1, 1e9),
    st.floats(0, 3),
)


@given(st.lists(TABLE, min_size=1, max_size=5))
def test_attributes_are_read_as_they_were_written(tables: list[tuple[float, ...]]) -> None:
    columns = [tuple(column) for column in zip(*tables, strict=True)]
    about = Lookups(*columns)  # type: ignore[arg-type]
    found = lookups_of(about.to_attributes())
    assert found is not None
    assert (found.hash_size, found.dim, found.batch) == (about.hash_size, about.dim, about.batch)
    assert found.pooling == pytest.approx(about.pooling)
    assert found.unique_rows == pytest.approx(about.unique_rows)
    assert found.alpha == pytest.approx(about.alpha)


def test_attributes_that_do_not_hold() -> None:
    good = Lookups((5,), (4,), (3,), (2.0,), (4.0,), (0.0,)).to_attributes()
    assert lookups_of({}) is None
    with pytest.raises(GraphError, match="different length"):
        lookups_of({**good, "table_dim": "4,4"})
    with pytest.raises(GraphError, match="attributes of an embedding op"):
        lookups_of({**good, "table_dim": "four"})


def test_tensors_tell_sizes_but_not_repeats() -> None:
    weight, values = Tensor((100, 8), tensor_id=1), Tensor((12, 8), tensor_id=2)
    gradient = Tensor((100, 8), tensor_id=3, layout="sparse")
    bag = Op("aten::_embedding_bag", (weight, Tensor((12,), "int64"), Tensor((4,), "int64")))
    maker = "aten::_sparse_coo_tensor_unsafe"
    made = Op(maker, (Tensor((1, 12), "int64"), values, (100, 8)), (gradient,))
    update = Op("aten::add_", (weight, gradient, -0.01), (weight,))
    dense = Op("aten::add_", (weight, weight, -0.01), (weight,))
    looked_up, _, updated, untouched = with_told_lookups([bag, made, update, dense])
    assert looked_up.attributes["pooling"] == "3.0"
    assert looked_up.attributes["lookups"] == updated.attributes["lookups"] == "12"
    assert "unique_rows" not in updated.attributes
    assert untouched is dense

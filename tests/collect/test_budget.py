"""Order of cases and the time limit."""

from itertools import islice

import pytest

from perfmodel.collect.families import (
    ALIGNMENT,
    FAMILIES,
    Case,
    Scope,
    informative_order,
    log_points,
    round_robin,
)
from perfmodel.collect.timing import COLUMNS

CPU = Scope("cpu", ("fp32", "bf16", "int8"))
GPU = Scope("cuda", ("fp32", "tf32", "bf16", "fp16", "fp8", "int8"), max_bytes=8e9, max_flop=4e12)


def case(op: str, size: int, dtype: str = "fp32") -> Case:
    return Case(op, dtype, {"elements": size})


def test_round_robin_takes_turns_and_drops_nothing() -> None:
    assert list(round_robin([[1, 2, 3], [], [4], [None, 5]])) == [1, 4, None, 2, 5, 3]


def test_groups_of_all_families_take_turns() -> None:
    first = [case("add", 1), case("add", 2), case("mul", 1)]
    order = informative_order({"a": first, "b": [case("sort", 1), case("sort", 2)]})
    assert [(name, item.op, item.dims["elements"]) for name, item in order] == [
        ("a", "add", 1),
        ("b", "sort", 1),
        ("a", "mul", 1),
        ("a", "add", 2),
        ("b", "sort", 2),
    ]


def test_layouts_of_a_product_take_turns() -> None:
    groups = {c.group for c in FAMILIES["matmul"].cases(CPU) if c.op == "mm" and c.dtype == "fp32"}
    assert {group[3] for group in groups} == {"nn", "nt", "tn"}


@pytest.mark.parametrize("family", list(FAMILIES))
def test_every_dim_of_a_case_has_its_column(family: str) -> None:
    """The table drops others without a word; `fit kernels` then misses them."""
    assert {name for each in FAMILIES[family].cases(GPU) for name in each.dims} <= set(COLUMNS)


def test_points_stay_in_their_box_and_half_are_aligned() -> None:
    ranges = {"m": (1, 65_536), "n": (8, 4_096)}
    points = list(islice(log_points(ranges), 64))
    for point in points:
        assert all(low <= point[name] <= high for name, (low, high) in ranges.items())
    assert all(p[name] <= ALIGNMENT or p[name] % ALIGNMENT == 0 for p in points[::2] for name in p)
    assert any(p["m"] % ALIGNMENT for p in points[1::2])


@pytest.mark.parametrize("quarter", range(4))
def test_a_short_beginning_covers_every_quarter_of_a_range(quarter: int) -> None:
    points = islice(log_points({"m": (1, 2**16)}), 16)
    assert any(2 ** (4 * quarter) <= point["m"] <= 2 ** (4 * quarter + 4) for point in points)


@pytest.mark.parametrize("scope", [CPU, GPU], ids=["cpu", "cuda"])
def test_every_family_offers_distinct_cases_within_the_scope(scope: Scope) -> None:
    families = FAMILIES
    for name in families:
        cases = list(FAMILIES[name].cases(scope))
        if not cases:  # kernels that only a GPU has
            assert not scope.is_gpu, name
            continue
        identities = {(c.group, tuple(sorted(c.dims.items()))) for c in cases}
        assert len(identities) > 0.8 * len(cases), name
        assert {c.dtype for c in cases} <= {*scope.dtypes, "int64", "int32", "bool"}
        assert all(c.size_bytes > 0 for c in cases)


@pytest.mark.parametrize("dtype", ["fp8", "int8"])
def test_narrow_products_have_the_alignment_that_they_need(dtype: str) -> None:
    cases = [c for c in FAMILIES["matmul"].cases(GPU) if c.dtype == dtype]
    assert cases
    assert all(c.dim(name) % 16 == 0 and c.dim(name) > 16 for c in cases for name in "mnk")


def test_only_a_gpu_is_asked_for_transfers_to_and_from_the_host() -> None:
    assert {c.op for c in FAMILIES["copies"].cases(CPU)} == {"copy"}
    assert {c.op for c in FAMILIES["copies"].cases(GPU)} == {"copy", "copy_h2d", "copy_d2h"}

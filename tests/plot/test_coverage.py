"""Shares of bins, and short names."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.plot.names import short_name
from perfmodel.plot.timeline import coverage


def share(pieces: list[tuple[float, float]], edges: list[float]) -> list[float]:
    start, end = np.array(pieces, float).reshape(-1, 2).T
    return coverage(start, end, np.array(edges, float)).tolist()


def test_a_bin_counts_what_is_covered_once() -> None:
    assert share([(1, 3), (2, 4)], [0, 2, 4, 6]) == [0.5, 1.0, 0.0]
    assert share([(1, 9), (2, 3), (8.5, 10)], [0, 5, 10]) == [0.8, 1.0]
    assert share([], [0, 1, 2]) == [0.0, 0.0]


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 20)), max_size=30),
    st.integers(1, 40),
)
def test_all_bins_together_are_the_union(pieces: list[tuple[int, int]], bins: int) -> None:
    spans = [(low, low + length) for low, length in pieces]
    edges = np.linspace(0, 120, bins + 1)
    covered = {tick for low, high in spans for tick in range(low, high)}
    total = sum(share(spans, edges.tolist())) * 120 / bins
    assert total == pytest.approx(len(covered), abs=1e-9)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("aten::linear", "aten::linear"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0"),
        ("void at::native::reduce_kernel<512, 1, X<float> >(X<float>)", "reduce_kernel"),
        ("void (anonymous namespace)::f<float>(int)", "f"),
        (
            "ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)",
            "ncclDevKernel_SendRecv",
        ),
        ("volta_sgemm_128x64_tn", "volta_sgemm_128x64_tn"),
        ("<script>", "<script>"),
        ("", ""),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short

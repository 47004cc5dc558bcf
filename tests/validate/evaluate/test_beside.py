"""Kernels beside those of other streams."""

from __future__ import annotations

import numpy as np

from perfmodel.validate.evaluate.shapes import overlap_us


def test_time_beside_any_other_stream_counts_once() -> None:
    stream = np.array([7, 7, 20, 20, 21])
    start = np.array([0.0, 10.0, 2.0, 4.0, 3.0])
    duration = np.array([10.0, 5.0, 2.0, 3.0, 3.0])
    assert overlap_us(stream, start, duration).tolist() == [5.0, 0.0, 2.0, 3.0, 3.0]


def test_one_stream_is_alone() -> None:
    zeros = overlap_us(np.array([7, 7]), np.array([0.0, 1.0]), np.array([5.0, 5.0]))
    assert zeros.tolist() == [0.0, 0.0]

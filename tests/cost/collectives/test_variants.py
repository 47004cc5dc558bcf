"""All-reduces by kernels of frameworks, one hop over links, and what no curve was fitted of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.cost.collectives.calls import EAGER, Calls, calls_of, fabric_of
from perfmodel.cost.collectives.durations import collective_durations, explain_collectives
from perfmodel.cost.collectives.heuristic import costs_of
from perfmodel.hardware import cluster, node
from perfmodel.ops.rows import Rows
from perfmodel.validate.calibrate.collectives import initial_constants

H100 = node("dgx-h100")


def calls(op: str, size_bytes: float, ranks: int, custom: int = 1, nodes: int = 1) -> Calls:
    row = {"op": op, "size_bytes": size_bytes, "ranks": ranks, "nodes": nodes, "custom": custom}
    return calls_of(Rows.of([row]), fabric_of(H100))


def by_hand(found: Calls) -> tuple[str, float]:
    """Algorithm and microseconds, with the constants that the fit starts from."""
    costs = costs_of(found, initial_constants())
    return costs.names[costs.chosen[0]], float(costs.total_us[0])


def test_one_shot_reads_every_buffer() -> None:
    """3 us of a call, a barrier of 1.5 and 0.2 per rank, 1 MB at 65 % of 450 GB/s."""
    name, us = by_hand(calls("all_reduce", 1e6, 2))
    assert name.startswith("one_shot")
    assert us == pytest.approx(3 + 1.9 + 1e6 / 292.5e3)


def test_two_shots_read_parts() -> None:
    """Of eight ranks: two barriers of 3.1 us, and 14/8 of the buffer in the place of seven."""
    name, us = by_hand(calls("all_reduce", 1e6, 8))
    assert name.startswith("two_shot")
    assert us == pytest.approx(3 + 6.2 + 1.75e6 / 292.5e3)


def test_alone_a_launch_and_a_copy_come_before() -> None:
    """12 us, and the buffer read and written at 7 times the links' rate."""
    found = calls("all_reduce", 1e6, 8)
    eager = replace(found, variant=np.array([EAGER]))
    assert by_hand(eager)[1] - by_hand(found)[1] == pytest.approx(12 + 2e6 / 3150e3)


@pytest.mark.parametrize(
    ("op", "custom", "ranks", "nodes"),
    [("all_reduce", 0, 8, 1), ("all_gather", 1, 8, 1), ("all_reduce", 1, 16, 2)],
)
def test_the_library_runs_the_rest(op: str, custom: int, ranks: int, nodes: int) -> None:
    assert "shot" not in by_hand(calls(op, 1e5, ranks, custom, nodes))[0]


def test_large_buffers_are_left_to_the_library() -> None:
    assert by_hand(calls("all_reduce", 1e9, 8))[0] == "multicast/simple"


def test_one_hop_has_nothing_to_fill() -> None:
    """6 us of a call, a hop of 2, 1 GB at 80 % x 95 % of 450 GB/s."""
    name, us = by_hand(calls("send_recv", 1e9, 2, 0))
    assert name == "direct/simple"
    assert us == pytest.approx(6 + 2 + 1e9 / 342e3)


def test_what_no_curve_was_fitted_of_is_the_heuristics() -> None:
    """Within a node no curve of send-receive or broadcast was; between nodes send-receive."""
    sizes = [{"size_bytes": 2.0**25, "ranks": 2, "nodes": nodes} for nodes in (1, 1, 2)]
    ops = ("send_recv", "broadcast", "send_recv")
    rows = Rows.of([{"op": op, **each} for op, each in zip(ops, sizes, strict=True)])
    factors = [each.terms["learned_factor"] for each in explain_collectives(rows, cluster(H100, 2))]
    assert factors[:2] == pytest.approx([1.0, 1.0])
    assert abs(factors[2] - 1.0) > 0.01


def test_what_waits_for_bytes_is_known_better() -> None:
    """By the latency on these links, not on slower ones, where 1 MB would wait for bytes."""
    rows = Rows.of(
        [{"op": "all_gather", "size_bytes": size, "ranks": 8} for size in (2.0**20, 2.0**30)]
    )
    found = collective_durations(rows, H100)
    small, large = found.high_us / found.duration_us
    assert large < 1.25 < 1.5 < small

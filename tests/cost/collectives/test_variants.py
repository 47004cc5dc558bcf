"""One hop over links, what no curve was fitted of, and how sure answers are."""

from __future__ import annotations

import pytest

from benchmarks.collective_model import initial_constants
from perfmodel.cost.collectives.algorithms import costs_of
from perfmodel.cost.collectives.calls import calls_of, fabric_of
from perfmodel.cost.collectives.learned import collective_durations, explain_collectives
from perfmodel.hardware import cluster, node
from perfmodel.ops.rows import Rows

H100 = node("dgx-h100")


def test_one_hop_has_nothing_to_fill() -> None:
    """6 us of a call, a hop of 2, 1 GB at 80 % x 95 % of 450 GB/s."""
    row = {"op": "send_recv", "size_bytes": 1e9, "ranks": 2}
    costs = costs_of(calls_of(Rows.of([row]), fabric_of(H100)), initial_constants())
    assert costs.names[costs.chosen[0]] == "direct/simple"
    assert costs.total_us[0] == pytest.approx(6 + 2 + 1e9 / 342e3)


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

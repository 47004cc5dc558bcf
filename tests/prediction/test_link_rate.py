"""Steps over the rate of links."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.hardware import cluster
from perfmodel.prediction import predict

RATES_GB_PER_S = (50.0, 150.0, 300.0, 600.0, 1200.0)
MAX_SLOWER = 1.01
"""Hidden exchanges draw faster from the memory of the kernels beside them: no more than this."""


@pytest.mark.parametrize(("workload", "nodes"), [("dlrm-dcnv2", 1), ("criteo-terabyte", 2)])
def test_faster_links_slow_no_step_by_more_than_a_percent(workload: str, nodes: int) -> None:
    machine = cluster("dgx-a100-80gb", nodes)
    link = machine.node.link
    assert link is not None
    steps_us = [
        predict(
            workload,
            hardware=[
                replace(machine, node=replace(machine.node, link=replace(link, gb_per_s=rate)))
            ],
        )
        .results[0]
        .step_us
        for rate in RATES_GB_PER_S
    ]
    best_us = steps_us[0]
    for step_us in steps_us[1:]:
        assert step_us <= MAX_SLOWER * best_us
        best_us = min(best_us, step_us)

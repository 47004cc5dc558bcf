"""A trace on many machines at once is what it is on each alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny import Tiny

from perfmodel import read
from perfmodel.errors import TraceError
from perfmodel.explore.axes import Machines, Points
from perfmodel.explore.evaluate import TraceFigures
from perfmodel.explore.spec import STEP, Spec
from perfmodel.prediction import predict
from perfmodel.prediction.transferred import transfer_durations
from perfmodel.trace import Trace

CLOSE = 1e-5
SOURCE = "v100-sxm2-32gb"


def compare(trace: Trace, columns: dict[str, list], base: str | None = SOURCE) -> np.ndarray:
    """Steps of all points, each compared with the prediction of its machine alone."""
    points = Points.of(columns)
    steps = TraceFigures(Spec(trace=trace, hardware=base, points=points))
    found = steps(points)[STEP]
    graph = steps.periods.graph
    for point in range(len(points)):
        moved = transfer_durations(
            trace, graph, graph.nodes_.duration_us, steps.machines.at(points.at(point))
        )
        alone = max(map(np.median, steps.periods.step_us(moved.duration_us)))
        assert found[point] == pytest.approx(alone, rel=CLOSE)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 3])
def test_figures_of_one_rank_of_dlrm(reference: Path, rank: int) -> None:
    trace = read(reference / f"traces/dlrm_v100x8/kineto_rank{rank}.json.gz")
    rng = np.random.default_rng(rank)
    found = compare(
        trace,
        {
            "device.hbm_gb_per_s": rng.uniform(600, 2400, 6).tolist(),
            "device.sm_count": rng.integers(60, 150, 6).tolist(),
            "device.tf32_tflop_per_s": [50.0, 60.0] * 3,
            "device.pcie_gb_per_s": [16.0, 32.0, 64.0] * 2,
            "link.gb_per_s": [50.0, 100.0] * 3,
            "nodes": [1, 1, 1, 2, 2, 2],
            "host.single_thread_ratio": rng.uniform(0.5, 2.0, 6).tolist(),
        },
    )
    assert len(set(found.tolist())) == 6


@pytest.mark.slow
def test_catalogue_entries_of_either_maker(reference: Path) -> None:
    trace = read(reference / "traces/dlrm_v100x8/kineto_rank0.json.gz")
    names = [SOURCE, "dgx-h100", "mi300x", "a100-sxm-40gb", "dgx-h100", "h100-sxm"]
    hbm = [900.0, 3350.0, 5300.0, 1555.0, 2000.0, 3350.0]
    found = compare(trace, {"hardware": names, "device.hbm_gb_per_s": hbm}, base=None)
    assert len(set(found.tolist())) > 3


def test_ranks_that_meet_and_kernels_without_shapes(reference: Path) -> None:
    trace = read(reference / "traces/torchrec_v100x4/sst_long_a2a_optimizer_3_29220")
    found = compare(
        trace,
        {"device.hbm_gb_per_s": [700.0, 1800.0, 900.0], "hardware": ["dgx-1", "dgx-1", "h100-sxm"]},
        base=None,
    )
    answer = predict(trace, hardware=[Machines({}, base="h100-sxm").at({})])
    again = TraceFigures(Spec(trace=trace, hardware="h100-sxm"))(Points.of({}))[STEP]
    assert again[0] == pytest.approx(answer.results[0].step_us, rel=CLOSE)
    assert found[1] < found[0]


def test_a_trace_without_a_gpu_cannot_move() -> None:
    tiny = Tiny()
    tiny.head["deviceProperties"] = []
    tiny.launch(10, 12, (14, 30))
    with pytest.raises(TraceError, match="does not name its GPU"):
        TraceFigures(Spec(trace=tiny.trace(), hardware=SOURCE))


def test_what_uses_no_part_of_an_axis_is_asked_once(reference: Path) -> None:
    trace = read(reference / "traces/dlrm_v100x8/kineto_rank0.json.gz")
    links = [50.0, 100.0, 150.0]
    points = Points.of({"link.gb_per_s": links * 4, "device.hbm_gb_per_s": [1e3, 2e3] * 6})
    steps = TraceFigures(Spec(trace=trace, hardware=SOURCE, points=points))
    steps(points)
    (pieces,), _ = steps.transfers._pieces.of(points)
    asked = [len(each.of(points)[0]) for each in (pieces.kernels_us, pieces.others_us)]
    assert asked == [2, 3], "kernels by bandwidth, collectives by links; never by all six"

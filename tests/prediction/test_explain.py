"""Every duration of a prediction can be traced to what it follows from."""

from __future__ import annotations

import numpy as np
import pytest
from prediction.test_shapes import LARGE, MACHINE, _costs
from prediction.test_transferred import _product_ratio, _tiny

from perfmodel.cost.durations import durations_of
from perfmodel.errors import UsageError
from perfmodel.hardware import cluster
from perfmodel.lowering import lower
from perfmodel.prediction import Result, predict
from perfmodel.prediction.explain import reason_of_row
from perfmodel.prediction.shapes import predict_shapes
from perfmodel.workload import load_workload


def _shapes() -> Result:
    return predict_shapes([LARGE], MACHINE, name="v100", costs=_costs(7.0, ratio=2.0))


def test_a_kernel_of_a_model_is_its_models() -> None:
    found = _shapes().explain("aten::mm")
    rows = lower(LARGE, "cuda", device=MACHINE.node.device).rows
    assert found.matches == 12, "T1, T2, T3 and a kernel of each"
    assert found.node["op"] == "aten::mm"
    assert found.reason.duration_us == pytest.approx(found.duration_us)
    assert found.duration_us == pytest.approx(durations_of(rows, MACHINE).duration_us[0])
    terms = found.reason.terms
    assert terms["flop"] == 2 * 4096.0**3
    assert terms["bound_by"] == "compute"
    assert "kernel = max(" in found.reason.formula
    read = {each.figure: each for each in found.reason.figures}
    assert read["device.fp32_tflop_per_s"].value == MACHINE.node.device.fp32_tflop_per_s
    assert read["device.fp32_tflop_per_s"].source
    assert "nic.gb_per_s" not in read


def test_a_piece_of_the_host_is_its_profiles() -> None:
    found = _shapes().explain("T2 aten::mm")
    assert found.duration_us == found.reason.duration_us == 14.0
    assert found.reason.terms["host_ratio"] == 2.0
    assert found.reason.terms["filed_under"] == "any T2"
    assert found.waits_for is not None
    assert found.waits_for["edge"] == "program"


def test_every_node_of_a_step_has_a_reason_for_just_its_duration() -> None:
    workload = load_workload("dlrm-mlperf").with_(batch=2048)
    result = predict(workload, hardware=["dgx-a100-40gb"]).results[0]
    nodes = result.timeline.graph.nodes_
    for node in range(0, len(nodes), 7):
        found = result.explain(node)
        assert found.reason.duration_us == pytest.approx(found.duration_us, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("asked", "of", "parts"),
    [
        ("aten::mm", "models of its op", {"v100-sxm2-16gb", "a100-sxm-80gb"}),
        ("2", "the hosts' speed", {"epyc-7742"}),
    ],
)
def test_a_transferred_node_names_both_sides(asked: str, of: str, parts: set[str]) -> None:
    found = predict(_tiny().trace(), hardware=["a100-sxm-80gb"]).results[0].explain(asked)
    terms = found.reason.terms
    assert terms["ratio_of"] == of
    assert terms["measured_us"] * terms["ratio"] == pytest.approx(found.duration_us)
    assert {each.part for each in found.reason.figures} >= parts
    if asked == "aten::mm":
        assert terms["ratio"] == pytest.approx(_product_ratio())


def test_without_an_op_the_class_decides() -> None:
    classes = predict(_tiny(shapes=False).trace(), hardware=["a100-sxm-80gb"]).results[0]
    rows = classes.timeline.graph.device_span()[1]
    reason = classes.explain(int(rows[0])).reason
    assert reason.terms["ratio_of"] == "rooflines of its class"
    assert {each.figure for each in reason.figures} >= {"device.kernel_floor_us"}


def test_a_replayed_kernel_is_its_event_and_the_what_ifs() -> None:
    plain = predict(_tiny().trace()).results[0].explain("aten::mm")
    assert plain.reason.what == "measured event"
    assert plain.reason.terms["event_us"] == 400.0
    assert plain.waits_for is not None
    assert plain.waits_for["lag_us"] >= 0
    scaled = predict(_tiny().trace(), scale=["gpu=0.5"]).results[0].explain("aten::mm")
    assert scaled.duration_us == scaled.reason.duration_us == 200.0
    assert scaled.reason.terms == plain.reason.terms | {"gpu=0.5 factor": 0.5}


def test_what_is_on_the_critical_path_has_no_slack() -> None:
    result = _shapes()
    told = [result.explain(node) for node in range(len(result.timeline.graph))]
    on_path = [each for each in told if each.node["on_critical_path"]]
    assert on_path
    assert all(each.node["slack_us"] == pytest.approx(0.0) for each in on_path)


@pytest.mark.parametrize("asked", ["no such kernel", "", "99999"])
def test_what_is_not_there_names_what_is(asked: str) -> None:
    with pytest.raises(UsageError, match=r"nearest: |numbered from 0 to"):
        _shapes().explain(asked)


def test_only_figures_of_parts_that_are_used_are_listed() -> None:
    alone = predict("lin-dlrm-default", hardware=["h100-sxm"]).results[0]
    together = predict("dlrm-mlperf", hardware=["dgx-h100"], batch=2048).results[0]
    assert {"device.hbm_gb_per_s"} < {each.figure for each in alone.reads}
    assert not any(each.figure.startswith("link.") for each in alone.reads)
    assert any(each.figure.startswith("link.") for each in together.reads)
    assert set(alone.assumed) < set(alone.reads)
    assert "host.single_thread_ratio" in {each.figure for each in alone.assumed}
    assert all(each.source for each in alone.reads)


def test_a_row_alone_takes_what_it_takes_among_others() -> None:
    rows = lower(LARGE, "cuda", device=MACHINE.node.device).rows
    taken = durations_of(rows, cluster("a100-sxm-80gb")).duration_us
    alone = [reason_of_row(rows, cluster("a100-sxm-80gb"), at).duration_us for at in range(3)]
    np.testing.assert_allclose(alone, taken)

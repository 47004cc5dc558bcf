"""One request for every source: what is taken, what is refused, and when."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tiny import Tiny

from perfmodel.designs import deployment_of
from perfmodel.embedding import Placement
from perfmodel.embedding.placement import TablePlacement
from perfmodel.errors import UsageError
from perfmodel.hardware import Cluster, cluster
from perfmodel.prediction import Request, predict, predicted
from perfmodel.prediction.serving import Serving
from perfmodel.workload import Workload, load_workload

KAGGLE = load_workload("criteo-kaggle")
MACHINE = cluster("dgx-a100-40gb")


def test_predict_takes_what_a_request_holds() -> None:
    assert [*inspect.signature(predict).parameters] == [each.name for each in fields(Request)]
    with pytest.raises(TypeError, match="hardwre"):
        predict(KAGGLE, hardwre=MACHINE)  # type: ignore[call-arg]


def test_a_workload_by_name_by_file_and_as_a_value_is_the_same(tmp_path: Path) -> None:
    file = tmp_path / "criteo-kaggle.toml"
    home = Path(inspect.getfile(load_workload)).parent / "catalogue"
    file.write_text((home / file.name).read_text(encoding="utf-8"), encoding="utf-8")
    answers = [
        predicted(Request(source, hardware=MACHINE)).to_dict()
        for source in ("criteo-kaggle", str(file), file, KAGGLE)
    ]
    assert all(answer == answers[0] for answer in answers)


def test_machines_are_answered_in_turn_and_what_is_said_of_each_is_said_once() -> None:
    found = predict(KAGGLE, hardware=["dgx-1", "dgx-h100", "dgx-1"], batch=4096, edit="cast=fp16")
    assert [result.hardware for result in found.results] == ["dgx-1", "dgx-h100", "dgx-1"]
    assert found.results[0].step_us == found.results[2].step_us
    assert len(set(found.warnings)) == len(found.warnings)
    assert found.source["edits"] == ["cast=fp16"]
    assert found.source["batch"] == 4096


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("scale", "gpu=0.5"),
        ("remove", "gpu"),
        ("codec", ".*=fp16"),
        ("keep_contention", True),
        ("leave_one_step_out", True),
        ("mode", "replay"),
    ],
)
def test_a_configuration_has_no_measured_times(option: str, value: Any) -> None:
    asked: dict[str, Any] = {option: value}
    with pytest.raises(UsageError, match=f"^{option} cannot be combined with a workload$"):
        predict(KAGGLE, hardware=MACHINE, **asked)
    with pytest.raises(UsageError, match=f"^{option} cannot be combined with a deployment$"):
        predict(deployment_of(KAGGLE, MACHINE), **asked)


@pytest.mark.parametrize(
    "asked", [{"hardware": MACHINE}, {"batch": 64}, {"nodes": 2}, {"train": False}]
)
def test_a_deployment_says_by_itself_where_it_runs(asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="cannot be combined with a deployment"):
        predict(deployment_of(KAGGLE, MACHINE), **asked)


def test_a_trace_says_by_itself_what_ran() -> None:
    tiny = Tiny()
    tiny.op("aten::mm", 0, 10)
    for asked in ({"train": False}, {"every_rank": True}):
        with pytest.raises(UsageError, match="cannot be combined with a trace"):
            predict(tiny.trace(), **asked)


def test_what_is_wrong_by_itself_is_refused_before_anything_is_predicted() -> None:
    for asked in ({"scale": "gpu"}, {"remove": "disk"}, {"codec": "x"}, {"edit": "unknown"}):
        with pytest.raises(UsageError, match=f"^{next(iter(asked))}"):
            Request("no-such-workload", **asked)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="criteo-kaggle: say on which hardware"):
        predict(KAGGLE)
    with pytest.raises(UsageError, match="nothing is predicted of a int"):
        predict(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="nothing is predicted of a builtin"):
        predict(print)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="of forward passes"):
        predict("criteo-kaggle", hardware="dgx-1", serving=Serving.of(1e5, None, None))


def test_python_asks_for_latencies_and_layouts_as_the_command_line_does() -> None:
    """Each machine is served in batches of its own; tables lie as they are told, machine by
    machine."""
    asked = Serving.of(1e5, None, 5.0)
    found = predict("criteo-kaggle", hardware=["dgx-1", "t4"], train=False, serving=asked)
    rows = found.source["serving"]
    assert [row["hardware"] for row in rows] == ["dgx-1", "t4"]
    assert all(row["rate_per_s"] == 1e5 and row["max_delay_us"] == 5_000 for row in rows)

    def on_one_rank(of: Workload, machine: Cluster) -> Placement:
        return Placement(tuple(TablePlacement("table_wise", (0,)) for _ in of.tables))

    (laid,) = predict(KAGGLE, hardware="dgx-1", layout=on_one_rank).results
    start = deployment_of(KAGGLE, cluster("dgx-1"))
    told = start.with_(placement=on_one_rank(KAGGLE, start.machine))
    assert laid.step_us == predict(told).results[0].step_us
    assert laid.step_us != predict(KAGGLE, hardware="dgx-1").results[0].step_us


def test_what_is_of_workloads_is_refused_elsewhere() -> None:
    with pytest.raises(UsageError, match="serving cannot be combined with a trace"):
        predict("demo:", serving=Serving.of(1.0, None, None))

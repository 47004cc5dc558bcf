"""`steps` of `read`: the same figures of a step as of the whole trace, from its part alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli.samples import document, write

import perfmodel
from perfmodel.errors import UsageError

DEMO = Path(perfmodel.__file__).parent / "demo" / "dlrm_cpu_kineto.json.gz"


@pytest.mark.parametrize("steps", [slice(2, 4), slice(0, 1), slice(-2, None), slice(None)])
def test_breakdown_of_some_steps_is_that_of_all(steps: slice) -> None:
    whole = perfmodel.breakdown(perfmodel.read(DEMO)).ranks[0].steps[steps]
    trace = perfmodel.read(DEMO, steps=steps, context=1)
    part = perfmodel.breakdown(trace).ranks[0].steps[trace.chosen]
    assert [each.name for each in part] == [each.name for each in whole]
    for one, other in zip(part, whole, strict=True):
        assert one.accounting.step_us == pytest.approx(other.accounting.step_us)
        assert one.idle_by_cause == pytest.approx(other.idle_by_cause)


def test_only_what_is_asked_for_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", document(steps=8))
    trace = perfmodel.read(path, steps=slice(3, 5))
    (rank,) = trace.ranks
    assert trace.links[0].steps.names == ("ProfilerStep#3", "ProfilerStep#4")
    assert trace.chosen == slice(0, 2)
    assert len(rank) == 2 * 7
    assert not trace.warnings
    around = perfmodel.read(path, steps=slice(3, 5), context=1)
    assert around.chosen == slice(1, 3)
    assert len(around.links[0].steps) == 4


def test_kernels_that_run_after_their_step_stay(tmp_path: Path) -> None:
    content = document(steps=4)
    late = [e for e in content["traceEvents"] if e["cat"] == "kernel"][3]
    late["ts"] += 60  # of step 1, in step 2
    rank = perfmodel.read(write(tmp_path / "late.json", content), steps=slice(0, 2)).ranks[0]
    kernels = rank.correlation[rank.is_device]
    assert sorted(np.unique(kernels).tolist()) == [1, 2, 11, 12]


def test_steps_that_are_not_there(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", document(steps=3))
    with pytest.raises(UsageError, match="none of the 3 steps"):
        perfmodel.read(path, steps=slice(5, 8))
    content = document(steps=3)
    content["traceEvents"] = [e for e in content["traceEvents"] if "Step" not in e["name"]]
    bare = write(tmp_path / "bare.json", content)
    with pytest.raises(UsageError, match=r"bare\.json: steps"):
        perfmodel.read(bare, steps=slice(0, 1))


def test_step_annotations_in_texts_are_none(tmp_path: Path) -> None:
    content = document(steps=3)
    fake = json.dumps({**content["traceEvents"][0], "name": "ProfilerStep#9"})
    content["traceEvents"][1]["args"]["comment"] = fake
    path = write(tmp_path / "fake.json", content)
    assert len(perfmodel.read(path, steps=slice(0, 2)).links[0].steps) == 2


def test_a_part_of_a_whole_file_is_not_incomplete() -> None:
    for steps in (slice(3, None), slice(1, 2)):  # ids of operators of other steps lie between
        trace = perfmodel.read("demo:gpu", steps=steps)
        assert trace.links[0].recorded_frac == perfmodel.read("demo:gpu").links[0].recorded_frac

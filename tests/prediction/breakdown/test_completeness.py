"""What a recording cannot tell: said first, and nothing of a whole one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli.samples import event

from perfmodel import breakdown, predict
from perfmodel.prediction.breakdown.completeness import Gap, completeness, incomplete
from perfmodel.trace.read import read


def step(
    call: str = "cudaLaunchKernel",
    kernels: int = 4,
    recorded: int = 4,
    *,
    operators: bool = True,
    shapes: bool = True,
    world_size: int = 1,
    untied: int = 0,
) -> dict[str, Any]:
    """A step of 1000 with kernels of 100 every 200, the last `recorded` of them in the file."""
    args = {"Input Dims": [[4, 4]], "Input type": ["float"]} if shapes else {}
    events = [event("user_annotation", "ProfilerStep#1", 0, 1000)]
    for number in range(kernels):
        at, correlation = 10 + 200 * number, {"correlation": number + 1}
        name = "ncclDevKernel_AllReduce" if number == kernels - 1 else "gemm"
        work = correlation | {"device": 0, "stream": 7}
        if operators:
            events.append(event("cpu_op", "aten::mm", at, at + 20, args=args))
        if number >= untied:
            events.append(event("cuda_runtime", call, at + 5, at + 15, args=correlation))
        if number >= kernels - recorded:
            events.append(event("kernel", name, at + 20, at + 120, tid=7, pid=0, args=work))
    job = {"rank": 0, "world_size": world_size}
    device = {"name": "Tesla V100-SXM2-16GB", "totalGlobalMem": 16_945_512_448, "numSms": 80}
    return {"deviceProperties": [device], "distributedInfo": job, "traceEvents": events}


def gaps(tmp_path: Path, content: dict[str, Any]) -> list[Gap]:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content))
    return completeness(read(path))


def test_a_whole_recording_has_no_line(tmp_path: Path) -> None:
    assert gaps(tmp_path, step()) == []
    assert incomplete([]) == []


@pytest.mark.parametrize(
    ("content", "what", "size"),
    [
        (step(recorded=3), "1 of 4 kernel launches have no kernel", {"count": 1}),
        (step(recorded=0), "4 of 4 kernel launches have no kernel", {"count": 4}),
        (step("hipLaunchKernel", recorded=2), "2 of 4 kernel launches", {"count": 2}),
        (
            step("cudaGraphLaunch"),
            "40 % of this step is in graph launches: no operator can be",
            None,
        ),
        (step("hipGraphLaunch"), "40 % of this step is in graph launches", {"share": 0.4}),
        (step("cuGraphLaunch", kernels=2, recorded=2), "20 % of this step", {"share": 0.2}),
        (step(untied=2), "the launches of 50 % of the GPU time are not in", {"share": 0.5}),
        (step(operators=False), "no operator was recorded", {"count": 1}),
        (step(shapes=False), "no shapes were recorded", {"count": 4}),
        (step(world_size=8), "7 of 8 ranks are not here", {"count": 7}),
    ],
)
def test_each_kind_is_said(
    tmp_path: Path, content: dict[str, Any], what: str, size: dict[str, float] | None
) -> None:
    (gap,) = gaps(tmp_path, content)
    answer = gap.to_dict()
    assert answer["what"].startswith(what)
    assert answer["touches"]
    if size is not None:
        assert {key: answer[key] for key in ("share", "count") if key in answer} == size


def test_one_line_for_all_of_it_and_the_same_in_every_answer(tmp_path: Path) -> None:
    found = gaps(tmp_path, step(recorded=3, shapes=False))
    assert incomplete(found) == [
        "incomplete recording: 1 of 4 kernel launches have no kernel (affects GPU time, idle time, "
        "gains); no shapes were recorded (affects rates, kernels on other hardware)"
    ]
    path = tmp_path / "trace.json"
    expected = [gap.to_dict() for gap in found]
    assert breakdown(path).to_dict()["completeness"] == expected
    assert predict(path).to_dict()["completeness"] == expected


def test_steps_that_nothing_marks_are_named(tmp_path: Path) -> None:
    """Three calls of an optimizer are too few to say that each ends a step, but not nothing."""
    content = step()
    _, *events = content["traceEvents"]
    name = "Optimizer.step#Adam.step"
    calls = [event("user_annotation", name, at, at + 5) for at in (150, 350, 900)]
    one = content | {"traceEvents": [*events, calls[0]]}
    assert gaps(tmp_path, one) == []
    (gap,) = gaps(tmp_path, content | {"traceEvents": [*events, *calls]})
    assert gap.what == f"nothing marks steps, though 3 were made: --steps-by '{name}'"
    marked = read(tmp_path / "trace.json", steps_by=name)
    assert [len(links.steps) for links in marked.links] == [2]
    assert completeness(marked) == []


def test_of_several_optimizers_the_one_that_steps_most_is_named(tmp_path: Path) -> None:
    """One that steps once marks none."""
    content = step()
    _, *events = content["traceEvents"]
    names = [f"Optimizer.step#{kind}.step" for kind in ("SGD", "Adam", "Adam", "Adam")]
    ends = zip(names, (150, 350, 600, 900), strict=True)
    calls = [event("user_annotation", name, at, at + 5) for name, at in ends]
    assert gaps(tmp_path, content | {"traceEvents": [*events, *calls[:2]]}) == []
    (gap,) = gaps(tmp_path, content | {"traceEvents": [*events, *calls]})
    assert gap.what == f"nothing marks steps, though 3 were made: --steps-by '{names[1]}'"
    assert gap.count == 3
    (links,) = read(tmp_path / "trace.json", steps_by=names[1]).links
    assert len(links.steps) == 2


def test_ranks_that_do_not_meet_miss_nobody(tmp_path: Path) -> None:
    """Without a collective nothing waits for the ranks that are not here."""
    content = step(world_size=8)
    for each in content["traceEvents"]:
        if each["name"].startswith("nccl"):
            each["name"] = "gemm"
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content))
    assert breakdown(path).to_dict()["completeness"] == []


def test_configurations_are_whole() -> None:
    answer = predict("dlrm-dcnv2", hardware="dgx-h100").to_dict()
    assert answer["completeness"] == []


def test_the_tool_of_an_export_is_named(reference: Path) -> None:
    (rank,) = (trace := read(reference / "field/nsys_whole_graphs.sqlite")).ranks
    assert rank.tool == "an export of Nsight Systems"
    assert completeness(trace)[0].what.startswith("this is an export of Nsight Systems")

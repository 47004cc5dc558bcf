"""`perfmodel diff --fail-over`: did a change help?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Run
from cli.samples import check_schema, event, write

STEP, NAME = "ProfilerStep#", "gemm_kernel"


def loop(
    steps_us: Sequence[float], rank: int = 0, world_size: int = 1, memory: int = 0, comm_us: int = 0
) -> dict[str, Any]:
    """Steps of these lengths, each one operator and one kernel of half of it, and a collective."""
    events, at = [], 1000.0
    for number, us in enumerate(steps_us):
        events.append(event("user_annotation", f"{STEP}{number}", at, at + us))
        for nth, (name, begun, length) in enumerate(
            ((NAME, 20, us / 2), ("ncclDevKernel_AllReduce", us / 2 + 30, comm_us))
        ):
            if not length:
                continue
            call = {"correlation": 10 * number + nth + 1}
            work = call | {"device": 0, "stream": 7}
            start = at + begun
            events += [
                event("cpu_op", "aten::mm", start - 15, start - 2),
                event("cuda_runtime", "cudaLaunchKernel", start - 10, start - 5, args=call),
                event("kernel", name, start, start + length, tid=7, pid=0, args=work),
            ]
        at += us
    if memory:
        args = {"Device Type": 1, "Device Id": 0, "Bytes": memory, "Addr": 64}
        args |= {"Total Allocated": memory, "Total Reserved": memory}
        body = {"ph": "i", "s": "t", "name": "[memory]", "cat": "cpu_instant_event", "pid": 1}
        events.append(body | {"tid": 1, "ts": 1010.0, "args": args})
    device = {"name": "Tesla V100-SXM2-16GB", "totalGlobalMem": 16_945_512_448, "numSms": 80}
    job = {"rank": rank, "world_size": world_size}
    return {"deviceProperties": [device], "distributedInfo": job, "traceEvents": events}


def window(kernels: int, kernel_us: float) -> dict[str, Any]:
    """A recording without marks of steps: so many kernels, back to back."""
    events, at = [], 1000.0
    for number in range(kernels):
        call = {"correlation": number + 1}
        events += [
            event("cpu_op", "aten::mm", at - 15, at - 2),
            event("cuda_runtime", "cudaLaunchKernel", at - 10, at - 5, args=call),
            event(
                *("kernel", NAME, at, at + kernel_us),
                tid=7,
                pid=0,
                args=call | {"device": 0, "stream": 7},
            ),
        ]
        at += kernel_us + 20
    return {"traceEvents": events}


def diff(run: Run, tmp_path: Path, a: Any, b: Any, *words: str) -> tuple[int, dict[str, Any]]:
    paths = [write(tmp_path / f"{name}.json", each) for name, each in (("a", a), ("b", b))]
    ran = run("diff", *paths, *words, "--format", "json")
    answer = json.loads(ran.out)
    check_schema("diff", answer)
    return ran.status, answer


def test_slower_equal_and_faster(run: Run, tmp_path: Path) -> None:
    before = loop([1000] * 5)
    limits = ("--fail-over", "step=5%")
    status, slower = diff(run, tmp_path, before, loop([1130] * 5), *limits)
    assert (status, slower["failed"]) == (1, True)
    assert slower["verdict"].startswith("13.0 % slower: step 1.00 ms to 1.13 ms")
    assert "over the limit: step +13.0 % (limit 5 %)" in slower["verdict"]
    status, same = diff(run, tmp_path, before, before, *limits)
    assert (status, same["held"][0]["outcome"]) == (0, "unchanged")
    assert same["verdict"].startswith("no change")
    status, faster = diff(run, tmp_path, before, loop([720] * 5), *limits)
    assert (status, faster["held"][0]["outcome"]) == (0, "better")
    assert faster["verdict"].startswith("28.0 % faster")
    status, _ = diff(run, tmp_path, before, loop([1130] * 5), "--fail-over", "step=15%")
    assert status == 0


def test_a_change_within_the_scatter_never_fails(run: Run, tmp_path: Path) -> None:
    """Of 900, 950, 1000, 1050 and 1100 half lie within 50 of 1000: a deviation of 74."""
    scattered = [900, 950, 1000, 1050, 1100]
    after = loop([us * 1.03 for us in scattered])
    status, answer = diff(run, tmp_path, loop(scattered), after, "--fail-over", "step=1%")
    assert status == 0
    assert answer["held"][0]["scatter_frac"] == pytest.approx(0.07413, abs=1e-4)
    assert "+3.0 % is within the steps' own 7.4 %" in answer["verdict"]
    steady = loop([us * 1.03 for us in [999, 1000, 1000, 1000, 1001]])
    status, _ = diff(run, tmp_path, loop([1000] * 5), steady, "--fail-over", "step=1%")
    assert status == 1


def test_three_steps_scatter_by_half_their_range(run: Run, tmp_path: Path) -> None:
    _, answer = diff(run, tmp_path, loop([950, 1000, 1050]), loop([1000] * 3))
    (step,) = (row for row in answer["changes"] if row["name"] == "step")
    assert step["scatter_frac"] == pytest.approx(0.05)


def test_communication_and_memory_have_limits_of_their_own(run: Run, tmp_path: Path) -> None:
    before = loop([1000] * 3, comm_us=100, memory=1000)
    after = loop([1000] * 3, comm_us=120, memory=1100)
    words = ("--fail-over", "step=5%, comm=10%,memory=5%")
    status, answer = diff(run, tmp_path, before, after, *words)
    assert status == 1
    over = {row["figure"]: row["change_frac"] for row in answer["held"] if row["outcome"] == "over"}
    assert over == {"comm": 0.2, "memory": 0.1}
    status, answer = diff(run, tmp_path, loop([1000]), after, "--fail-over", "memory=5%")
    assert (status, answer["held"][0]["outcome"]) == (0, "not recorded")
    assert answer["verdict"].endswith("not recorded, so not checked: memory")


def _job(folder: Path, *lengths_us: float) -> Path:
    folder.mkdir()
    for rank, us in enumerate(lengths_us):
        write(folder / f"rank{rank}.json", loop([us] * 3, rank, len(lengths_us)))
    return folder


def test_like_ranks_are_compared(run: Run, tmp_path: Path) -> None:
    """Rank 0 was the slowest and is as it was; rank 1 became the slowest."""
    before = _job(tmp_path / "a", 1000, 800)
    after = _job(tmp_path / "b", 1000, 1200)
    ran = run("diff", before, after, "--fail-over", "step=5%", "--format", "json")
    answer = json.loads(ran.out)
    check_schema("diff", answer)
    assert ran.status == 1
    assert answer["pairs"] == [{"a": 0, "b": 0}, {"a": 1, "b": 1}]
    changes = {row["name"]: row["change_us"] for row in answer["changes"]}
    assert changes["step"] == 0
    assert [(row["rank"], row["outcome"]) for row in answer["held"]] == [
        (0, "unchanged"),
        (1, "over"),
    ]
    assert "step of rank 1 +50.0 % (limit 5 %)" in answer["verdict"]
    assert answer["notes"] == ["rank 0 of A with rank 0 of B", "the slowest of B is rank 1"]


def test_ranks_that_one_side_has_alone_are_said(run: Run, tmp_path: Path) -> None:
    before, after = _job(tmp_path / "a", 1000), _job(tmp_path / "b", 1000, 1000, 1000)
    answer = json.loads(run("diff", before, after, "--format", "json").out)
    assert "ranks 1, 2 of B alone" in answer["notes"]


def test_of_windows_it_is_said_that_nothing_marks_steps(run: Run, tmp_path: Path) -> None:
    status, answer = diff(run, tmp_path, window(100, 80), window(80, 93), "--fail-over", "step=5%")
    assert status == 0
    assert answer["notes"] == [
        f"nothing marks steps in {name}: its figures are of all that was recorded" for name in "AB"
    ]


@pytest.mark.parametrize(
    "text", ["step", "step=5", "step=%", "step=-5%", "=5%", "step=5%,step=6%", "step=5%,", "a=1%"]
)
def test_bad_limits_are_one_line(run: Run, tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "a.json", loop([1000] * 3))
    ran = run("diff", path, path, "--fail-over", text)
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "--fail-over" in ran.err


def test_a_stored_prediction_has_limits_too(run: Run, tmp_path: Path) -> None:
    path, saved = write(tmp_path / "a.json", loop([1000] * 3)), tmp_path / "slower.json"
    assert run("predict", path, "--scale", "gpu=4", "-o", saved).status == 0
    assert run("diff", saved, saved, "--fail-over", "step=5%").status == 0
    assert run("diff", path, saved, "--fail-over", "gpu_active=5%").status == 1


@pytest.mark.parametrize(
    ("after", "first"),
    [
        ([1130] * 5, "**13.0 % slower: step 1.00 ms to 1.13 ms"),
        ([1000] * 5, "**no change: step 1.00 ms to 1.00 ms"),
        ([720] * 5, "**28.0 % faster: step 1.00 ms to 720.0 us"),
    ],
)
def test_a_comment_begins_with_the_verdict(
    run: Run, tmp_path: Path, after: list[float], first: str
) -> None:
    a, b = (
        write(tmp_path / f"{us[0]}{name}.json", loop(us))
        for name, us in (("a", [1000] * 5), ("b", after))
    )
    comment = tmp_path / "comment.md"
    run("diff", a, b, "--fail-over", "step=5%", "--markdown", comment)
    lines = comment.read_text().splitlines()
    assert lines[0].startswith(first)
    assert len(lines) < 15
    assert any(line.startswith("| step | 0 |") for line in lines)

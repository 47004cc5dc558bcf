"""Which intervals are steps, and which thread is which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import AUTOGRAD, EVALUATE, MAIN, WORKER, EtNode, Tiny, execution_trace_content

from perfmodel.errors import UsageError
from perfmodel.trace import Trace, read
from perfmodel.trace.link import thread_roles
from perfmodel.trace.window import find_steps


def steps_of(t: Tiny) -> list[tuple[str, float, float]]:
    steps = find_steps(t.rank_trace())
    return list(zip(steps.names, steps.start_us.tolist(), steps.end_us.tolist(), strict=True))


@pytest.mark.parametrize("category", ["user_annotation", "cpu_op", "Operator"])
def test_steps_are_the_host_intervals_of_that_name_whatever_their_category(category: str) -> None:
    t = Tiny()
    t.step(8, 100, 200, category)
    t.step(7, 0, 90, category)
    t.op("aten::mm", 10, 20)
    assert steps_of(t) == [("ProfilerStep#7", 0, 90), ("ProfilerStep#8", 100, 200)]
    assert not find_steps(t.rank_trace()).is_window


def test_the_step_drawn_on_the_device_is_not_a_step() -> None:
    t = Tiny()
    t.step(7, 0, 90)
    t.kernel(20, 130, name="ProfilerStep#7", category="gpu_user_annotation")
    assert steps_of(t) == [("ProfilerStep#7", 0, 90)]


def test_without_steps_the_step_is_the_window_from_first_to_last_event() -> None:
    t = Tiny()
    t.op("aten::mm", 10, 20)
    t.launch(12, 15, kernel=(50, 75))
    t.event("python_function", "<module>", (5, 40), MAIN)
    t.event("overhead", "Unrecognized", (0, 500), MAIN)
    # Times are relative to the first event, even of a category that counts for nothing.
    assert steps_of(t) == [("window", 5, 75)]
    assert find_steps(t.rank_trace()).is_window


def test_no_events_no_steps() -> None:
    assert steps_of(Tiny()) == []


def test_a_time_belongs_to_the_last_step_begun() -> None:
    t = Tiny()
    t.op("before", 0, 5)
    t.step(1, 10, 20)
    t.step(2, 30, 40)
    steps = find_steps(t.rank_trace())
    times = np.array([0, 10, 20, 25, 30, 99], float)
    assert steps.of_time(times).tolist() == [-1, 0, 0, 0, 1, 1]


def test_roles() -> None:
    t = Tiny()
    t.op("dataloader", 0, 500, WORKER)
    t.step(1, 10, 100)
    t.op("aten::mm", 20, 30)
    t.op(EVALUATE + "AddmmBackward0", 40, 90, AUTOGRAD)
    t.call("cudaGetDevice", 95, 96, 44)
    assert thread_roles(t.rank_trace()) == {
        MAIN: "main",
        AUTOGRAD: "autograd",
        WORKER: "other:0",
        44: "other:1",
    }


def test_without_steps_the_main_thread_is_the_one_with_most_operator_time() -> None:
    t = Tiny()
    t.call("cudaDeviceSynchronize", 0, 5000, WORKER)
    t.op("aten::mm", 20, 30)
    t.op("aten::mm", 20, 45, AUTOGRAD)
    assert thread_roles(t.rank_trace())[AUTOGRAD] == "main"


def test_backward_on_the_calling_thread_leaves_it_main() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.op(EVALUATE + "AddmmBackward0", 40, 90)
    assert thread_roles(t.rank_trace()) == {MAIN: "main"}


def test_no_host_events_no_roles() -> None:
    t = Tiny()
    t.kernel(0, 10)
    assert thread_roles(t.rank_trace()) == {}


def marked(*notes: tuple[str, float, float], thread: int = MAIN) -> Tiny:
    """Annotations, and an operator before and after all."""
    t = Tiny()
    t.op("aten::mm", 0, 1, thread)
    for name, start, end in notes:
        t.note(name, start, end, thread)
    t.op("aten::mm", 999, 1000, thread)
    return t


DECODE = "execute_context_0(0)_generation_64(64)"


@pytest.mark.parametrize(
    "names",
    [
        (DECODE, "execute_context_1(512)_generation_63(63)"),
        ("execute_16_context_0(sq0sk0)_generation_16(sq16sk8)", "execute_2_context_1(sq8sk8)"),
        ("step[EXTEND bs=1 toks=107]", "step[DECODE bs=64]"),
        (
            "[Executor] _forward_step 7: 1 ctx reqs",
            "[Executor] _forward_step: 3 mm reqs",
        ),
        ("iteration 12", "iteration 13"),
        ("train_step_1", "train_step_2"),
        ("Iter: 1", "ITER: 2"),
    ],
)
def test_marks_of_engines_and_numbered_ranges(names: tuple[str, str]) -> None:
    t = marked((names[0], 10, 50), ("forward", 20, 30), (names[1], 60, 90))
    assert steps_of(t) == [(names[0], 10, 50), (names[1], 60, 90)]


def test_the_profiler_s_own_steps_come_first() -> None:
    t = marked((DECODE, 10, 50), (DECODE, 60, 90))
    t.step(3, 5, 95)
    assert steps_of(t) == [("ProfilerStep#3", 5, 95)]


def test_marks_within_others_do_not_count_and_those_that_overlap_do() -> None:
    t = marked(("step[DECODE bs=1]", 10, 50), (DECODE, 20, 45), ("step[DECODE bs=2]", 49, 90))
    assert steps_of(t) == [("step[DECODE bs=1]", 10, 50), ("step[DECODE bs=2]", 49, 90)]


def test_of_several_threads_the_one_with_most_marks() -> None:
    t = marked(("step 1", 10, 20), ("step 2", 20, 30))
    for number, start in enumerate((5, 10, 15)):
        t.note(f"batch {number}", start, start + 5, WORKER)
    assert [name for name, *_ in steps_of(t)] == ["batch 0", "batch 1", "batch 2"]
    assert thread_roles(t.rank_trace())[WORKER] == "main"


def test_one_mark_of_an_engine_is_no_step() -> None:
    # Its device work runs behind it.
    assert steps_of(marked((DECODE, 10, 50))) == [("window", 0, 1000)]


def test_marks_of_one_name_are_numbered() -> None:
    t = marked(*[("step[DECODE bs=8]", start, start + 9) for start in (10, 20, 30)])
    assert [name for name, *_ in steps_of(t)] == [f"step[DECODE bs=8] #{n}" for n in range(3)]


def optimizers(*ends: float, names: tuple[str, ...] = ("SGD",)) -> Tiny:
    """Calls of 5 us that end then; by turns of these optimizers."""
    kinds = [f"Optimizer.step#{names[n % len(names)]}.step" for n in range(len(ends))]
    return marked(*[(kind, end - 5, end) for kind, end in zip(kinds, ends, strict=True)])


def test_an_optimizer_s_steps_last_from_one_end_to_the_next() -> None:
    assert [times for _, *times in steps_of(optimizers(100, 200, 301, 400))] == [
        [100, 200],
        [200, 301],
        [301, 400],
    ]


@pytest.mark.parametrize(
    ("ends", "names"),
    [
        ((100, 200, 300), ("SGD",)),  # two gaps
        ((100, 110, 200, 210, 300, 310), ("SGD",)),  # two in each step
        ((100, 140, 200, 240, 300, 340), ("Adam",)),  # two phases, 40 and 60
        (
            (100, 110, 120, 130, 140, 155, 165, 175),
            ("Adam",),
        ),  # five of one, one of another
        ((100, 200, 300, 400), ("SGD", "Adagrad")),
        ((100, 200, 300, 600), ("SGD",)),
    ],
)
def test_optimizers_of_unlike_cadence_are_no_steps(
    ends: tuple[float, ...], names: tuple[str, ...]
) -> None:
    assert find_steps(optimizers(*ends, names=names).rank_trace()).is_window


def test_old_backward_passes_without_a_wrapper_are_not_the_main_thread() -> None:
    t = Tiny()
    t.op("aten::mm", 0, 10)
    t.op("AddmmBackward", 20, 200, AUTOGRAD)
    t.op("aten::mm", 30, 190, AUTOGRAD)
    t.op("torch::autograd::AccumulateGrad", 200, 250, AUTOGRAD)
    assert thread_roles(t.rank_trace()) == {MAIN: "main", AUTOGRAD: "other:0"}


def read_by(tmp_path: Path, t: Tiny, name: str, **options: Any) -> Trace:
    path = tmp_path / "trace.json"
    path.write_bytes(t.content())
    return read(path, steps_by=name, **options)


def test_a_name_of_one_s_own(tmp_path: Path) -> None:
    notes = [("fwd 1", 10, 20), ("fwd#2", 20, 30), ("fwd_3", 30, 40), ("fwd", 40, 50)]
    t = marked(*notes, ("fwdx", 50, 60), ("a", 60, 61), ("a", 62, 63))
    t.step(1, 5, 95)
    links = read_by(tmp_path, t, "fwd").links[0]
    assert links.steps.names == ("fwd 1", "fwd#2", "fwd_3", "fwd")
    with pytest.raises(
        UsageError, match=r"trace\.json: steps_by 'b': no .*most frequent are a \(2\)"
    ):
        read_by(tmp_path, t, "b")


def test_some_steps_by_a_name(tmp_path: Path) -> None:
    t = marked(*[('train["x"]', start, start + 9) for start in range(10, 100, 10)])
    trace = read_by(tmp_path, t, 'train["x"]', steps=slice(2, 4))
    assert trace.links[0].steps.start_us.tolist() == [0, 10]
    marks = marked(*[(f"iteration {n}", 10 * n, 10 * n + 9) for n in range(1, 9)])
    assert read_by(tmp_path, marks, "", steps=slice(2, 4)).links[0].steps.names == (
        "iteration 3",
        "iteration 4",
    )


def test_the_execution_trace_alone_has_no_marks(tmp_path: Path) -> None:
    path = tmp_path / "et.json"
    path.write_bytes(execution_trace_content(EtNode("aten::mm", 1)))
    with pytest.raises(UsageError, match="steps_by"):
        read(path, steps_by="fwd")

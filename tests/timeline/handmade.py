"""Tiny traces that are broken down more than once, and the one step of a trace that has one."""

from __future__ import annotations

from tiny import COMMS, COPIES, NCCL, Tiny

from perfmodel.prediction.breakdown.job import StepBreakdown, breakdown


def only_step(t: Tiny) -> StepBreakdown:
    (rank,) = breakdown(t.trace()).ranks
    (step,) = rank.steps
    return step


def busy() -> Tiny:
    t = Tiny()
    t.step(1, 0, 100)
    t.op("aten::mm", 0, 9)
    t.launch(1, 2, kernel=(10, 40))
    t.launch(2, 3, kernel=(30, 60), name=NCCL, stream=COMMS)
    t.copy(3, 4, copy=(55, 70), stream=COPIES)
    t.launch(4, 5, kernel=(90, 120))
    t.kernel(200, 210, name="after the step")
    return t


def late_kernel(other_ends: float | None = None) -> Tiny:
    """A kernel 500 us after its launch, which nothing recorded explains; four as usual."""
    t = Tiny()
    t.step(1, 0, 1500)
    for i in range(4):
        at = 100 * i
        t.op("aten::mm", at, at + 20)
        t.launch(at + 5, at + 10, kernel=(at + 15, at + 95))
    t.op("aten::mm", 400, 420)
    t.launch(405, 410, kernel=(910, 1500))
    if other_ends is not None:
        t.launch(412, 415, (420, other_ends), stream=COMMS, category="gpu_memcpy", name="Memcpy")
    return t

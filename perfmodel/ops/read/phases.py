"""Which phase of a step an op belongs to: by the labels and calls around it, and by its thread."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from perfmodel.ops.graph import BACKWARD, FORWARD, INPUT, NO_OP, OPTIMIZER
from perfmodel.trace.window import MAIN_THREAD

_CALLS = re.compile(
    r"autograd::engine::evaluate_function|torch::autograd::AccumulateGrad|\w+Backward\d*$"
)
"""Ops that are the backward pass, with all that they call."""

_LABELS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (OPTIMIZER, re.compile(r"optimizer|zero_?grad", re.I)),
    (BACKWARD, re.compile(r"backward", re.I)),
    (
        INPUT,
        re.compile(
            r"dataload|(next|load|copy|wait_for)_batch|batch_data|(data|input|splits)_dist\b"
            r"|sparse_data_dist|emb data|all2all_data:kjt|KJT\w*Awaitable|recat_permute",
            re.I,
        ),
    ),
    (FORWARD, re.compile(r"forward|loss", re.I)),
)
"""A phase, and the user's annotations that name it; the first that fits."""

_ARRIVING = frozenset(
    ("aten::to", "aten::_to_copy", "aten::copy_", "aten::pin_memory", "aten::is_pinned")
)
"""What a program does to a batch before its first layer."""
_IDLE = frozenset(("aten::empty", "aten::zeros", "aten::zero_", "aten::detach", "detach"))


@lru_cache(maxsize=1 << 14)
def phase_of_label(label: str) -> str | None:
    """The phase that an annotation names, if it names one."""
    return next((phase for phase, pattern in _LABELS if pattern.search(label)), None)


@lru_cache(maxsize=1 << 14)
def phase_of_call(name: str) -> str | None:
    """`backward` for a call of the autograd engine."""
    return BACKWARD if _CALLS.match(name) else None


def inherit_phases(
    own: Sequence[str | None], parent: Sequence[int], threads: Sequence[str]
) -> list[str]:
    """Per row its own phase, else that of the row around it; parents come first.

    What stands alone is backward on threads that the autograd engine uses but `main`.
    """
    engine = {t for t, phase in zip(threads, own, strict=True) if phase == BACKWARD} - {MAIN_THREAD}
    phases: list[str] = []
    for phase, above, thread in zip(own, parent, threads, strict=True):
        around = phases[above] if above != NO_OP and threads[above] == thread else None
        phases.append(phase or around or (BACKWARD if thread in engine else FORWARD))
    return phases


def with_arrivals(
    phases: list[str], names: Sequence[str], parents: Sequence[int], steps: Sequence[int]
) -> list[str]:
    """`phases` with the copies that begin a step as `input`, and all that they call.

    They begin a step when none but copies, allocations and the optimizer's `zero_grad` precede.
    """
    done: set[int] = set()
    for op, (name, parent, step) in enumerate(zip(names, parents, steps, strict=True)):
        if parent != NO_OP:
            if phases[parent] == INPUT:
                phases[op] = INPUT
        elif step not in done and phases[op] == FORWARD:
            if name in _ARRIVING:
                phases[op] = INPUT
            elif name not in _IDLE:
                done.add(step)
    return phases

"""Callers and callees of an execution trace's ops: threads, owners, phases, steps, edges."""

from __future__ import annotations

import numpy as np

from perfmodel.graph.opgraph.phases import inherited, phase_of_call, phase_of_label
from perfmodel.graph.ops import NO_OP
from perfmodel.trace.categories import AUTOGRAD_WRAPPER, STEP_NAME
from perfmodel.trace.columns import Ints
from perfmodel.trace.execution_trace import ExecutionTrace
from perfmodel.trace.steps import AUTOGRAD, MAIN

_USER_SCOPE = 7
"""PyTorch's `RecordScope` of annotations; the process and thread nodes carry it too."""
RECORDER_ENDINGS = ("|process]", "|thread]", "process_group:init ##")


class CallTree:
    """Which nodes of an execution trace are ops, and what is known of each by where it stands.

    Lists have one entry per node. Annotations, steps, threads and the process are no ops.
    """

    def __init__(self, trace: ExecutionTrace) -> None:
        self.names = trace.names(np.arange(len(trace)))
        self.is_op = (trace.scope != _USER_SCOPE).tolist()
        before = trace.parent < np.arange(len(trace))
        self._parents: list[int] = np.where(before, trace.parent, NO_OP).tolist()
        self.roles = _thread_roles(trace, self.names, self._parents)
        self.threads = [self.roles.get(thread, MAIN) for thread in trace.thread.tolist()]
        self.owner, self.label = self._owners()
        self.phases = self._phases()
        self.steps = self._steps()

    def _owners(self) -> tuple[list[int], list[str]]:
        """The nearest op around each node, or `NO_OP`; the nearest annotation around it, or ''."""
        owner: list[int] = []
        label: list[str] = []
        for above in self._parents:
            if above == NO_OP:
                owner.append(NO_OP)
                label.append("")
            elif self.is_op[above]:
                owner.append(above)
                label.append(label[above])
            else:
                owner.append(owner[above])
                name = self.names[above]
                unnamed = name.endswith(RECORDER_ENDINGS) or STEP_NAME.match(name)
                label.append(label[above] if unnamed else name)
        return owner, label

    def _phases(self) -> list[str]:
        own = [
            phase_of_call(name) if is_op else phase_of_label(name)
            for name, is_op in zip(self.names, self.is_op, strict=True)
        ]
        return inherited(own, self._parents, self.threads)

    def _steps(self) -> list[int]:
        """Per node the number of the last step that was entered before it, from 0."""
        entered = [row for row, name in enumerate(self.names) if STEP_NAME.match(name)]
        if not entered:
            return [0] * len(self.names)
        found: list[int] = (
            np.searchsorted(entered, np.arange(len(self.names)), side="right") - 1
        ).tolist()
        return found


def _thread_roles(trace: ExecutionTrace, names: list[str], parents: list[int]) -> dict[int, str]:
    """Thread number to `main`, `autograd` or `other:N`.

    The main thread has the steps, else most nodes that the autograd engine did not call.
    """
    own: dict[int, int] = {}
    engine: set[int] = set()
    stepped: set[int] = set()
    called: list[bool] = []
    for thread, name, parent in zip(trace.thread.tolist(), names, parents, strict=True):
        if name.endswith(RECORDER_ENDINGS[0]):
            called.append(False)
            continue
        is_wrapper = AUTOGRAD_WRAPPER.match(name) is not None
        called.append(is_wrapper or (parent != NO_OP and called[parent]))
        own[thread] = own.get(thread, 0) + (not called[-1])
        if is_wrapper:
            engine.add(thread)
        elif STEP_NAME.match(name):
            stepped.add(thread)
    main = max(stepped or own, key=own.__getitem__, default=0)
    roles = {main: MAIN}
    others = 0
    for thread in own:
        if thread not in roles:
            roles[thread] = AUTOGRAD if thread in engine else f"other:{others}"
            others += thread not in engine
    return roles


def data_edges(trace: ExecutionTrace, index_of: dict[int, int]) -> Ints:
    """`[E, 2]` (producer, consumer) by index of the op graph, for nodes that are in `index_of`."""
    producer, consumer = trace.data_dependencies()
    index = np.full(len(trace), NO_OP, np.int64)
    index[list(index_of)] = list(index_of.values())
    pairs = np.stack([index[producer], index[consumer]], axis=1)
    return pairs[(pairs >= 0).all(axis=1)]

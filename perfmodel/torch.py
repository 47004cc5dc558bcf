"""Run times for PyTorch's own tools, and a context that predicts a training loop.

`estimate` times an operator or a node of a `torch.fx` graph, collectives among them, on any
hardware; `node_estimator` and `estimating` give that to Inductor's passes and to the estimators of
`torch.distributed._tools`; `predicting` runs a loop under fake tensors and says what a step takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.units import US_PER_MS
from perfmodel.cost.collectives.calls import place_collectives
from perfmodel.cost.durations import durations_of
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.hardware import Cluster, Part, cluster
from perfmodel.lowering import Lowered, lower
from perfmodel.lowering.arguments import bytes_of
from perfmodel.ops.graph import BACKWARD, FORWARD, MODULE, OPTIMIZER, Op, OpGraph
from perfmodel.ops.read.assumed import check_shares
from perfmodel.ops.read.tracing import ModuleError, instead, mapped, pytorch
from perfmodel.ops.vocabulary.streaming import UNKNOWN
from perfmodel.prediction.shapes import predict_passes
from perfmodel.prediction.step import cluster_of

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from perfmodel.base.arrays import Floats
    from perfmodel.prediction.types import Prediction


class NotCovered(PerfmodelError):
    """No rule knows an operator; `streaming_us` is what moving its operands once takes."""

    def __init__(self, name: str, streaming_us: float) -> None:
        super().__init__(f"{name}: not covered: no rule says what it launches")
        self.streaming_us = streaming_us


@dataclass(frozen=True)
class LoopStep:
    """A step of a training loop on one rank of `machine`; filled when the context ends."""

    machine: Cluster
    graphs: list[OpGraph] = field(default_factory=list, repr=False)

    @cached_property
    def prediction(self) -> Prediction:
        """The step as `perfmodel.predict` answers: time, interval, memory, why.

        Raises `ModuleError` where nothing ran in the context.
        """
        return predict_passes(self.graph, [self.machine], (), None)

    @property
    def graph(self) -> OpGraph:
        if not self.graphs:
            raise ModuleError("the context has not ended, or failed: it holds no step")
        return self.graphs[0]

    @property
    def step_us(self) -> float:
        return self.prediction.results[0].step_us

    @property
    def memory_bytes(self) -> float | None:
        """Of tensors at the peak; None where the step does not tell which tensors are the same."""
        memory = self.prediction.results[0].memory
        return None if memory is None else float(memory["total_bytes"] - memory["driver_bytes"])

    @cached_property
    def modules(self) -> pd.DataFrame:
        """Microseconds of kernels, copies and collectives of each module with all in it, in the
        order of the forward pass; index its path, columns `forward_us`, `backward_us` and
        `optimizer_us`. What no module ran is under ""."""
        import pandas as pd

        device = self.machine.node.device
        lowered = lower(self.graph, device.target, device=device)
        owners = [self.graph.ops[owner] for owner in lowered.owner.tolist()]
        taken = pd.DataFrame(
            {
                "module": [op.attributes.get(MODULE, "") for op in owners],
                "phase": [f"{op.phase}_us" for op in owners],
                "us": _durations_us(lowered, self.machine),
            }
        )
        own = taken.pivot_table("us", "module", "phase", "sum", fill_value=0.0, sort=False)
        parts = [path.split(".") for path in own.index]
        every = dict.fromkeys(".".join(each[:n]) for each in parts for n in range(1, len(each) + 1))
        sums = {
            path: own[[p == path or p.startswith(f"{path}.") for p in own.index]].sum()
            for path in every
        }
        columns = [f"{phase}_us" for phase in (FORWARD, BACKWARD, OPTIMIZER)]
        return pd.DataFrame(sums).T.rename_axis("module").reindex(columns=columns, fill_value=0.0)


@contextmanager
def predicting(
    hardware: str | Path | Part,
    *,
    nodes: int | None = None,
    name: str = "training loop",
    assume: Mapping[str, float] | None = None,
) -> Iterator[LoopStep]:
    """Runs the loop inside under fake tensors: nothing is computed or allocated.

    What the first call of a module begins is the step; where an optimizer steps more than once, its
    last period is. `hardware` is a device, node or cluster; in a process group (of any backend,
    `fake` too), as many nodes as its ranks fill, unless `nodes` says. `assume` is what share of
    booleans of floats is true, by operator, as in `Call`, or the number that `item` gives. Real
    modules and optimizers are used as they are, and left as they were; large ones are better built
    inside.

    Raises `ModuleError` where nothing runs, or where something depends on values.
    """
    machine = _machine(hardware, nodes, _ranks(pytorch()))
    from perfmodel.ops.read.loop import LoopRecorder

    check_shares(assume or {})
    step, recorder = LoopStep(machine), LoopRecorder(machine.node, assume or {})
    with recorder.of_loop(name):
        yield step
    step.graphs.append(recorder.graph(name))


def together(steps: Sequence[LoopStep]) -> Prediction:
    """The step of ranks that do different work, stages of a pipeline say, which meet at their
    collectives and messages. Raises `TraceError` where these never meet."""
    if not steps:
        raise UsageError("together: no steps are given")
    first, *others = (each.graph for each in steps)
    return predict_passes(first, [steps[0].machine], (), None, others)


def estimate(
    call: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    hardware: str | Path | Part,
    message_bytes: float | None = None,
) -> float:
    """Microseconds on the device of an operator (`torch.ops.aten.mm.default`) called with `args`
    and `kwargs`, real or fake tensors, or of a node of a `torch.fx` graph, whose arguments have a
    `meta["val"]`; 0 for views. Of a collective, `message_bytes` counts in place of its own.

    Raises `NotCovered` for an operator that no rule knows, `UsageError` for what is no call of one.
    """
    torch = pytorch()
    if isinstance(call, torch.fx.Node):
        args, kwargs = mapped(_value_of, (call.args, dict(call.kwargs)))
        call = call.target
    if not isinstance(call, torch._ops.OpOverload):
        raise UsageError(f"{call}: not an operator of torch.ops, nor a node that calls one")
    machine = _machine(hardware, None, _ranks(torch))
    ops = _ops_of(torch, call, args, kwargs or {}, machine.node.gpus)
    if message_bytes is not None:
        ops = [_of_size(op, message_bytes) for op in ops]
    device = machine.node.device
    lowered = lower(OpGraph(tuple(ops)), device.target, device=device)
    us = float(_durations_us(lowered, machine).sum())
    if any(piece.op == UNKNOWN for piece in lowered.pieces):
        raise NotCovered(str(call), us)
    return us


def node_estimator(hardware: str | Path | Part) -> Callable[..., float | None]:
    """`(node, size in bytes of its collective, or None) -> milliseconds`, None for what `estimate`
    does not cover: as Inductor's overlap scheduling asks its `custom_runtime_estimation`."""

    def milliseconds(node: Any, override_bytes: int | None = None) -> float | None:
        try:
            us = estimate(node, hardware=hardware, message_bytes=override_bytes)
        except PerfmodelError:
            return None
        return us / US_PER_MS

    return milliseconds


@contextmanager
def estimating(hardware: str | Path | Part) -> Iterator[None]:
    """What `torch.distributed._tools` estimates by a roofline of this machine's GPU (run times,
    what checkpointing costs, and the solvers on top) is estimated for `hardware` inside; an
    operator that is not covered streams its operands."""
    pytorch()

    def estimated(func: Any, args: Any, kwargs: Any) -> tuple[Any, float]:
        try:
            us = estimate(func, args, kwargs, hardware=hardware)
        except NotCovered as error:
            us = error.streaming_us
        return func(*args, **(kwargs or {})), us / US_PER_MS

    kind = "torch.distributed._tools.runtime_estimator:RuntimeEstimator"
    with instead({f"{kind}._roofline_estimate": staticmethod(estimated)}):
        yield


@lru_cache(maxsize=16)
def _machine(hardware: str | Path | Part, nodes: int | None, ranks: int) -> Cluster:
    """`hardware` as a cluster that has a device for each of `ranks`."""
    if ranks == 1:
        return cluster_of(hardware, nodes)
    one = cluster(hardware, nodes)
    if nodes is None and not one.nodes > 1:
        one = cluster(hardware, ceil(ranks / one.node.gpus))
    devices = one.nodes * one.node.gpus
    if devices < ranks:
        raise UsageError(f"{one.name}: {devices} devices for {ranks} ranks of the process group")
    return one


def _ranks(torch: Any) -> int:
    dist = torch.distributed
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _ops_of(
    torch: Any, call: Any, args: Sequence[Any], kwargs: Mapping[str, Any], node_ranks: int
) -> list[Op]:
    """What one call dispatches, under fake tensors of its own."""
    from torch._subclasses import fake_tensor as fake
    from torch.utils._python_dispatch import _disable_current_modes

    from perfmodel.ops.read.recorder import Recorder

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            local = getattr(value, "_local_tensor", value)
            shape, strides = (tuple(map(_hint, each)) for each in (local.shape, local.stride()))
            return torch.empty_strided(shape, strides, dtype=local.dtype)
        return _hint(value)

    recorder = Recorder(node_ranks)
    unknowable = fake.DataDependentOutputException, fake.DynamicOutputShapeException
    with _disable_current_modes(), fake.FakeTensorMode(), torch.no_grad():
        given, named = mapped(plain, (tuple(args), dict(kwargs)))
        with recorder.recording():
            try:
                call(*given, **named)
            except unknowable as error:
                raise UsageError(f"{call}: what it returns depends on values") from error
    return recorder.ops


def _hint(value: Any) -> Any:
    """A size as the number that stands for it; anything else as it is."""
    if not hasattr(value, "node"):
        return value
    if value.node.hint is None:
        raise UsageError(f"{value}: a size that depends on values: give one for it")
    return value.node.hint


def _value_of(argument: Any) -> Any:
    """What a node's argument stands for."""
    if not hasattr(argument, "meta"):
        return argument
    if "val" not in argument.meta:
        raise UsageError(f'node {argument}: no meta["val"]: trace the graph under fake tensors')
    return argument.meta["val"]


def _of_size(op: Op, message_bytes: float) -> Op:
    about = op.attributes
    if "in_elements" not in about:
        return op
    elements = str(message_bytes / bytes_of(about["dtype"]))
    return replace(op, attributes={**about, "in_elements": elements, "out_elements": elements})


def _durations_us(lowered: Lowered, machine: Cluster) -> Floats:
    """Of the pieces, one by one."""
    if not len(lowered):
        return np.zeros(0)
    return durations_of(place_collectives(lowered.rows, machine), machine).duration_us

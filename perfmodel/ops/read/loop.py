"""The op graph of a program's own training loop: its modules, backward passes, optimizers and
collectives, in a context around it.

PyTorch's hooks tell where the loop is. What PyTorch does otherwise where it finds no GPU (autocast,
a kernel per parameter in optimizers) is done as on a GPU, and what of data parallelism asks for
values (whether all processes hold the same model) is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial, reduce
from importlib import import_module
from types import MappingProxyType
from typing import Any

from perfmodel.errors import Note
from perfmodel.ops.graph import (
    AUTOGRAD_NODE,
    BACKWARD,
    FORWARD,
    NO_OP,
    OPTIMIZER,
    Argument,
    Op,
    OpGraph,
)
from perfmodel.ops.read.collective_calls import reads_of_collectives
from perfmodel.ops.read.module import ModuleError, _as_if_on_gpu, _place, _step
from perfmodel.ops.read.recorder import Recorder, mapped
from perfmodel.ops.read.values import UnknownValueError, Values
from perfmodel.trace.window import AUTOGRAD_THREAD

MODULE = "module"
"""Attribute of an op: the path of the innermost module that it, or its forward pass, belongs to."""

_LOGGED = {"item": 1.0}
"""Assumed of numbers that a loop asks for: to log them, mostly."""
_PIPELINE = "torch.distributed.pipelining.schedules:_PipelineSchedule."
_SHARDING = "torch.distributed.tensor._sharding_prop:ShardingPropagator."


class LoopRecorder(Recorder):
    """The ops of a loop from the first call of a module on: what comes before builds. Where an
    optimizer steps more than once, those of its last period: later ones are as that is."""

    def __init__(self, torch: Any, node_ranks: int) -> None:
        from torch._guards import active_fake_mode
        from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

        super().__init__(torch)
        self.node_ranks = node_ranks
        self._values = Values(torch, _LOGGED)
        self._fake_kind = FakeTensor
        self._active = active_fake_mode()
        self._fake = self._active or FakeTensorMode(allow_non_fake_inputs=True)
        self._names: dict[Any, str] = {}
        self._modules = [""]
        self._has_begun = False
        self._undo = ExitStack()
        self._ended: dict[int, int] = {}
        """Optimizers, to how many ops were done at the end of their last step."""
        self._step: tuple[int, int | None] = 0, None
        """Where ops of one period of the loop begin and end."""
        self._seen: set[int] = set()
        """Real parameters, and optimizers."""

    @contextmanager
    def of_loop(self, name: str) -> Iterator[None]:
        """Records. Real parameters and optimizers are afterwards as they were."""
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        torch, hooks = self._torch, self._torch.nn.modules.module
        instead = {
            "torch.autograd:backward": self._watched,
            "torch.autograd:grad": self._watched,
            "torch.amp:autocast.__init__": _on_cpu,
            "torch.distributed:_verify_params_across_processes": _left_out,
            "torch.distributed:Reducer._rebuild_buckets": _left_out,
            f"{_PIPELINE}_warmup_p2p": _of_known_shapes,
            f"{_SHARDING}_propagate_tensor_meta": self._silently,
            f"{_SHARDING}_propagate_tensor_meta_non_cached": self._silently,
        }
        with self._undo as undo, _told(name):
            for handle in (
                hooks.register_module_forward_pre_hook(self._enter),
                hooks.register_module_forward_hook(self._leave, always_call=True),
                register_optimizer_step_pre_hook(self._optimize),
                register_optimizer_step_post_hook(self._optimized),
            ):
                undo.callback(handle.remove)
            for path, made in instead.items():
                owner, attribute = _found(path)
                if hasattr(owner, attribute):
                    before = getattr(owner, attribute)
                    undo.callback(setattr, owner, attribute, before)
                    setattr(owner, attribute, made(before))
            if self._active is None:
                undo.enter_context(self._fake)
            undo.enter_context(_as_if_on_gpu(torch))
            undo.enter_context(self._values.following())
            undo.enter_context(self.recording())
            yield

    def graph(self, name: str) -> OpGraph:
        """What was recorded. Raises `ModuleError` where no module was called."""
        if not (self._has_begun and self.ops):
            raise ModuleError(f"{name}: nothing ran: call a module inside the context")
        dist, rank, ranks = self._torch.distributed, 0, 1
        if dist.is_available() and dist.is_initialized():
            rank, ranks = dist.get_rank(), dist.get_world_size()
        first, last = self._step[0], self._step[1] or len(self.ops)
        ops = [
            op if op.parent == NO_OP else replace(op, parent=op.parent - first)
            for op in self.ops[first:last]
        ]
        ended = self.lifetimes.held.items()
        held = {key: min(at, last - 1) - first for key, at in ended if at >= first}
        edges = reads_of_collectives(ops)
        notes = tuple(Note(str(each)) for each in self._values.used)
        return OpGraph(tuple(ops), edges, None, rank, ranks, name, notes, held=held)

    def function(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is self._torch.Tensor.backward:  # no operator: its nodes are
            return func(*args, **kwargs)
        self.is_autocast = self._torch.is_autocast_cpu_enabled()
        answer = super().function(func, args, kwargs)
        for each in answer if isinstance(answer, (tuple, list)) else (answer,):
            node = each.grad_fn if isinstance(each, self._torch.Tensor) else None
            if node is not None:
                node.metadata.setdefault(MODULE, self._modules[-1])
        return answer

    def _op(
        self,
        name: str,
        inputs: tuple[Argument, ...],
        outputs: tuple[Argument, ...],
        about: Mapping[str, str] = MappingProxyType({}),
    ) -> Op:
        is_forward = self._node == NO_OP
        module = self._modules[-1] if is_forward else self.ops[self._node].attributes[MODULE]
        return super()._op(name, inputs, outputs, {**about, MODULE: module})

    def _tensor(self, value: Any) -> Any:
        """A real tensor counts as the fake one that stands for it."""
        if not isinstance(value, self._fake_kind):
            if value.requires_grad and value.is_leaf and id(value) not in self._seen:
                self._seen.add(id(value))
                self._undo.callback(setattr, value, "grad", value.grad)
            before, self._is_silent = self._is_silent, True
            value, self._is_silent = self._fake.from_tensor(value), before
        return super()._tensor(value)

    def _watched(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """A backward pass each of whose nodes is an op, of the module of its forward pass."""

        def begin(name: str, module: str, *gradients: Any) -> None:
            about = {MODULE: module}
            self._node = len(self.ops)
            self.ops.append(Op(name, thread=AUTOGRAD_THREAD, phase=BACKWARD, attributes=about))

        def watched(*args: Any, **kwargs: Any) -> Any:
            before, self.phase = (self.phase, self._node), BACKWARD
            handles = [
                node.register_prehook(partial(begin, f"{AUTOGRAD_NODE}{node.name()}", module))
                for node, module in _nodes((args or tuple(kwargs.values()))[0])
            ]
            try:
                return run(*args, **kwargs)
            finally:
                self.phase, self._node = before
                for handle in handles:
                    handle.remove()

        return watched

    def _enter(self, module: Any, inputs: Any) -> None:
        if not self._has_begun:
            self.ops.clear()
            self.lifetimes.held.clear()
            self._has_begun = True
        if module not in self._names:
            root = type(module).__name__
            for path, part in module.named_modules():
                self._names.setdefault(part, f"{root}.{path}".rstrip("."))
        self._modules.append(self._names[module])
        is_parallel = isinstance(module, self._torch.nn.parallel.DistributedDataParallel)
        if (
            is_parallel and not module._comm_hooks
        ):  # its own waits for what a fake group never gives
            group = module.process_group
            module.register_comm_hook(group, lambda group, bucket: self._summed(group, bucket))

    def _leave(self, module: Any, inputs: Any, outputs: Any) -> None:
        self._modules.pop()

    def _summed(self, group: Any, bucket: Any) -> Any:
        self._torch.distributed.all_reduce(bucket.buffer(), group=group)
        future = self._torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def _silently(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """What only asks for shapes, of whole tensors in place of a rank's."""

        def asked(*args: Any, **kwargs: Any) -> Any:
            before, self._is_silent = self._is_silent, True
            try:
                return run(*args, **kwargs)
            finally:
                self._is_silent = before

        return asked

    def _optimize(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.phase = OPTIMIZER
        if id(optimizer) not in self._seen:
            self._seen.add(id(optimizer))
            state = {key: dict(value) for key, value in optimizer.state.items()}
            self._undo.callback(optimizer.state.update, state)
            self._undo.callback(optimizer.state.clear)
        for group in optimizer.param_groups:
            if group.get("foreach", True) is None and not group.get("fused"):
                group["foreach"] = True  # as is usual on a GPU
                self._undo.callback(group.__setitem__, "foreach", None)

    def _optimized(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.phase = FORWARD
        before = self._ended.get(id(optimizer), 0)
        self._ended[id(optimizer)] = len(self.ops)
        self._step = before, len(self.ops) if before else None


def _nodes(roots: Any) -> Iterator[tuple[Any, str]]:
    """All nodes behind tensors, with their modules; one that is not known has that of the node
    which runs before it."""
    begun: list[Any] = []
    mapped(begun.append, roots)
    left = [(each.node if hasattr(each, "node") else each.grad_fn, "") for each in begun]
    seen = {None}
    while left:
        node, module = left.pop()
        if node not in seen:
            seen.add(node)
            module = node.metadata.get(MODULE, module)
            yield node, module
            left += [(each, module) for each, _ in node.next_functions]


def _found(path: str) -> tuple[Any, str]:
    """Of `module:class.name` the class, and the name; not each release has all, nor each build."""
    module, _, names = path.partition(":")
    *around, name = names.split(".")
    try:
        return reduce(getattr, around, import_module(module)), name
    except (ImportError, AttributeError):
        return None, name


def _left_out(run: Callable[..., Any]) -> Callable[..., None]:
    return lambda *args, **kwargs: None


def _of_known_shapes(run: Callable[..., None]) -> Callable[..., None]:
    """Where stages of a pipeline ask one another whether all know the shapes that they exchange."""

    def told(schedule: Any, stages: Sequence[Any], *args: Any) -> None:
        from torch.distributed.pipelining.stage import InferenceMode

        for stage in stages:
            stage._inference_mode = InferenceMode.STATIC

    return told


def _on_cpu(init: Callable[..., None]) -> Callable[..., None]:
    """`torch.autocast`, where modules are traced, in the type that it has on a GPU."""

    def made(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        import torch

        if device_type.startswith("cuda"):
            device_type, dtype = "cpu", dtype or torch.float16
        init(self, device_type, dtype, *args, **kwargs)

    return made


@contextmanager
def _told(name: str) -> Iterator[None]:
    """What fake tensors cannot do, as one line; other errors are the program's own."""
    from torch._subclasses import fake_tensor as fake

    values = fake.DataDependentOutputException, fake.DynamicOutputShapeException
    try:
        yield
    except UnknownValueError as error:
        raise ModuleError(f"{name}: its loop fails{_place(error)}: {error}") from error
    except values as error:
        why = "depends on values, and nothing is computed here"
        raise ModuleError(f"{name}: its loop fails{_place(error)}: {error.func} {why}") from error
    except (fake.UnsupportedFakeTensorException, fake.UnsupportedOperatorException):
        with _step(name, "its loop"):
            raise

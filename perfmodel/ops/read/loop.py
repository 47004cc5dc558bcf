"""The op graph of a program's own training loop: its modules, backward passes, optimizers and
collectives, in a context around it.

PyTorch's hooks tell where the loop is. What PyTorch does otherwise where it finds no GPU (a kernel
per parameter in optimizers) is done as on a GPU, and what of data parallelism asks for values
(whether all processes hold the same model) is left out.
"""

from __future__ import annotations

import gc
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, count
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._guards import active_fake_mode
from torch._subclasses import fake_tensor as fake
from torch.optim import optimizer
from torch.utils.weak import WeakIdKeyDictionary

from perfmodel.errors import Note
from perfmodel.hardware import Node
from perfmodel.ops.graph import FORWARD, MODULE, NO_OP, OPTIMIZER, OpGraph
from perfmodel.ops.read import tracing
from perfmodel.ops.read.assumed import SHARES, Assumptions
from perfmodel.ops.read.collective_calls import reads_of_collectives
from perfmodel.ops.read.patches import under_fake_tensors
from perfmodel.ops.read.recorder import Recorder
from perfmodel.ops.read.values import Values

_USUAL = {**SHARES, "item": 1.0}
"""Numbers that a loop asks for are logged, mostly."""
_PIPELINE = "torch.distributed.pipelining.schedules:_PipelineSchedule."
_SHARDING = "torch.distributed.tensor._sharding_prop:ShardingPropagator."


class LoopRecorder(Recorder):
    """The ops of a loop from the first call of a module on: what comes before builds. Where an
    optimizer steps more than once, those of its last period: later ones are as that is."""

    def __init__(self, node: Node, assume: Mapping[str, float]) -> None:
        super().__init__(node.gpus)
        self._assumptions = Assumptions(torch, assume, _USUAL)
        self._mode = active_fake_mode() or fake.FakeTensorMode(allow_non_fake_inputs=True)
        self._fakes: Any = WeakIdKeyDictionary()  # of real tensors one each, while these live
        self._names: Any = WeakKeyDictionary()
        """Modules, to their paths; one that is no more leaves its name to another."""
        device = node.device
        major, _, minor = (device.compute_capability or "0.0").partition(".")
        self._properties = SimpleNamespace(
            name=device.name,
            total_memory=int(device.hbm_bytes),
            multi_processor_count=device.sm_count,
            major=int(major),
            minor=int(minor),
        )
        self._has_begun = False
        self._ended: dict[int, list[int]] = {}
        """Optimizers, to how many ops were done at the end of each of their steps."""
        self._interrupted = FORWARD

    @contextmanager
    def of_loop(self, name: str) -> Iterator[None]:
        """Records. What was there before is afterwards as it was."""
        hooks = torch.nn.modules.module
        changes: dict[str, Callable[..., Any]] = {
            "torch.distributed:Reducer.__init__": self._silently,
            "torch.distributed:Reducer._set_static_graph": self._silently,
            "torch.nn.utils.clip_grad:_has_foreach_support": lambda *_, **__: True,
            # A scaler for a GPU turns itself off where there is none.
            "torch.amp.grad_scaler:GradScaler.__init__": lambda init, scaler, _="cuda", **named: (
                init(scaler, "cpu", **named)
            ),
            "torch.amp.grad_scaler:GradScaler._maybe_opt_step": _of_finite_gradients,
            # Other processes do it, on the host.
            "torch.utils.data.dataloader:_BaseDataLoaderIter.__next__": self._silently,
            "torch.cuda:get_device_properties": lambda *_, **__: self._properties,
            f"{_PIPELINE}_warmup_p2p": _of_known_shapes,
            "torch.export:export": self._silently,
            f"{_SHARDING}_propagate_tensor_meta": self._silently,
            f"{_SHARDING}_propagate_tensor_meta_non_cached": self._silently,
        }
        # What fake tensors cannot do is told in one line; other errors are the program's own.
        kinds = fake.UnsupportedFakeTensorException, fake.UnsupportedOperatorException
        told = tracing.step(name, "its loop", (tracing.UnknownValueError, *kinds))
        fakes = under_fake_tensors(self._mode)
        with _as_it_was(), told, tracing.instead(changes), fakes:
            hooks.register_module_forward_pre_hook(self._enter)
            hooks.register_module_forward_hook(self._leave, always_call=True)
            optimizer.register_optimizer_step_pre_hook(self._optimize)
            optimizer.register_optimizer_step_post_hook(self._optimized)
            values = Values(self._assumptions)
            self.known = values.known
            with values.following(), self.recording():
                yield

    def graph(self, name: str) -> OpGraph:
        """What was recorded. Raises `ModuleError` where no module was called."""
        if not (self._has_begun and self.ops):
            raise tracing.ModuleError(f"{name}: nothing ran: call a module inside the context")
        self._assumptions.check_used(name)
        dist, rank, ranks = torch.distributed, 0, 1
        if dist.is_available() and dist.is_initialized():
            rank, ranks = dist.get_rank(), dist.get_world_size()
        # A loop is as long as the period of the optimizer that steps least often.
        again = [ends for ends in self._ended.values() if len(ends) > 1]
        period = min(again, key=lambda ends: (len(ends), -ends[-1]), default=(0, len(self.ops)))
        first, last = period[-2:]
        ops = [
            replace(op, parent=op.parent - first if op.parent >= first else NO_OP)
            for op in self.ops[first:last]
        ]
        ended = self.lifetimes.held.items()
        held = {key: min(at, last - 1) - first for key, at in ended if at >= first}
        notes = tuple(Note(text) for text in sorted(map(str, self._assumptions.used)))
        edges = reads_of_collectives(ops)
        return OpGraph(tuple(ops), edges, None, rank, ranks, name, notes, held=held)

    def function(self, func: Any, args: Any, kwargs: Any) -> Any:
        answer = super().function(func, args, kwargs)
        if not torch.is_grad_enabled():
            return answer
        for each in answer if isinstance(answer, (tuple, list)) else (answer,):
            node = each.grad_fn if isinstance(each, torch.Tensor) else None
            if node is not None:
                node.metadata.setdefault(MODULE, self._modules[-1])
        return answer

    def _tensor(self, value: Any) -> Any:
        """A real tensor counts as the fake one that stands for it."""
        if self._mode.is_our_fake(value):
            return super()._tensor(value)
        self._fakes[value] = fake = self._silently(self._mode.from_tensor, value)
        if not value.dim():  # as what `torch.tensor` makes
            self._host.add(self.lifetimes.number(fake.untyped_storage()))
        return super()._tensor(fake)

    def _enter(self, module: Any, inputs: Any) -> None:
        if not (self._has_begun or self._is_silent):
            self.restart()
            self._has_begun = True
        if module not in self._names:
            # Within another one of which it is no part, it is named as if it were.
            root = ".".join(filter(None, (self._modules[-1], type(module).__name__)))
            if not self._modules[-1]:
                others = (f"{root}_{number}" for number in count(2))
                root = next(n for n in chain((root,), others) if n not in {*self._names.values()})
            for path, part in module.named_modules():
                self._names.setdefault(part, f"{root}.{path}".rstrip("."))
        self._modules.append(self._names[module])

    def _leave(self, module: Any, inputs: Any, outputs: Any) -> None:
        self._modules.pop()

    def _optimize(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._interrupted, self.phase = self.phase, OPTIMIZER
        for group in optimizer.param_groups:
            if group.get("foreach", True) is None and not group.get("fused"):
                group["foreach"] = True  # as is usual on a GPU

    def _optimized(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.phase = self._interrupted  # the backward pass, of an optimizer that steps within
        self._ended.setdefault(id(optimizer), []).append(len(self.ops))


_CONTAINERS = (dict, OrderedDict, defaultdict, list, set)
_OF_LEAVES = ("grad", "requires_grad", "_backward_hooks", "_post_accumulate_grad_hooks")


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Modules, optimizers, their schedules and parameters are afterwards as before, whatever was
    set in them or hooked to them; so are hooks of all of them, random numbers, and whether
    gradients are kept."""
    owners = torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler
    kinds = (*owners, torch.Tensor)
    seen: dict[int, Any] = {}
    contents, attributes = list[tuple[Any, Any]](), list[tuple[Any, str, Any]]()
    with torch._C.DisableTorchFunctionSubclass():
        every = gc.get_objects()
        ours = {kind for kind in set(map(type, every)) if issubclass(kind, kinds)}
        found = (each for each in every if type(each) in ours)
        left = [each for each in found if isinstance(each, owners) or each.requires_grad]
        del every, found  # which nobody has to hold longer
        for module in (torch.nn.modules.module, optimizer):
            names = (name for name in vars(module) if name.startswith("_global_"))
            left += [getattr(module, name) for name in names]
        while left:
            each = left.pop()
            if id(each) in seen:
                continue
            seen[id(each)] = each
            if type(each) in _CONTAINERS:
                contents.append((each, each.copy()))
                left += each.values() if isinstance(each, dict) else each
            elif isinstance(each, tuple):
                left += each
            elif isinstance(each, kinds):
                is_leaf = isinstance(each, torch.Tensor) and each.is_leaf
                for name in ("__class__", *_OF_LEAVES) if is_leaf else ("__class__",):
                    attributes.append((each, name, getattr(each, name)))
                    left.append(getattr(each, name))
                left.append(vars(each))
    try:
        with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(torch.is_grad_enabled()):
            yield
    finally:
        with torch._C.DisableTorchFunctionSubclass():
            for owner, name, value in attributes:
                if getattr(owner, name) is not value:
                    setattr(owner, name, value)
        for each, before in contents:
            if _identities(each) != _identities(before):  # only then: threads may read it
                each.clear()
                (each.extend if isinstance(each, list) else each.update)(before)


def _identities(container: Any) -> list[int]:
    values = container.values() if isinstance(container, dict) else ()
    return [id(each) for each in (*container, *values)]


def _of_finite_gradients(
    _: Any, scaler: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any
) -> Any:
    """A scaler asks of each device whether gradients are finite, and steps."""
    for found in state["found_inf_per_device"].values():
        found.item()
    return optimizer.step(*args, **kwargs)


def _of_known_shapes(_: Any, schedule: Any, stages: Sequence[Any], *args: Any) -> None:
    """Where stages of a pipeline ask one another whether all know the shapes that they exchange."""
    from torch.distributed.pipelining.stage import InferenceMode

    for stage in stages:
        stage._inference_mode = InferenceMode.STATIC

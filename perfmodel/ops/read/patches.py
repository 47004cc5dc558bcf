"""PyTorch while a program is traced: fake tensors, everything on one GPU, and what stands in for
what takes a GPU, other processes or values. It imports PyTorch; import it where that is there."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter
from torch.utils.weak import WeakIdKeyDictionary

from perfmodel.ops.read.tracing import holds_others, instead, mapped

_STREAMS = ("Event", "Stream", "current_stream", "default_stream", "stream")
_DDP = "torch.nn.parallel.distributed:DistributedDataParallel."
_LEFT_OUT = (
    *("torch.cuda:set_device", "torch.cuda:synchronize", "torch.cuda:reset_peak_memory_stats"),
    *("torch.cuda:nvtx.range_push", "torch.cuda:nvtx.range_pop", "torch.cuda:nvtx.mark"),
    *("torch:save", "torch:set_default_device"),
    # Which backends this machine has.
    *("torch.nn.attention:_sdpa_kernel", "torch.nn.attention.flex_attention:_validate_device"),
    *(f"{_DDP}_check_comm_hook", f"{_DDP}_passing_sync_batchnorm_handle"),
    *(
        "torch.distributed:_verify_params_across_processes",
        "torch.distributed:Reducer._rebuild_buckets",
    ),
)
_COMPILERS = (
    *("torch:compile", "torch.jit:script", "torch.jit:trace", "torch.jit:freeze"),
    "torch.jit:optimize_for_inference",
)
"""They capture nothing under fake tensors."""


@contextmanager
def under_fake_tensors(mode: Any) -> Iterator[None]:
    """In a fake tensor `mode`, whatever goes to a GPU stays where it is: all of it is taken to be
    on one. Modules can be cast (`half`, `to`) with fake tensors too."""

    def function(_: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory, torch.Tensor.record_stream):
            return args[0]
        if func is torch.device:
            is_gpu = any(map(_names_gpu, (*args, *(kwargs or {}).values())))
            return func("cpu") if is_gpu else func(*args, **(kwargs or {}))
        if func == torch.Tensor.data.__set__ and not (is_fake(args[0]) or holds_others(args[0])):
            value, data = args
            stand_ins[value] = made = data if is_fake(data) else mode.from_tensor(data)
            with _disable_current_modes():  # it stays a real one, of which nothing is read
                undo.callback(setattr, value, "data", value.data)
                if is_fake(data):
                    data = torch.empty_strided(made.shape, made.stride(), dtype=made.dtype)
                func(value, data)
            return mode.fake_tensor_converter.set_tensor_memo(value, made)
        return _staying(func, 1 if func is torch.Tensor.to else None, *args, **(kwargs or {}))

    is_fake, stand_ins = mode.is_our_fake, WeakIdKeyDictionary()
    staying: Any = type("Staying", (TorchFunctionMode,), {"__torch_function__": function})
    changes: dict[str, Callable[..., Any]] = {
        "torch.nn:Module._apply": _apply,
        f"{_DDP}__init__": _on_any_device,
        f"{_DDP}_pre_forward": _with_sums,
        "torch.distributed:Reducer.__init__": _of_later_steps,
        "torch.nn:SyncBatchNorm.forward": _over_ranks,
        "torch.distributed:all_reduce": _with_result,
        # TorchRec registers no weights on fake groups; groups are of the backend that there is.
        "torch.distributed:get_backend": lambda run, *group: run(*group).replace("fake", "nccl"),
        "torch.distributed:new_group": lambda run, *ranks, backend=None, **named: run(
            *ranks, **named
        ),
        "torch._C._nn:_parse_to": lambda run, *args, **named: _staying(run, 0, *args, **named),
        "torch.amp:autocast.__init__": _on_cpu,
        "torch.distributed.device_mesh:DeviceMesh.__init__": _of_real_ranks,
        "torch:Tensor.as_subclass": _of_another_class,
        "torch:Tensor.__deepcopy__": _copied,
        "torch.nn:Parameter.__deepcopy__": _copied,
        "torch:_VF._pad_packed_sequence": _padded,
        "torch.utils.data.dataloader:_MultiProcessingDataLoaderIter": _in_this_process,
        "torch.cuda:current_device": lambda _: 0,
        "torch.nn:UninitializedParameter.__new__": _really,
    }
    changes |= dict.fromkeys(_COMPILERS, _as_it_is)
    changes |= dict.fromkeys(_LEFT_OUT, lambda *_, **__: None)
    changes |= {f"torch.cuda:{name}": _Stream for name in _STREAMS}
    logger = logging.getLogger(type(mode).__module__)  # what it logs of errors is raised as well
    quiet = patch.object(logger, "disabled", new=True)
    with ExitStack() as undo, quiet, mode, instead(changes), staying():
        yield


class _Stream(nullcontext[None]):
    """A stream or an event: work on any is taken to be on one. A time that is asked for is 1, as
    other numbers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None  # records and waits

    def elapsed_time(self, end: Any) -> float:
        return 1.0

    def query(self) -> bool:
        return True


def _as_it_is(_: Any, model: Any = None, *args: Any, **kwargs: Any) -> Any:
    """A model that runs as it is; without one, a decorator."""
    return (lambda it: it) if model is None else model


def _really(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What has no sizes yet is no fake tensor."""
    with _disable_current_modes():
        return _staying(make, None, *args, **kwargs)


def _staying(run: Callable[..., Any], at: int | None, /, *args: Any, **kwargs: Any) -> Any:
    """`run` with the CPU for a GPU, also for one by its number in `device` or argument `at`."""

    def here(value: Any, is_device: bool) -> Any:
        named = isinstance(value, str | torch.device) or is_device
        return "cpu" if named and _names_gpu(value) else value

    given = [here(each, n == at) for n, each in enumerate(args)]
    return run(*given, **{key: here(each, key == "device") for key, each in kwargs.items()})


def _names_gpu(device: Any) -> bool:
    return type(device) is int or str(device).startswith("cuda")


def _copied(_: Any, value: Any, memo: dict[int, Any]) -> Any:
    """`copy.deepcopy` of a tensor, real or fake, as a fake one of the same kind."""
    made = fake(value) if fake(value) is not value else value.detach().clone()
    if isinstance(value, torch.nn.Parameter):
        made = torch.nn.Parameter(made)
    return memo.setdefault(id(value), made.requires_grad_(value.requires_grad))


def _padded(_: Any, data: Any, sizes: Any, batch_first: bool, padding: float, steps: int) -> Any:
    """A packed sequence as a tensor, as PyTorch makes it in C++ where it has memory."""
    made = data.new_full((max(steps, len(sizes)), int(sizes[0]), *data.shape[1:]), padding)
    same, counts = sizes.unique_consecutive(return_counts=True)
    parts = data.split((same * counts).tolist())
    at = 0
    for part, size, count in zip(parts, same.tolist(), counts.tolist(), strict=True):
        made[at : at + count, :size] = part.view(count, size, *data.shape[1:])
        at += count
    lengths = (sizes[:, None] > torch.arange(int(sizes[0]))).sum(0)
    return made.transpose(0, 1) if batch_first else made, lengths


def _in_this_process(_: Any, loader: Any) -> Any:
    """A `DataLoader` without workers: fake tensors do not travel between processes."""
    alone = copy.copy(loader)
    alone.num_workers = alone.timeout = 0
    return _SingleProcessDataLoaderIter(alone)


def _of_another_class(run: Callable[..., Any], value: Any, kind: Any) -> Any:
    """A fake tensor of a class of the program's own is of both."""
    if not isinstance(value, FakeTensor):
        return run(value, kind)
    both = type(kind.__name__, (kind, FakeTensor), {})
    with in_kernel_invocation_manager(value.fake_mode), torch.no_grad():
        return FakeTensor.__new__(both, value.fake_mode, value, value.fake_device)


def _of_real_ranks(init: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """A mesh of devices, which takes itself apart outside of any fake mode."""

    def real(value: Any) -> Any:
        if not isinstance(value, FakeTensor):
            return value
        ranks = value.tolist()
        with _disable_current_modes():
            return torch.tensor(ranks, dtype=value.dtype)

    _staying(init, None, *map(real, args), **mapped(real, kwargs))


def _on_cpu(
    init: Any, autocast: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any
) -> None:
    """`torch.autocast` in the type that it has on a GPU."""
    if device_type.startswith("cuda"):
        device_type, dtype = "cpu", dtype or torch.float16
    init(autocast, device_type, dtype, *args, **kwargs)


def _apply(_: Any, module: Any, change: Callable[[Any], Any], recurse: bool = True) -> Any:
    """`nn.Module._apply`, which cannot exchange fake tensors: parameters stay and have other data,
    buffers are others; tied weights stay tied."""
    made: dict[int, Any] = {}
    parts = module.modules() if recurse else (module,)
    for held in (each for part in parts for each in (part._parameters, part._buffers)):
        for key, value in held.items():
            if value is not None and id(value) not in made:
                made[id(value)] = new = change(value.detach())
                if isinstance(value, torch.nn.Parameter):
                    if torch._has_compatible_shallow_copy_type(fake(value), new):
                        value.data, made[id(value)] = new, value
                    else:
                        made[id(value)] = torch.nn.Parameter(new, value.requires_grad)
            held[key] = None if value is None else made[id(value)]
    return module


def fake(value: Any) -> Any:
    """A fake tensor for a tensor, of its values where these are integers; else what is given."""
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
    has_values = not (value.is_floating_point() or value.is_complex() or value.is_meta)
    return made.copy_(value) if has_values else made


def _on_any_device(
    init: Any, ddp: Any, module: Any, device_ids: Any = None, output_device: Any = None, **rest: Any
) -> None:
    """Data parallelism, whose device need not be named: there is one."""
    init(ddp, module, **rest)
    ddp._has_later_buckets = True


def _with_sums(run: Callable[..., Any], ddp: Any, *args: Any, **kwargs: Any) -> Any:
    """Gradients are summed by a hook: the usual one waits for what no fake group gives."""
    hooks = ddp._comm_hooks or [(_summed, ddp.process_group)]
    if not hasattr(ddp, "_has_later_buckets"):  # made before, as its hooks were
        ddp._comm_hooks, ddp._has_later_buckets = [], True
        given, are_sparse = ddp._build_params_for_reducer()
        names = ddp._build_debug_param_to_name_mapping(given)
        ddp._ddp_init_helper(given, are_sparse, names, ddp.static_graph)
    if not ddp._comm_hooks:
        for hook, state in hooks:
            ddp.register_comm_hook(state, hook)
    return run(ddp, *args, **kwargs)


def _summed(group: Any, bucket: Any) -> Any:
    """Gradients of a bucket."""
    work: Any = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def _of_later_steps(
    init: Any, reducer: Any, parameters: Any, buckets: Any, limits: Any, *rest: Any
) -> None:
    """DDP's buckets as they are from its second step on: the first has one of each type, and tells
    in which order gradients come: the last parameters' first, as a rule.

    Source: PyTorch, `Reducer::rebuild_buckets`.
    """
    _, is_sparse, most_bytes, finds_unused, _, _, first_bytes, *_ = rest
    if not finds_unused and set(limits) == {sys.maxsize}:
        order, sizes = parameters[::-1], [first_bytes, most_bytes]
        found, limits = dist._compute_bucket_assignment_by_size(order, sizes, is_sparse[::-1])
        buckets = [[len(parameters) - 1 - at for at in each] for each in found]
    init(reducer, parameters, buckets, limits, *rest)


def _with_result(run: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """An all-reduce whose future has a value, which that of a fake group has not."""
    if (work := run(tensor, *args, **kwargs)) is None:
        return None
    future: Any = torch.futures.Future()
    future.set_result([tensor])
    own = {name: getattr(work, name) for name in ("wait", "is_completed")}
    return SimpleNamespace(get_future=lambda: future, **own)


def _over_ranks(run: Callable[..., Any], layer: Any, values: Any) -> Any:
    """`SyncBatchNorm.forward` of tensors that lie on no GPU: batches are normalised as on one rank,
    behind an exchange of each channel's mean, deviation and count, in backward of two sums.

    Source: PyTorch, torch/nn/modules/_functions.py.
    """
    is_group = dist.is_available() and dist.is_initialized()
    ranks = dist.get_world_size(layer.process_group) if is_group else 1
    if ranks == 1 or not layer.training:
        return run(layer, values)

    class Sums(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, values: Any, group: Any) -> Any:
            ctx.group = group
            return values.view_as(values)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            sums = gradient.new_empty(2 * gradient.shape[1], dtype=torch.float32)
            dist.all_reduce(sums, group=ctx.group)
            sums.div_(dist.get_world_size(ctx.group))
            return gradient, None

    own = values.new_empty(2 * layer.num_features + 1, dtype=torch.float32)
    every = own.new_empty(ranks * len(own))
    dist.all_gather_into_tensor(every, own, group=layer.process_group)
    every.view(ranks, -1).mean(0)
    out = torch.nn.BatchNorm2d.forward(layer, values)
    return Sums.apply(out, layer.process_group)

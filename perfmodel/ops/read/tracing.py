"""PyTorch while a program is traced: fake tensors, everything on one GPU, errors of one line."""

from __future__ import annotations

import copy
import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from perfmodel.errors import PerfmodelError
from perfmodel.ops.read.as_on_gpu import over_ranks
from perfmodel.ops.read.collective_calls import (
    of_later_steps,
    on_any_device,
    with_result,
    with_sums,
)

OLDEST = (2, 4)
_STREAMS = ("Event", "Stream", "current_stream", "default_stream", "stream")
_LEFT_OUT = (
    *("set_device", "synchronize", "reset_peak_memory_stats"),
    *("nvtx.range_push", "nvtx.range_pop", "nvtx.mark"),
)
_COMPILERS = (
    *("torch:compile", "torch.jit:script", "torch.jit:trace", "torch.jit:freeze"),
    "torch.jit:optimize_for_inference",
)
"""They capture nothing under fake tensors."""
_PARALLEL = "torch.nn.parallel.distributed:"


class ModuleError(PerfmodelError):
    """A program cannot be built or traced; one line that names the file, and the operator."""


class UnknownValueError(Exception):
    """An operator asks for a value that nothing computes, and that is not assumed."""


def pytorch() -> Any:
    """Raises `ModuleError` where it is missing or too old."""
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST:
        found = "" if torch is None else f", not {torch.__version__}"
        raise ModuleError(f"tracing a program takes PyTorch 2.4 or later{found}: pip install torch")
    return torch


@contextmanager
def instead(changes: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """A call of what stands at `module:Class.name` is, inside, one of its function here, which is
    given what stood there first; classes and static methods replace it. Not each release of PyTorch
    has all, nor each build."""
    patches = []
    for path, change in changes.items():
        module, _, names = path.partition(":")
        *around, name = names.split(".")
        with suppress(ImportError, AttributeError):
            owner = reduce(getattr, around, import_module(module))
            before, is_whole = getattr(owner, name), isinstance(change, (type, staticmethod))
            new = change if is_whole else _given_first(before, change)
            patches.append(patch.object(owner, name, new))
    with ExitStack() as undo:
        for each in patches:
            undo.enter_context(each)
        yield


def _given_first(before: Any, change: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: change(before, *args, **kwargs)


@contextmanager
def under_fake_tensors(mode: Any) -> Iterator[None]:
    """In a fake tensor `mode`, whatever goes to a GPU stays where it is: all of it is taken to be
    on one. Modules can be cast (`half`, `to`) with fake tensors too."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import _disable_current_modes
    from torch.utils.weak import WeakIdKeyDictionary

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

    torch, is_fake, stand_ins = pytorch(), mode.is_our_fake, WeakIdKeyDictionary()
    staying: Any = type("Staying", (TorchFunctionMode,), {"__torch_function__": function})
    changes: dict[str, Callable[..., Any]] = {
        "torch.nn:Module._apply": _apply,
        f"{_PARALLEL}DistributedDataParallel.__init__": on_any_device,
        f"{_PARALLEL}DistributedDataParallel._pre_forward": with_sums,
        "torch.distributed:Reducer.__init__": of_later_steps,
        f"{_PARALLEL}DistributedDataParallel._passing_sync_batchnorm_handle": left_out,
        f"{_PARALLEL}DistributedDataParallel._check_comm_hook": left_out,  # is NCCL here?
        "torch.nn:SyncBatchNorm.forward": over_ranks,
        "torch.distributed:_verify_params_across_processes": left_out,
        "torch.distributed:Reducer._rebuild_buckets": left_out,
        "torch.distributed:all_reduce": with_result,
        # TorchRec registers no weights on fake groups; groups are of the backend that there is.
        "torch.distributed:get_backend": lambda run, *group: run(*group).replace("fake", "nccl"),
        "torch.distributed:new_group": lambda run, *args, backend=None, **named: run(
            *args, **named
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
        # This machine has other backends.
        "torch.nn.attention:_sdpa_kernel": left_out,
        "torch.nn.attention.flex_attention:_validate_device": left_out,
        "torch:set_default_device": left_out,
        "torch:save": left_out,
    }
    changes |= dict.fromkeys(_COMPILERS, _as_it_is)
    changes |= {f"torch.cuda:{name}": left_out for name in _LEFT_OUT}
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
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        return _staying(make, None, *args, **kwargs)


def left_out(*args: Any, **kwargs: Any) -> None:
    return


def _staying(run: Callable[..., Any], at: int | None, /, *args: Any, **kwargs: Any) -> Any:
    """`run` with the CPU for a GPU, also for one by its number in `device` or argument `at`."""
    import torch

    def here(value: Any, is_device: bool) -> Any:
        named = isinstance(value, str | torch.device) or is_device
        return "cpu" if named and _names_gpu(value) else value

    given = [here(each, n == at) for n, each in enumerate(args)]
    return run(*given, **{key: here(each, key == "device") for key, each in kwargs.items()})


def _names_gpu(device: Any) -> bool:
    return type(device) is int or str(device).startswith("cuda")


def _copied(_: Any, value: Any, memo: dict[int, Any]) -> Any:
    """`copy.deepcopy` of a tensor, real or fake, as a fake one of the same kind."""
    import torch

    made = fake(value) if fake(value) is not value else value.detach().clone()
    if isinstance(value, torch.nn.Parameter):
        made = torch.nn.Parameter(made)
    return memo.setdefault(id(value), made.requires_grad_(value.requires_grad))


def _padded(_: Any, data: Any, sizes: Any, batch_first: bool, padding: float, steps: int) -> Any:
    """A packed sequence as a tensor, as PyTorch makes it in C++ where it has memory."""
    import torch

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
    from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

    alone = copy.copy(loader)
    alone.num_workers = alone.timeout = 0
    return _SingleProcessDataLoaderIter(alone)


def _of_another_class(run: Callable[..., Any], value: Any, kind: Any) -> Any:
    """A fake tensor of a class of the program's own is of both."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

    if not isinstance(value, FakeTensor):
        return run(value, kind)
    both = type(kind.__name__, (kind, FakeTensor), {})
    with in_kernel_invocation_manager(value.fake_mode), torch.no_grad():
        return FakeTensor.__new__(both, value.fake_mode, value, value.fake_device)


def _of_real_ranks(init: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """A mesh of devices, which takes itself apart outside of any fake mode."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._python_dispatch import _disable_current_modes

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
    import torch

    if device_type.startswith("cuda"):
        device_type, dtype = "cpu", dtype or torch.float16
    init(autocast, device_type, dtype, *args, **kwargs)


def _apply(_: Any, module: Any, change: Callable[[Any], Any], recurse: bool = True) -> Any:
    """`nn.Module._apply`, which cannot exchange fake tensors: parameters stay and have other data,
    buffers are others; tied weights stay tied."""
    import torch

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


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """`value` with every item in its lists, tuples and dicts changed; named tuples become plain."""
    if isinstance(value, (list, tuple)):
        items = [mapped(change, item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {key: mapped(change, item) for key, item in value.items()}
    return change(value)


def leaves(value: Any) -> list[Any]:
    """Every item in the lists, tuples and dicts of `value`."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return [value]
    return [each for item in value for each in leaves(item)]


def arguments_of(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of a call by name, in the order of its operator's `schema`."""
    given, rest = schema.arguments[: len(args)], schema.arguments[len(args) :]
    named = {each.name: value for each, value in zip(given, args, strict=False)}
    return named | {each.name: kwargs.get(each.name, each.default_value) for each in rest}


def holds_others(value: Any) -> bool:
    """Whether it is a tensor that holds others, as distributed ones do, or one that a
    transformation of `torch.func` follows."""
    import torch

    is_followed = torch._C._functorch.is_functorch_wrapped_tensor
    is_tensor = isinstance(value, torch.Tensor)
    return hasattr(type(value), "__tensor_flatten__") or (is_tensor and is_followed(value))


def fake(value: Any) -> Any:
    """A fake tensor for a tensor, of its values where these are integers; else what is given."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
    has_values = not (value.is_floating_point() or value.is_complex() or value.is_meta)
    return made.copy_(value) if has_values else made


def cast(torch: Any, value: Any, dtype: Any) -> Any:
    """A floating tensor as `dtype`, anything else as it is."""
    is_real = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if is_real else value


@contextmanager
def step(where: str, what: str, kinds: Any = BaseException) -> Iterator[None]:
    """Errors of these kinds in the user's code, its own end among them, as one line that names the
    place."""
    try:
        yield
    except (PerfmodelError, KeyboardInterrupt):
        raise
    except kinds as error:  # an end of the process is one, and a class of the user's own
        reason = ""
        with suppress(Exception):
            reason = " ".join(str(error).split())
        if not isinstance(error, UnknownValueError):
            kind = type(error).__name__
            reason = f"{kind}: {reason[:160]}" if reason else kind
        line = _line_of(reversed(list(traceback.walk_tb(error.__traceback__))))
        if isinstance(error, SyntaxError) and error.filename:
            line = f"line {error.lineno} of {Path(error.filename).name}"
        at = f" at {line}" if line else ""
        raise ModuleError(f"{where}: {what} fails{at}: {reason}") from error


def place() -> str:
    """The line of the program that runs."""
    return _line_of(traceback.walk_stack(None))


def _line_of(frames: Iterable[tuple[FrameType, int]]) -> str:
    """The innermost outside of PyTorch, of this folder, and of Python itself and its backports."""
    here, library = str(Path(__file__).parent), str(Path(traceback.__file__).parent)
    for frame, line in frames:
        path = frame.f_code.co_filename
        is_pythons = path.startswith((library, "<frozen ")) and "-packages" not in path
        is_tool = path.startswith(here) or "/torch/" in path or "typing_extensions" in path
        if not (is_pythons or is_tool):
            return f"line {line} of {Path(path).name}"
    return ""

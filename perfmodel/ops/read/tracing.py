"""PyTorch while a program is traced: fake tensors, everything on one GPU, errors of one line."""

from __future__ import annotations

import copy
import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial, reduce
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import MagicMock, patch

from perfmodel.errors import PerfmodelError
from perfmodel.ops.read.structures import leaves, mapped

OLDEST = (2, 4)
_OF_STREAMS = ("Event", "Stream", "current_stream", "default_stream", "stream", "nvtx")


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
def instead(changes: Mapping[str, Callable[[Any], Any]]) -> Iterator[None]:
    """What stands at `module:Class.name` is, inside, what its function makes of it; not each
    release of PyTorch has all, nor each build."""
    patches = []
    for path, change in changes.items():
        module, _, names = path.partition(":")
        *around, name = names.split(".")
        with suppress(ImportError, AttributeError):
            owner = reduce(getattr, around, import_module(module))
            patches.append(patch.object(owner, name, change(getattr(owner, name))))
    with ExitStack() as undo:
        for each in patches:
            undo.enter_context(each)
        yield


@contextmanager
def under_fake_tensors(mode: Any) -> Iterator[None]:
    """In a fake tensor `mode`, whatever goes to a GPU stays where it is: all of it is taken to be
    on one. Modules can be cast (`half`, `to`) with fake tensors too."""
    from torch.overrides import TorchFunctionMode

    def function(_: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        if func is torch.device:
            made = func(*args, **(kwargs or {}))
            return func("cpu") if made.type == "cuda" else made
        return _staying(func, 1 if func is torch.Tensor.to else None)(*args, **(kwargs or {}))

    torch = pytorch()
    staying: Any = type("Staying", (TorchFunctionMode,), {"__torch_function__": function})
    changes: dict[str, Callable[[Any], Any]] = {
        "torch.nn:Module._apply": lambda _: _apply,
        "torch.nn.parallel:DistributedDataParallel.__init__": _on_any_device,
        "torch._C._nn:_parse_to": partial(_staying, at=0),
        "torch.amp:autocast.__init__": _on_cpu,
        "torch.distributed.device_mesh:DeviceMesh.__init__": _of_real_ranks,
        "torch:Tensor.as_subclass": _of_known_class,
        "torch.cuda:current_device": lambda _: lambda: 0,
        "torch:save": left_out,
    }
    changes |= {f"torch.cuda:{name}": left_out for name in ("set_device", "synchronize")}
    # Work on any stream is taken to be on one; a time that is asked for is 1, as other numbers.
    stand_in = MagicMock(**{"return_value.elapsed_time.return_value": 1.0})
    changes |= {f"torch.cuda:{name}": lambda _: stand_in for name in _OF_STREAMS}
    logger = logging.getLogger(type(mode).__module__)  # what it logs of errors is raised as well
    with patch.object(logger, "disabled", new=True), mode, instead(changes), staying():
        yield


def left_out(run: Callable[..., Any]) -> Callable[..., None]:
    return lambda *args, **kwargs: None


def _staying(run: Callable[..., Any], at: int | None) -> Callable[..., Any]:
    """`run` with the CPU for a GPU, also for one by its number in `device` or argument `at`."""
    import torch

    def here(value: Any, is_device: bool) -> Any:
        names_gpu = isinstance(value, str | torch.device) and str(value).startswith("cuda")
        return "cpu" if names_gpu or (is_device and type(value) is int) else value

    def called(*args: Any, **kwargs: Any) -> Any:
        given = [here(each, n == at) for n, each in enumerate(args)]
        return run(*given, **{key: here(each, key == "device") for key, each in kwargs.items()})

    return called


def _of_known_class(run: Callable[..., Any]) -> Callable[..., Any]:
    """A fake tensor has a class already."""
    from torch._subclasses.fake_tensor import FakeTensor

    def made(value: Any, kind: Any) -> Any:
        if isinstance(value, FakeTensor):
            raise ModuleError(f"{place()}: a tensor of the class {kind.__name__}: not covered")
        return run(value, kind)

    return made


def _of_real_ranks(init: Callable[..., None]) -> Callable[..., None]:
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

    here = _staying(init, None)
    return lambda *args, **kwargs: here(*map(real, args), **mapped(real, kwargs))


def _on_any_device(init: Callable[..., None]) -> Callable[..., None]:
    """Data parallelism, whose device need not be named: there is one."""

    def made(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, **kwargs: Any
    ) -> None:
        init(self, module, **kwargs)

    return made


def _on_cpu(init: Callable[..., None]) -> Callable[..., None]:
    """`torch.autocast` in the type that it has on a GPU."""

    def made(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        import torch

        if device_type.startswith("cuda"):
            device_type, dtype = "cpu", dtype or torch.float16
        init(self, device_type, dtype, *args, **kwargs)

    return made


def _apply(module: Any, change: Callable[[Any], Any], recurse: bool = True) -> Any:
    """`nn.Module._apply`, which cannot exchange fake tensors; tied weights stay tied."""
    made: dict[int, Any] = {}
    for part in module.modules() if recurse else (module,):
        for held in (part._parameters, part._buffers):
            for key, value in held.items():
                if value is not None:
                    held[key] = made.setdefault(id(value), _like(change(value.detach()), value))
    return module


def faked(module: Any) -> Any:
    """A copy of a module that holds fake tensors of the same kind, registered or not."""
    import torch

    held = [value for part in module.modules() for value in leaves(vars(part))]
    tensors = [value for value in held if isinstance(value, torch.Tensor)]
    return copy.deepcopy(module, {id(value): _like(fake(value), value) for value in tensors})


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


def _like(fake: Any, value: Any) -> Any:
    import torch

    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(fake, requires_grad=value.requires_grad)
    return fake


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
        raise ModuleError(f"{where}: {what} fails{_place_of(error)}: {reason}") from error


def _place_of(error: BaseException) -> str:
    """The innermost line outside of PyTorch, of this folder and of Python's own import; of a file
    that is no Python, its line."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" at line {error.lineno} of {Path(error.filename).name}"
    line = _line_of(reversed(list(traceback.walk_tb(error.__traceback__))))
    return f" at {line}" if line else ""


def place() -> str:
    """The line of the program that runs."""
    return _line_of(traceback.walk_stack(None))


def _line_of(frames: Iterable[tuple[FrameType, int]]) -> str:
    here = str(Path(__file__).parent)
    for frame, line in frames:
        name = frame.f_code.co_filename
        if not (name.startswith((here, "<frozen ")) or "/torch/" in name):
            return f"line {line} of {Path(name).name}"
    return ""

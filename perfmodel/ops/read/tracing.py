"""What tracing asks of PyTorch and of values: what stands where, arguments, errors of one line."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from perfmodel.errors import PerfmodelError

OLDEST = (2, 4)


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

"""The op graph of a PyTorch module, built and called under fake tensors: nothing is computed or
allocated but the values of integers that it asks for. PyTorch is imported when a module is traced,
and not before.

What of a PyTorch module is asked: the class in its file, what it is given, how it is run. It is
longer than 400 lines: a call, its errors and its other odds go through one trace.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any

from perfmodel.base.files import check_input
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.ops.graph import OPTIMIZER, WAITING, Op, OpGraph, tensors_in
from perfmodel.ops.read.recorder import Recorder, cast, mapped
from perfmodel.ops.read.values import (
    NUMBER,
    STAND_INS,
    Assumption,
    UnknownValueError,
    Values,
    line_of,
)

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""Our words for the types that a module may be given in, and PyTorch's."""
OTHER_DTYPES = {"fp64": "float64"} | {n: n for n in ("int64", "int32", "int8", "uint8", "bool")}
"""The same of inputs alone."""
OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop")
EAGER, COMPILED, GRAPHS, REDUCED = HOW = ("eager", "compiled", "graphs", "reduce-overhead")


class ModuleError(PerfmodelError):
    """A module cannot be built or traced; one line that names the file, and the operator."""


@dataclass(frozen=True)
class Call:
    """What of a module is traced.

    `training`: forward, backward of the sum of its outputs, and a step of `optimizer` (a class of
    `torch.optim`, or of the file), in place of the forward pass alone. `dtype` is what the module
    and its floating inputs are cast to; `autocast` the type that `torch.autocast` computes in;
    `batch` the first dimension of every input; `assume`, by operator, what share of the booleans
    that it makes of floats is true, or of the rows for which it chooses takes the first choice.
    """

    training: bool = False
    optimizer: str | None = None
    dtype: str | None = None
    autocast: str | None = None
    batch: int | None = None
    assume: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, share in self.assume.items():
            is_number = name in STAND_INS and STAND_INS[name].word == NUMBER
            if not (isfinite(share) and (is_number or 0 <= share <= 1)):
                raise UsageError(f"assume {name}={share:g}: a share is from 0 to 1")
        for name in ("dtype", "autocast"):
            word = getattr(self, name)
            if word is not None and word not in DTYPES:
                raise UsageError(f"{name} {word!r}: one of {', '.join(DTYPES)}")
        if self.optimizer is not None and not self.training:
            raise UsageError("an optimizer takes a step of training")
        if self.batch is not None and self.batch < 1:
            raise UsageError(f"batch {self.batch}: below 1")


@dataclass(frozen=True)
class Program:
    """A class in a Python file, and what it and its call are given.

    `init` are arguments of the constructor; `inputs` tensors as `SIZExSIZE[:DTYPE]`, or the name of
    a function in the file that returns them. Without either, `get_init_inputs()` and `get_inputs()`
    of the file are called, where it has them.
    """

    path: Path
    class_name: str
    init: tuple[Any, ...] = ()
    inputs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`FILE.py:CLASS`."""
        return f"{self.path}:{self.class_name}"


EAGER_FORWARD = Call()


def program_of(text: str, init: Sequence[Any] = (), inputs: Sequence[str] = ()) -> Program | None:
    """The program that `FILE.py:CLASS` names; None for any other text."""
    path, separator, name = text.rpartition(":")
    if not separator or not path.endswith(".py") or not name.isidentifier():
        return None
    return Program(Path(path), name, tuple(init), tuple(inputs))


INTO_GRAPH = "into a CUDA graph"
"""Attribute of ops that copy what a call is given to where a captured graph reads it."""


def assumed(texts: Sequence[str]) -> dict[str, float]:
    """Shares by operator, of `OPERATOR=FRACTION` each. Raises `UsageError` for other text."""
    shares = {}
    for text in texts:
        name, _, share = text.partition("=")
        try:
            shares[name.strip()] = float(share)
        except ValueError:
            expected = "expected OPERATOR=FRACTION, as topk=0.5"
            raise UsageError(f"--assume {text!r}: {expected}") from None
    return shares


def as_run(graph: OpGraph, how: str) -> OpGraph:
    """The ops of a call as they run `eager`ly, `compiled`, captured in CUDA `graphs`, or compiled
    and captured, as `torch.compile(mode="reduce-overhead")` does: it copies what a call is given to
    where the graph reads it."""
    if how not in HOW:
        raise UsageError(f"mode {how!r}: one of {', '.join(HOW)}")
    if how in (COMPILED, REDUCED):
        from perfmodel.ops.edits.compiled import compiled

        waits = sum(op.name in WAITING for op in graph.ops)
        graph = compiled(graph)
        if waits:
            breaks = f"{waits} operators wait for values: torch.compile breaks its graph at each, "
            breaks += "which is not modelled beyond the wait"
            graph = replace(graph, notes=(*graph.notes, breaks))
    if how == REDUCED:
        # From tensors of their own, which stay in memory; one onto itself would be no copy.
        every = [t for op in graph.ops for t in (*op.tensors, *tensors_in(op.outputs))]
        last = max((max(t.tensor_id, t.storage_id) for t in every), default=0)
        own = [
            replace(each, tensor_id=last + n, storage_id=last + n)
            for n, each in enumerate(graph.given, 1)
        ]
        pairs = zip(graph.given, own, strict=True)
        copies = tuple(Op("aten::copy_", pair, attributes={INTO_GRAPH: ""}) for pair in pairs)
        graph = replace(graph, ops=(*graph.ops[:1], *copies, *graph.ops[1:]))
    graph = replace(graph, others=tuple(as_run(other, how) for other in graph.others))
    return replace(graph, cuda_graphs=True) if how in (GRAPHS, REDUCED) else graph


def graph_of_program(program: Program, call: Call = EAGER_FORWARD) -> OpGraph:
    """The ops of one call. The file is executed, as `python FILE` would; what it prints goes to
    standard error, and the working directory, `sys.path` and the default type are as before.

    Raises `ModuleError` where PyTorch or the class is missing, where construction or the call
    fails, and where an operator depends on values.
    """
    torch = _torch()
    from torch.utils._python_dispatch import _disable_current_modes

    name = program.name

    def build() -> Any:
        init = list(program.init)
        if not init and hasattr(source, "get_init_inputs"):
            with _step(name, "get_init_inputs()"):
                init = list(source.get_init_inputs())
        with _step(name, "its constructor"):
            try:
                return made(*init)
            except UnknownValueError:  # it looks at weights: build it for real
                with _disable_current_modes():
                    module = made(*init)
                return _faked(module)

    def inputs() -> list[Any]:
        given, function = program.inputs, "get_inputs"
        if len(given) == 1 and hasattr(source, given[0]):
            function = given[0]
        elif given:
            return [_input(torch, text) for text in given]
        elif not hasattr(source, function):
            raise ModuleError(
                f"{program.path}: no get_inputs(): write one, or give `predict` --input "
                "1024x1024:fp16 or the name of a function"
            )
        with _step(name, f"{function}()"):
            return list(getattr(source, function)())

    with _as_it_was(torch), _step(name, "tracing it"):
        source = _loaded(program)
        made: Any = getattr(source, program.class_name, None)
        if not (isinstance(made, type) and issubclass(made, torch.nn.Module)):
            classes = [each for each in vars(source).values() if isinstance(each, type)]
            modules = [each for each in classes if issubclass(each, torch.nn.Module)]
            known = [each.__name__ for each in modules if each.__module__ == source.__name__]
            raise ModuleError(
                f"{program.path}: no torch.nn.Module {program.class_name!r}; "
                f"it has {', '.join(known) or 'none'}"
            )
        return _traced(build, inputs, name, call, _optimizers(torch, vars(source)))


def graph_of_module(
    module: Any, inputs: Sequence[Any], call: Call = EAGER_FORWARD, name: str | None = None
) -> OpGraph:
    """The ops of `module(*inputs)` in the mode that it is in (training or evaluation).

    Its parameters are only looked at, never changed.

    Raises `ModuleError` as `graph_of_program` does.
    """
    name = name or type(module).__name__
    with _step(name, "tracing it"):
        torch = _torch()
        from torch.utils._pytree import tree_map

        given = partial(tree_map, _fake, list(inputs))
        return _traced(partial(_faked, module), given, name, call, _optimizers(torch, {}))


def _faked(module: Any) -> Any:
    """A copy of a module that holds fake tensors of the same kind."""
    import copy

    held = (*module.parameters(), *module.buffers())
    memo = {id(value): _like(_fake(value), value) for value in held}
    return copy.deepcopy(module, memo)


def _fake(value: Any) -> Any:
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return value
    fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
    has_values = not (value.is_floating_point() or value.is_complex() or value.is_meta)
    return fake.copy_(value) if has_values else fake


def _like(fake: Any, value: Any) -> Any:
    import torch

    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(fake, requires_grad=value.requires_grad)
    return fake


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise ModuleError(
            "tracing a module takes PyTorch 2.2 or later: pip install 'perfmodel[torch]'"
        ) from None
    return torch


def _loaded(program: Program) -> ModuleType:
    spec = importlib.util.spec_from_file_location("_perfmodel_program", program.path)
    if spec is None or spec.loader is None or not program.path.is_file():
        raise ModuleError(f"{program.path}: cannot be read: no such file")
    check_input(program.path)
    source = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(program.path.parent))
    with _step(str(program.path), "its import"):
        spec.loader.exec_module(source)
    return source


@contextmanager
def _as_it_was(torch: Any) -> Iterator[None]:
    """What a file may set for the whole process, set back; an answer is all that is printed."""
    folder, path, dtype = os.getcwd(), list(sys.path), torch.get_default_dtype()
    try:
        with redirect_stdout(sys.stderr), warnings.catch_warnings(action="ignore"):
            yield
    finally:
        os.chdir(folder)
        sys.path[:] = path
        torch.set_default_dtype(dtype)


def _input(torch: Any, text: str) -> Any:
    sizes, _, word = text.partition(":")
    words = DTYPES | OTHER_DTYPES
    if (word or "fp32") not in words:
        raise UsageError(f"--input {text!r}: unknown type {word!r}; one of {', '.join(words)}")
    try:
        shape = [int(size) for size in sizes.split("x")]
    except ValueError:
        raise UsageError(f"--input {text!r}: expected sizes as 1024x1024, or 8x512:int64") from None
    if min(shape) < 0:
        raise UsageError(f"--input {text!r}: a size below 0")
    with _step(f"--input {text!r}", "a tensor of it"):
        return torch.empty(shape, dtype=getattr(torch, words[word or "fp32"]))


@contextmanager
def _step(where: str, what: str) -> Iterator[None]:
    """Errors of the user's code, its own end among them, as one line that names the place."""
    try:
        yield
    except (PerfmodelError, KeyboardInterrupt):
        raise
    except BaseException as error:  # an end of the process is one, and a class of the user's own
        kind, reason = type(error).__name__, ""
        with suppress(Exception):
            reason = " ".join(str(error).split())[:160]
        reason = f"{kind}: {reason}" if reason else kind
        if isinstance(error, UnknownValueError):
            reason = str(error)
        raise ModuleError(f"{where}: {what} fails{_place(error)}: {reason}") from error


def _place(error: BaseException) -> str:
    """The innermost line outside of PyTorch, of this file and of Python's own import; of a file
    that is no Python, its line."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" at line {error.lineno} of {Path(error.filename).name}"
    line = line_of(reversed(list(traceback.walk_tb(error.__traceback__))))
    return f" at {line}" if line else ""


def _traced(
    build: Callable[[], Any],
    inputs: Callable[[], list[Any]],
    name: str,
    call: Call,
    optimizers: Mapping[str, Any],
) -> OpGraph:
    """The ops of a call, and where sizes depend on what is assumed, of two at other odds."""
    once = partial(_traced_once, build, inputs, name, call, optimizers)
    graph, used = once()
    unused = sorted(set(call.assume) - {each.name for each in used})
    if unused:
        asked = sorted({each.name for each in used})
        raise UsageError(
            f"{name}: assume {unused[0]}: no size depends on an operator of that name"
            + (f"; on these: {', '.join(asked)}" if asked else "")
        )
    notes, others = sorted(map(str, used)), []
    if any(0 < each.share < 1 and not each.is_number for each in used):
        notes.append("the interval covers half and twice the odds of what is assumed")
        others = [once(odds)[0] for odds in (0.5, 2.0)]
    return replace(graph, notes=(*graph.notes, *notes), others=tuple(others))


def _traced_once(
    build: Callable[[], Any],
    inputs: Callable[[], list[Any]],
    name: str,
    call: Call,
    optimizers: Mapping[str, Any],
    odds: float = 1.0,
) -> tuple[OpGraph, set[Assumption]]:
    torch = _torch()
    from unittest.mock import patch

    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._pytree import tree_leaves, tree_map

    recorder, values = Recorder(torch), Values(torch, call.assume, odds)
    with (
        warnings.catch_warnings(action="ignore"),
        # What it logs of errors is raised as well.
        patch.object(logging.getLogger(FakeTensorMode.__module__), "disabled", new=True),
        FakeTensorMode(allow_non_fake_inputs=True),
        _as_if_on_gpu(torch),
        values.following(),
    ):
        module = build()
        with values.of_inputs():
            given = inputs()
        if call.training:
            module.train()
        if call.dtype is not None:
            dtype = getattr(torch, DTYPES[call.dtype])
            _apply(module, lambda value: cast(torch, value, dtype))
            given = tree_map(lambda x: cast(torch, x, dtype), given)
        if call.batch is not None:
            with _step(name, f"a batch of {call.batch}"):
                given = [_of_batch(torch, each, call.batch) for each in given]
        leaves = tree_leaves(given)
        values.forget_floats(leaves)
        tensors = tuple(tensors_in(recorder.returned(leaves)))
        autocast = nullcontext()
        if call.autocast is not None:
            recorder.is_autocast = True
            autocast = torch.autocast("cpu", dtype=getattr(torch, DTYPES[call.autocast]))
        with recorder.recording(), _step(name, "its call"), autocast:
            if not call.training:
                with torch.no_grad():
                    module(*given)
            else:
                _train(torch, module, given, call, recorder, name, optimizers)
    if not recorder.ops:
        raise ModuleError(f"{name}: its call runs no operator")
    held = recorder.lifetimes.held
    return OpGraph(tuple(recorder.ops), source=name, held=held, given=tensors), values.used


def _of_batch(torch: Any, value: Any, batch: int) -> Any:
    """An input with as many samples; of integers, those given in turn. Raises `UsageError` for a
    structure that holds a batch of its own."""
    from torch.utils._pytree import tree_leaves

    if isinstance(value, torch.Tensor) and value.dim():
        if value.is_floating_point() or not len(value):
            return torch.empty((batch, *value.shape[1:]), dtype=value.dtype)
        return value[torch.arange(batch) % len(value)]
    if isinstance(value, list | tuple | dict):
        return mapped(lambda item: _of_batch(torch, item, batch), value)
    if any(isinstance(each, torch.Tensor) and each is not value for each in tree_leaves(value)):
        kind = type(value).__name__
        raise UsageError(f"batch {batch}: a {kind} holds its own: return another from get_inputs()")
    return value


def _optimizers(torch: Any, names: Mapping[str, Any]) -> dict[str, Callable[[Any], Any]]:
    """What makes an optimizer of parameters, by its name in small letters: those of PyTorch, and
    of the file's own `names`."""
    kinds = [each for each in names.values() if isinstance(each, type)]
    own = [kind for kind in kinds if issubclass(kind, torch.optim.Optimizer)]
    made: dict[str, Callable[[Any], Any]] = {
        kind.__name__.lower(): partial(kind, lr=0.01) for kind in own
    }
    for name in OPTIMIZERS:
        made[name.lower()] = partial(getattr(torch.optim, name), lr=0.01, foreach=True)
    return made


def _train(
    torch: Any,
    module: Any,
    inputs: list[Any],
    call: Call,
    recorder: Recorder,
    name: str,
    optimizers: Mapping[str, Any],
) -> None:
    from torch.utils._pytree import tree_leaves

    optimizer = None
    if call.optimizer is not None:
        made = optimizers.get(call.optimizer.lower())
        if made is None:
            own = sorted(set(optimizers) - {each.lower() for each in OPTIMIZERS})
            known = ", ".join((*OPTIMIZERS, *own))
            raise UsageError(f"optimizer {call.optimizer!r}: one of {known}")
        optimizer = made(module.parameters())
    outputs = tree_leaves(module(*inputs))
    losses = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
    if not losses:
        raise ModuleError(f"{name}: no output depends on a parameter: there is nothing to train")
    loss = sum(each.float().sum() for each in losses)
    recorder.backward(loss)
    recorder.phase = OPTIMIZER
    if optimizer is not None:
        optimizer.step()


def _apply(module: Any, change: Callable[[Any], Any], recurse: bool = True) -> Any:
    """`nn.Module._apply`, which cannot exchange fake tensors; tied weights stay tied."""
    made: dict[int, Any] = {}
    for part in module.modules() if recurse else (module,):
        for held in (part._parameters, part._buffers):
            for key, value in held.items():
                if value is not None:
                    held[key] = made.setdefault(id(value), _like(change(value.detach()), value))
    return module


@contextmanager
def _as_if_on_gpu(torch: Any) -> Iterator[None]:
    """Whatever goes to a GPU stays where it is: all of it is taken to be on one GPU. Modules can be
    cast (`half`, `to`) with fake tensors too."""
    from torch.overrides import TorchFunctionMode

    def stay(value: Any) -> Any:
        names_gpu = isinstance(value, str | torch.device) and str(value).startswith("cuda")
        return "cpu" if names_gpu else value

    class Staying(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.Tensor.cuda:
                return args[0]
            return func(*map(stay, args), **{k: stay(v) for k, v in (kwargs or {}).items()})

    before = torch.nn.Module._apply
    torch.nn.Module._apply = _apply
    try:
        with Staying():
            yield
    finally:
        torch.nn.Module._apply = before

"""The op graph of a PyTorch module, traced under fake tensors: nothing is computed or allocated.

A dispatch mode records every operator below autograd with its arguments, in the order of its
schema; a function mode tells which call of the program each belongs to. Convolutions, batch
normalisations, attention and recurrent layers are recorded as what a GPU would run for them, since
the tracing machine has none. PyTorch is imported when a module is traced, and not before.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.ops.dtypes import dtype_of_torch
from perfmodel.ops.graph import BACKWARD, FORWARD, NO_OP, OPTIMIZER, Argument, Op, OpGraph, Tensor
from perfmodel.ops.read.program import (
    DTYPES,
    EAGER_FORWARD,
    INTEGERS,
    OPTIMIZERS,
    Call,
    ModuleError,
    Program,
)

DEVICE = "cuda:0"
_AS_ONE = {
    "scaled_dot_product_attention": "aten::scaled_dot_product_attention",
    "dropout": "aten::native_dropout",
}
"""Functions that are one operator on a GPU, whatever they become on the tracing machine."""
_IN_FP32 = frozenset(
    (
        *("layer_norm", "group_norm", "softmax", "log_softmax", "norm", "exp", "log", "pow"),
        *("prod", "cumsum", "cumprod", "sum", "mse_loss", "l1_loss", "smooth_l1_loss"),
        *("cross_entropy", "nll_loss", "kl_div", "softplus", "rsqrt", "reciprocal"),
    )
)
"""What `torch.autocast` runs in fp32 on a GPU, and not on a CPU, where modules are traced."""
_RECURRENT = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Functions of recurrent layers, and how many gates each has."""
RECURRENT_OP = "aten::_cudnn_rnn"
CUDA_GRAPH = "cuda_graph"
"""The library starts the kernels of all steps at less cost than PyTorch does: as one launch."""
_MIN_CUDNN_NORM_DIMS = 3
"""PyTorch gives batch normalisation of `batch x channels` alone to its own kernel."""
_OPERATORS = {
    "__matmul__": "matmul",
    "__rmatmul__": "matmul",
    "__getitem__": "index",
    "__pow__": "pow",
}


def graph_of_program(program: Program, call: Call = EAGER_FORWARD) -> OpGraph:
    """The ops of one call. The file is executed, as `python FILE` would.

    Raises `ModuleError` where PyTorch or the class is missing, where construction or the call
    fails, and where an operator depends on values.
    """
    torch = _torch()
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        unset_fake_temporarily,
    )

    source = _loaded(program)
    made = getattr(source, program.class_name, None)
    if not (isinstance(made, type) and issubclass(made, torch.nn.Module)):
        known = [name for name, each in vars(source).items() if _is_module(torch, each, source)]
        raise ModuleError(
            f"{program.path}: no torch.nn.Module {program.class_name!r}; "
            f"it has {', '.join(known) or 'none'}"
        )

    def build() -> tuple[Any, list[Any]]:
        init = list(program.init)
        if not init and hasattr(source, "get_init_inputs"):
            init = list(source.get_init_inputs())
        with _step(program.name, "its constructor"):
            try:
                module = made(*init)
            except DataDependentOutputException:  # it looks at values: build it for real
                with unset_fake_temporarily():
                    module = made(*init)
                module = _faked(module)
        if program.inputs:
            inputs = _inputs(torch, source, program)
        elif hasattr(source, "get_inputs"):
            with _step(program.name, "get_inputs()"):
                inputs = list(source.get_inputs())
        else:
            raise ModuleError(
                f"{program.path}: no get_inputs(): give --input 1024x1024:fp16, or its name"
            )
        return module, inputs

    return _traced(build, program.name, call)


def graph_of_module(
    module: Any, inputs: Sequence[Any], call: Call = EAGER_FORWARD, name: str | None = None
) -> OpGraph:
    """The ops of `module(*inputs)`; its parameters are only looked at, never changed.

    Raises `ModuleError` as `graph_of_program` does.
    """
    name = name or type(module).__name__

    return _traced(lambda: (_faked(module), [_mapped(_fake, v) for v in inputs]), name, call)


def _faked(module: Any) -> Any:
    """A copy of a module that holds fake tensors of the same kind."""
    import copy

    held = (*module.parameters(), *module.buffers())
    memo = {id(value): _like(_fake(value), value) for value in held}
    return copy.deepcopy(module, memo)


def _fake(value: Any) -> Any:
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
    return value


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
    source = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(program.path.parent))
    try:
        with _step(str(program.path), "its import"):
            spec.loader.exec_module(source)
    finally:
        sys.path.pop(0)
    return source


def _is_module(torch: Any, each: Any, source: ModuleType) -> bool:
    is_class = isinstance(each, type) and issubclass(each, torch.nn.Module)
    return is_class and each.__module__ == source.__name__


def _inputs(torch: Any, source: ModuleType, program: Program) -> list[Any]:
    if len(program.inputs) == 1 and hasattr(source, program.inputs[0]):
        with _step(program.name, f"{program.inputs[0]}()"):
            return list(getattr(source, program.inputs[0])())
    return [_input(torch, text) for text in program.inputs]


def _input(torch: Any, text: str) -> Any:
    sizes, _, word = text.partition(":")
    words = DTYPES | INTEGERS
    if (word or "fp32") not in words:
        raise UsageError(f"--input {text!r}: unknown type {word!r}; one of {', '.join(words)}")
    try:
        shape = [int(size) for size in sizes.split("x")]
    except ValueError:
        raise UsageError(f"--input {text!r}: expected sizes as 1024x1024, or 8x512:int64") from None
    if min(shape) < 0:
        raise UsageError(f"--input {text!r}: a size below 0")
    return torch.empty(shape, dtype=getattr(torch, words[word or "fp32"]))


@contextmanager
def _step(where: str, what: str) -> Iterator[None]:
    """Errors of the user's code as one line that names the place."""
    try:
        yield
    except PerfmodelError:
        raise
    except Exception as error:
        raise ModuleError(f"{where}: {what} fails{_place(error)}: {_reason(error)}") from error


def _place(error: BaseException) -> str:
    """The innermost line outside of PyTorch and of this file."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/torch/" not in f.filename and f.filename != __file__]
    return f" at line {own[-1].lineno} of {Path(own[-1].filename).name}" if own else ""


def _reason(error: BaseException) -> str:
    kind = type(error).__name__
    operator = getattr(error, "func", None)
    if operator is not None and ("Dynamic" in kind or "DataDependent" in kind):
        return f"{operator} depends on values, and nothing is computed here"
    text = " ".join(str(error).split())
    return f"{kind}: {text[:160]}" if text else kind


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(change, item) for item in value)
    if isinstance(value, dict):
        return {key: _mapped(change, item) for key, item in value.items()}
    return change(value)


def _traced(build: Callable[[], tuple[Any, list[Any]]], name: str, call: Call) -> OpGraph:
    torch = _torch()
    from torch._subclasses.fake_tensor import FakeTensorMode

    recorder = _Recorder(torch)
    with (
        warnings.catch_warnings(action="ignore"),
        FakeTensorMode(allow_non_fake_inputs=True),
        _no_cuda_calls(torch),
    ):
        module, inputs = build()
        module.train()
        if call.dtype is not None:
            dtype = getattr(torch, DTYPES[call.dtype])
            _cast_module(torch, module, dtype)
            inputs = [_mapped(lambda x: _cast(torch, x, dtype), value) for value in inputs]
        if call.batch is not None:
            inputs = [_mapped(lambda x: _of_batch(torch, x, call.batch), v) for v in inputs]
        autocast = nullcontext()
        if call.autocast is not None:
            recorder.is_autocast = True
            autocast = torch.autocast("cpu", dtype=getattr(torch, DTYPES[call.autocast]))
        with recorder.recording(), _step(name, "its call"), autocast:
            if not call.training:
                with torch.no_grad():
                    module(*inputs)
            else:
                _train(torch, module, inputs, call, recorder)
    if not recorder.ops:
        raise ModuleError(f"{name}: its call runs no operator")
    return OpGraph(tuple(recorder.ops), source=name)


def _train(torch: Any, module: Any, inputs: list[Any], call: Call, recorder: _Recorder) -> None:
    optimizer = None
    if call.optimizer is not None:
        if call.optimizer not in OPTIMIZERS:
            raise UsageError(f"optimizer {call.optimizer!r}: one of {', '.join(OPTIMIZERS)}")
        optimizer = getattr(torch.optim, call.optimizer)(module.parameters(), lr=0.01, foreach=True)
    outputs: list[Any] = []
    _mapped(outputs.append, module(*inputs))
    losses = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
    if not losses:
        raise ModuleError("no output depends on a parameter: there is nothing to train")
    loss = sum(each.float().sum() for each in losses)
    recorder.phase = BACKWARD
    loss.backward()
    recorder.phase = OPTIMIZER
    if optimizer is not None:
        optimizer.step()


def _cast(torch: Any, value: Any, dtype: Any) -> Any:
    is_real = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if is_real else value


def _cast_module(torch: Any, module: Any, dtype: Any) -> None:
    """`module.to(dtype)`, which cannot exchange fake tensors; tied weights stay tied."""
    made: dict[int, Any] = {}
    for part in module.modules():
        for held in (part._parameters, part._buffers):
            for key, value in held.items():
                if value is not None:
                    new = made.setdefault(
                        id(value), _like(_cast(torch, value.detach(), dtype), value)
                    )
                    held[key] = new


def _of_batch(torch: Any, value: Any, batch: int | None) -> Any:
    if not isinstance(value, torch.Tensor) or not value.dim():
        return value
    return torch.empty((batch, *value.shape[1:]), dtype=value.dtype)


@contextmanager
def _no_cuda_calls(torch: Any) -> Iterator[None]:
    """Calls that move a tensor or module to a GPU leave it where it is: all of it is taken to be
    on the GPU."""
    stay = {torch.Tensor: torch.Tensor.cuda, torch.nn.Module: torch.nn.Module.cuda}
    for owner in stay:
        owner.cuda = lambda self, *args, **kwargs: self
    try:
        yield
    finally:
        for owner, method in stay.items():
            owner.cuda = method


class _Recorder:
    """The ops of what runs while it records."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.ops: list[Op] = []
        self.phase = FORWARD
        self._caller: list[str] = []
        self._is_silent = False
        self.is_autocast = False
        self._held: list[Any] = []
        """All tensors, so that no identity is given twice; they hold no memory."""
        self._storages: dict[int, int] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        from torch.overrides import TorchFunctionMode
        from torch.utils._python_dispatch import TorchDispatchMode

        def function(_: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return self.function(func, args, kwargs or {})

        def operator(_: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return self.operator(func, args, kwargs or {})

        functions: Any = type("Functions", (TorchFunctionMode,), {"__torch_function__": function})
        operators: Any = type("Operators", (TorchDispatchMode,), {"__torch_dispatch__": operator})
        functional = self._torch.nn.functional
        usual = {name: getattr(functional, name) for name in _AS_ONE}
        for name, func in usual.items():
            setattr(functional, name, self._whole(name, func))
        try:
            with operators(), functions():
                yield
        finally:
            for name, func in usual.items():
                setattr(functional, name, func)

    def _whole(self, name: str, func: Any) -> Any:
        """`func`, recorded as one op also where PyTorch's own Python calls it."""

        def called(*args: Any, **kwargs: Any) -> Any:
            return self.function(func, args, kwargs)

        called.__name__ = name
        return called

    def function(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A call of the program: the ops below it are its own, or it is one op as a whole."""
        name = getattr(func, "__name__", "")
        if name in _AS_ONE and not self._is_silent:
            return self._as_one(_AS_ONE[name], func, args, kwargs)
        if name in _RECURRENT:
            about = _recurrent_facts(name, args) | {CUDA_GRAPH: f"{RECURRENT_OP} {len(self.ops)}"}
            return self._as_one(RECURRENT_OP, func, args, kwargs, about)
        first = len(self.ops)
        if self.is_autocast and name in _IN_FP32:
            args = tuple(_mapped(lambda x: _cast(self._torch, x, self._torch.float32), args))
        answer = func(*args, **kwargs)
        name = f"aten::{_OPERATORS.get(name, name)}"
        children = self.ops[first:]
        if len(children) > 1 and hasattr(self._torch.ops.aten, name[len("aten::") :]):
            inputs = tuple(map(self._argument, args))
            outputs = self._returned(answer)
            self.ops[first:] = [
                Op(name, inputs, outputs, phase=self.phase),
                *(
                    replace(op, parent=first if op.parent == NO_OP else op.parent + 1)
                    for op in children
                ),
            ]
        return answer

    def operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operator below autograd."""
        answer = func(*args, **kwargs)
        schema = func._schema
        if not (self._is_silent or schema.name.startswith("prim::")):
            given = list(args)
            for argument in schema.arguments[len(args) :]:
                given.append(kwargs.get(argument.name, argument.default_value))
            inputs = tuple(map(self._argument, given))
            name, inputs = _on_gpu(schema.name, inputs)
            self.ops.append(Op(name, inputs, self._returned(answer), phase=self.phase))
        return answer

    def _as_one(
        self,
        name: str,
        func: Any,
        args: Any,
        kwargs: Any,
        about: Mapping[str, str] = MappingProxyType({}),
    ) -> Any:
        before, self._is_silent = self._is_silent, True
        try:
            answer = func(*args, **kwargs)
        finally:
            self._is_silent = before
        if before or any(answer is value for value in args):
            return answer
        inputs = tuple(map(self._argument, (*args, *kwargs.values())))
        op = Op(name, inputs, self._returned(answer), phase=self.phase, attributes=about)
        self.ops.append(op)
        return answer

    def _returned(self, answer: Any) -> tuple[Argument, ...]:
        parts = answer if isinstance(answer, (tuple, list)) else (answer,)
        return tuple(map(self._argument, parts))

    def _argument(self, value: Any) -> Argument:
        if isinstance(value, self._torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            return tuple(map(self._argument, value))
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        return str(value)

    def _tensor(self, value: Any) -> Tensor:
        word = str(value.dtype).removeprefix("torch.")
        layout = "" if value.layout == self._torch.strided else "sparse"
        strides: tuple[int, ...] = ()
        storage = -1
        if not layout:
            strides = tuple(map(int, value.stride()))
            held = value.untyped_storage()
            self._held.append(held)
            storage = self._storages.setdefault(held._cdata, len(self._storages))
        self._held.append(value)
        shape = tuple(map(int, value.shape))
        dtype = dtype_of_torch(word) or word
        return Tensor(shape, dtype, id(value), storage, DEVICE, layout, strides)


def _on_gpu(name: str, inputs: tuple[Argument, ...]) -> tuple[str, tuple[Argument, ...]]:
    """The operator that a GPU runs for one that was traced without: cuDNN normalises batches in
    training that have more than their channels."""
    if name in ("aten::native_batch_norm", "aten::_native_batch_norm_legit"):
        values, training = inputs[0], inputs[5]
        has_pixels = isinstance(values, Tensor) and len(values.shape) >= _MIN_CUDNN_NORM_DIMS
        if training is True and has_pixels and values.dtype != "bf16":  # type: ignore[union-attr]
            return "aten::cudnn_batch_norm", inputs
    return name, inputs


def _recurrent_facts(name: str, args: Sequence[Any]) -> dict[str, str]:
    """`torch.lstm(x, states, weights, bias, layers, dropout, train, bidirectional, batch_first)`,
    or of packed sequences."""
    values, states, weights = args[0], args[1], args[2]
    packed = not isinstance(weights, (list, tuple))
    weights = args[3] if packed else weights
    layers, directions = (args[5], args[8]) if packed else (args[4], args[7])
    batch_first = False if packed else args[8]
    first = states[0] if isinstance(states, (list, tuple)) else states
    return {
        "gates": str(_RECURRENT[name]),
        "layers": str(int(layers)),
        "directions": str(1 + bool(directions)),
        "hidden": str(int(first.shape[-1])),
        "steps": str(int(values.shape[1 if batch_first else 0])),
        "batch": str(int(values.shape[0 if batch_first else 1]) if values.dim() > 2 else 1),
        "inputs": str(int(values.shape[-1])),
    }

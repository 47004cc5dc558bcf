"""What PyTorch dispatches while a module runs under fake tensors, as ops of an op graph.

A dispatch mode records every operator below autograd with its arguments, in the order of its
schema; a function mode tells which call of the program each belongs to, hooks which node of the
backward pass. Convolutions, batch normalisations, attention and recurrent layers are recorded as
what a GPU would run for them, since the tracing machine has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any

from perfmodel.ops.dtypes import dtype_of_torch
from perfmodel.ops.graph import (
    AUTOGRAD_NODE,
    BACK_TO_BACK,
    BACKWARD,
    FORWARD,
    NO_OP,
    Argument,
    Op,
    Tensor,
    tensors_in,
)
from perfmodel.trace.window import AUTOGRAD_THREAD, MAIN_THREAD

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
_MIN_CUDNN_NORM_DIMS = 3
"""PyTorch gives batch normalisation of `batch x channels` alone to its own kernel."""
_EVEN, _OFFSETS = "aten::arange", 2
_BAGS = ("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
"""What makes offsets of bags of one length, what reads them, and where among its inputs."""
_ROWS_OF_BAGS, _INDICES = "aten::_embedding_bag_backward", 1
"""Its gradient has a row for each index if it is sparse, which fake tensors do not tell."""
LOOKUPS, LONGEST_BAG = "lookups", "longest_bag"
_OPERATORS = {"__matmul__": "matmul", "__rmatmul__": "matmul", "__pow__": "pow"}
"""Methods that are operators of another name. Not indexing: it is views, or an operator below."""


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """`value` with every item in its lists, tuples and dicts changed; named tuples become plain."""
    if isinstance(value, (list, tuple)):
        items = [mapped(change, item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {key: mapped(change, item) for key, item in value.items()}
    return change(value)


def cast(torch: Any, value: Any, dtype: Any) -> Any:
    """A floating tensor as `dtype`, anything else as it is."""
    is_real = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if is_real else value


class Recorder:
    """The ops of what runs while it records."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.ops: list[Op] = []
        self.phase = FORWARD
        self._is_silent = False
        self.is_autocast = False
        from torch.multiprocessing.reductions import StorageWeakRef
        from torch.utils.weak import WeakTensorKeyDictionary

        self._weak: Any = StorageWeakRef
        self._numbers: Any = WeakTensorKeyDictionary()
        self._next = count()
        """Numbers of tensors. None is held: a gradient that something else holds is copied."""
        self._storages: dict[int, tuple[int, Any]] = {}
        """Numbers of storages by address, which a weak reference keeps from being given again."""
        self._steps: dict[int, int] = {}
        """Tensors of numbers that rise by one step."""
        self._lookups: dict[int, int] = {}
        """Sparse gradients, and what is made of them, to the rows that they hold."""
        self._node = NO_OP
        """The op of the node that the backward pass runs: what follows one, sums of gradients, is
        done with it."""

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
            about = _recurrent_facts(name, args) | {BACK_TO_BACK: "1"}
            return self._as_one(
                RECURRENT_OP, self._differentiable(func, about), args, kwargs, about
            )
        node, first = self._node, len(self.ops)
        if self.is_autocast and name in _IN_FP32:
            args, kwargs = mapped(
                lambda x: cast(self._torch, x, self._torch.float32), (args, kwargs)
            )
        answer = func(*args, **kwargs)
        name = f"aten::{_OPERATORS.get(name, name)}"
        children = self.ops[first:]
        is_operator = hasattr(self._torch.ops.aten, name[len("aten::") :]) and self._node == node
        if len(children) > 1 and is_operator:
            op = self._op(name, tuple(map(self._argument, args)), self._returned(answer))
            below = (
                replace(child, parent=first if child.parent == node else child.parent + 1)
                for child in children
            )
            self.ops[first:] = [op, *below]
        return answer

    def backward(self, loss: Any) -> None:
        """The backward pass from `loss`, each node an op with all that is done before the next."""
        self.phase = BACKWARD
        for node in _nodes(loss.grad_fn):
            node.register_prehook(partial(self._begin, f"{AUTOGRAD_NODE}{node.name()}"))
        loss.backward()
        self._node = NO_OP

    def _begin(self, name: str, gradients: Any) -> None:
        self._node = len(self.ops)
        self.ops.append(Op(name, thread=AUTOGRAD_THREAD, phase=BACKWARD))

    def _op(
        self,
        name: str,
        inputs: tuple[Argument, ...],
        outputs: tuple[Argument, ...],
        about: Mapping[str, str] = MappingProxyType({}),
    ) -> Op:
        """A call, by whatever makes it."""
        thread = MAIN_THREAD if self._node == NO_OP else AUTOGRAD_THREAD
        return Op(name, inputs, outputs, self._node, thread, self.phase, attributes=about)

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
            outputs = self._returned(answer)
            about = self._about_bags(name, inputs, outputs)
            self.ops.append(self._op(name, inputs, outputs, about))
        return answer

    def _about_bags(
        self, name: str, inputs: tuple[Argument, ...], outputs: tuple[Argument, ...]
    ) -> dict[str, str]:
        """What shapes do not tell: that bags are of one length, how many rows a sparse gradient
        holds."""
        read, made = list(tensors_in(inputs)), list(tensors_in(outputs))
        if name == _EVEN and len(inputs) > 2 and isinstance(inputs[2], int):
            self._steps[made[0].tensor_id] = inputs[2]
        if name in _BAGS:
            step = self._steps.get(read[_OFFSETS].tensor_id)
            return {} if step is None else {LONGEST_BAG: str(step)}
        held = [self._lookups[t.tensor_id] for t in read if t.tensor_id in self._lookups]
        if name == _ROWS_OF_BAGS and made[0].layout:
            held = [read[_INDICES].elements]
        if not held:
            return {}
        for each in made:
            if each not in read:
                self._lookups[each.tensor_id] = held[0]
        return {LOOKUPS: str(held[0])}

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
        if before or any(answer is value for value in (*args, *kwargs.values())):
            return answer
        inputs = tuple(map(self._argument, (*args, *kwargs.values())))
        self.ops.append(self._op(name, inputs, self._returned(answer), about))
        return answer

    def _differentiable(self, func: Any, about: Mapping[str, str]) -> Any:
        """`func` of a recurrent layer with a backward pass of one node and one op, as a GPU's."""

        def forward(ctx: Any, call: Callable[[], Any], *given: Any) -> Any:
            ctx.save_for_backward(*given)
            ctx.set_materialize_grads(False)
            return call()

        def backward(ctx: Any, *gradients: Any) -> Any:
            given, like = ctx.saved_tensors, self._torch.empty_like
            needed = [
                like(each) if is_needed else None
                for each, is_needed in zip(given, ctx.needs_input_grad[1:], strict=True)
            ]
            inputs = tuple(map(self._argument, (*given, *gradients)))
            name = f"{RECURRENT_OP}_backward"
            self.ops.append(self._op(name, inputs, self._returned(needed), about))
            return None, *needed

        def called(*args: Any, **kwargs: Any) -> Any:
            given: list[Any] = []
            mapped(given.append, (args, kwargs))
            tensors = [each for each in given if isinstance(each, self._torch.Tensor)]
            return layer.apply(partial(func, *args, **kwargs), *tensors)

        parts = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        layer: Any = type("CudnnRnn", (self._torch.autograd.Function,), parts)
        return called

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
            known = self._storages.get(held._cdata)
            if known is None:
                known = (len(self._storages), self._weak(held))
                self._storages[held._cdata] = known
            storage = known[0]
        if value not in self._numbers:
            self._numbers[value] = next(self._next)
        shape = tuple(map(int, value.shape))
        dtype = dtype_of_torch(word) or word
        return Tensor(shape, dtype, self._numbers[value], storage, DEVICE, layout, strides)


def _nodes(root: Any) -> Iterator[Any]:
    """All nodes of the backward pass that begins with `root`."""
    left, seen = [root], {None}
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            yield node
            left += [each for each, _ in node.next_functions]


def _on_gpu(name: str, inputs: tuple[Argument, ...]) -> tuple[str, tuple[Argument, ...]]:
    """The operator that a GPU runs for one that was traced without: cuDNN normalises batches in
    training that have more than their channels, and a sparse gradient is kept, not copied."""
    is_norm = name in ("aten::native_batch_norm", "aten::_native_batch_norm_legit")
    if is_norm and _by_cudnn(inputs[0], inputs[5]):
        return "aten::cudnn_batch_norm", inputs
    if name == "aten::native_batch_norm_backward" and _by_cudnn(inputs[1], inputs[7]):
        return "aten::cudnn_batch_norm_backward", (inputs[1], inputs[0], *inputs[2:7], inputs[8])
    if name == "aten::clone" and isinstance(inputs[0], Tensor) and inputs[0].layout:
        return "aten::detach", inputs
    return name, inputs


def _by_cudnn(values: Argument, training: Argument) -> bool:
    """Whether batches of such `values` are normalised by the library."""
    has_pixels = isinstance(values, Tensor) and len(values.shape) >= _MIN_CUDNN_NORM_DIMS
    return training is True and has_pixels and values.dtype != "bf16"  # type: ignore[union-attr]


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

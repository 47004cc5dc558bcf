"""What PyTorch dispatches while a module runs under fake tensors, as ops of an op graph.

A dispatch mode records every operator below autograd with its arguments, in the order of its
schema; a function mode tells which call of the program each belongs to, hooks which node of the
backward pass. Convolutions, batch normalisations, attention and recurrent layers are recorded as
what a GPU would run for them, since the tracing machine has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from operator import sub
from types import NoneType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from perfmodel.ops.graph import (
    AUTOGRAD_NODE,
    BACKWARD,
    FORWARD,
    MODULE,
    NO_OP,
    Argument,
    Arguments,
    Op,
    Tensor,
    tensors_in,
)
from perfmodel.ops.lookups import DENSE_BACKWARD, DENSE_LOOKUP
from perfmodel.ops.read import as_on_gpu
from perfmodel.ops.read.collective_calls import of_torch_call
from perfmodel.ops.read.tracing import (
    UnknownValueError,
    arguments_of,
    cast,
    holds_others,
    instead,
    leaves,
    mapped,
)
from perfmodel.ops.spec import dtype_of_torch
from perfmodel.trace.window import AUTOGRAD_THREAD, MAIN_THREAD

RECURRENT_OP = "aten::_cudnn_rnn"
BAGS = ("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
MASKED, INDEX_PUT = "aten::index", ("aten::index_put", "aten::_index_put_impl_", "aten::index_put_")
"""Of what is taken by masks, indices are found first; of what is put, where it accumulates, as the
gradient of the former does."""
_ACCUMULATE = 3
ROWS_OF_BAGS, INDICES = "aten::_embedding_bag_backward", 1
"""Its gradient has a row for each index if it is sparse, which fake tensors do not tell."""
OPERATORS = {"__matmul__": "matmul", "__rmatmul__": "matmul", "__pow__": "pow"}
"""Methods that are operators of another name. Not indexing: it is views, or an operator below."""
DEVICE, HOST = "cuda:0", "cpu"
_CONSTANT = "aten::lift_fresh"
"""What `torch.tensor` makes; of one number it stays on the host, as the steps of optimizers do."""
SELDOM = 32
"""What has been there for more than so many looks is looked at again after that part of its age:
at each look all would cost the square of a long program."""


class Lifetimes:
    """The storages of what runs, as long as Python's references and autograd hold them."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[int, Any]] = {}
        """By address, which a weak reference keeps from being given again."""
        self._looks = 0
        self._alive: list[tuple[int, int, int, Any]] = []
        """A heap: when to look again, number, when it was new, reference."""
        self.held: dict[int, int] = {}
        """Numbers of storages that are no more, to the last op that ran before."""

    def number(self, storage: Any) -> int:
        """From 1: 0 is what execution traces call none."""
        known = self._numbers.get(storage._cdata)
        if known is None:
            known = len(self._numbers) + 1, StorageWeakRef(storage)
            self._numbers[storage._cdata] = known
            heappush(self._alive, (self._looks, known[0], self._looks, known[1]))
        return known[0]

    def look(self, ops: int) -> None:
        """So many `ops` ran: what is no more has ended with the last of them."""
        self._looks += 1
        while self._alive and self._alive[0][0] < self._looks:
            _, number, begun, storage = heappop(self._alive)
            if storage.expired():
                self.held[number] = ops - 1
            else:
                again = self._looks + (self._looks - begun) // SELDOM
                heappush(self._alive, (again, number, begun, storage))

    def insert(self, first: int) -> None:
        """An op stands before what was op `first`."""
        for number, at in reversed(self.held.items()):
            if at < first:
                break
            self.held[number] = at + 1


class Recorder:
    """The ops of what runs while it records."""

    def __init__(self, node_ranks: int | None = None) -> None:
        """So many ranks of a process group share a node; None: the machine says."""
        self.ops: list[Op] = []
        self.phase = FORWARD
        self._is_silent = False
        self.node_ranks = node_ranks
        self._modules = [""]
        """Paths of those whose calls are under way."""
        self.lifetimes = Lifetimes()
        self._numbers: Any = WeakTensorKeyDictionary()
        self._next = count()
        """Numbers of tensors. None is held: a gradient that something else holds is copied."""
        self.known: Callable[[Any], list[Any]] = lambda tensor: []
        """The values of a tensor; of none that is not known."""
        self._host: set[int] = set()
        """Storages in host memory."""
        self._has_gpu = False
        """Whether the program has named one: one that finds none has everything on the CPU."""
        self._lookups: dict[int, int] = {}
        """Sparse tensors, and what is made of them, to the rows that they hold."""
        self._node = NO_OP
        """The op of the node that the backward pass runs: what follows one, sums of gradients, is
        done with it."""

    def restart(self) -> None:
        """Forgets what ran: it made what the step finds."""
        self.ops.clear()
        self.lifetimes.held.clear()
        self.phase = FORWARD

    @contextmanager
    def recording(self) -> Iterator[None]:
        def function(_: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return self.function(func, args, kwargs or {})

        def operator(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if any(hasattr(kind, "__tensor_flatten__") for kind in types):
                return NotImplemented  # what it does to the tensors in one comes next
            if isinstance(func, torch._ops.HigherOrderOperator):
                raise UnknownValueError(f"{func} is not covered: call what it stands for")
            is_inferring = torch.is_inference_mode_enabled() and func.namespace == "aten"
            if is_inferring and is_known(func.name(), composed):  # it comes whole only there
                with mode:
                    return func._op_dk(composed, *args, **(kwargs or {}))
            return self.operator(func, args, kwargs or {})

        functions: Any = type("Functions", (TorchFunctionMode,), {"__torch_function__": function})
        parts = {"__torch_dispatch__": operator, "supports_higher_order_operators": True}
        operators: Any = type("Operators", (TorchDispatchMode,), parts)

        def called(func: Any, /, *args: Any, **kwargs: Any) -> Any:
            return self.function(func, args, kwargs)

        is_known = torch._C._dispatch_has_kernel_for_dispatch_key
        composed = torch._C.DispatchKey.CompositeImplicitAutograd
        # One op also where PyTorch's own Python calls it.
        whole = {f"torch.nn.functional:{name}": called for name in as_on_gpu.AS_ONE}
        passes = {f"torch.autograd:{name}": self._watched for name in ("backward", "grad")}
        with instead({**whole, **passes}), operators(), functions():
            yield

    def function(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A call of the program: the ops below it are its own, or it is one op as a whole."""
        name, autocast = getattr(func, "__name__", ""), torch.is_autocast_enabled("cpu")
        is_pass = func is torch.Tensor.backward  # no operator: its nodes are
        if is_pass or any(map(holds_others, leaves((args, kwargs)))):
            return func(*args, **kwargs)
        if not self._is_silent and (whole := as_on_gpu.as_one(name, args, kwargs)):
            return self._as_one(whole, func, args, kwargs, {})
        if name in as_on_gpu.RECURRENT:
            if autocast:  # on a GPU, and not on a CPU
                dtype = torch.get_autocast_dtype("cpu")
                args = mapped(lambda x: cast(torch, x, dtype), args)
            about = as_on_gpu.recurrent_facts(name, args)
            return self._as_one(RECURRENT_OP, func, args, kwargs, about)
        if autocast and name in as_on_gpu.IN_FP32:
            dtype = torch.float32
            args, kwargs = mapped(lambda x: cast(torch, x, dtype), (args, kwargs))
        node, first = self._node, len(self.ops)
        answer = func(*args, **kwargs)
        place = kwargs.get("device")
        named = (each for each in (*args[:2], place) if isinstance(each, str))
        self._has_gpu = self._has_gpu or any(each.startswith("cuda") for each in named)
        if place == HOST and self._has_gpu and answer.numel() == 1:  # a counter
            self._host.add(self.lifetimes.number(answer.untyped_storage()))
        name = f"aten::{OPERATORS.get(name, name)}"
        children = self.ops[first:]
        is_operator = hasattr(torch.ops.aten, name[len("aten::") :]) and self._node == node
        if len(children) > 1 and is_operator:
            op = self._op(name, tuple(map(self._argument, args)), self.returned(answer), {})
            below = (
                replace(child, parent=first if child.parent == node else child.parent + 1)
                for child in children
            )
            self.ops[first:] = [op, *below]
            self.lifetimes.insert(first)
        return answer

    def _watched(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A backward pass each of whose nodes is an op, with all that is done before the next, of
        the module of its forward pass."""

        def begin(name: str, module: str, *gradients: Any) -> None:
            self._node = len(self.ops)
            about = {MODULE: module} if module else {}
            self.ops.append(Op(name, thread=AUTOGRAD_THREAD, phase=BACKWARD, attributes=about))

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

    def _op(self, name: str, inputs: Arguments, outputs: Arguments, about: Mapping[str, str]) -> Op:
        """A call, by whatever makes it."""
        thread, module = MAIN_THREAD, self._modules[-1]
        if self._node != NO_OP:
            thread, module = AUTOGRAD_THREAD, self.ops[self._node].attributes.get(MODULE, "")
        about = {**about, MODULE: module} if module else about
        return Op(name, inputs, outputs, self._node, thread, self.phase, attributes=about)

    def operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operator below autograd."""
        self.lifetimes.look(len(self.ops))
        if not self._is_silent:
            args = self._unmasked(func._schema.name, args)
        answer, schema = func(*args, **kwargs), func._schema
        could_name = "device" not in kwargs and any(x.name == "device" for x in schema.arguments)
        if could_name and not any(isinstance(x, torch.Tensor) for x in args):
            self._host.add(self.lifetimes.number(answer.untyped_storage()))  # made so by C++
        if not (self._is_silent or schema.name.startswith("prim::")):
            given = arguments_of(schema, args, kwargs)
            inputs = tuple(map(self._argument, given.values()))
            outputs = self.returned(answer)
            name, inputs = as_on_gpu.on_gpu(schema.name, inputs, outputs)
            read_of = {each.device for each in tensors_in(inputs)}
            if (schema.name == _CONSTANT and not answer.dim()) or read_of == {HOST}:
                self._host |= {each.storage_id for each in tensors_in(outputs)}
                outputs = self.returned(answer)
            about = of_torch_call(schema.name, given, inputs, outputs, self.node_ranks)
            if as_on_gpu.copied_first(name, inputs, outputs):
                dtype = (answer if name == as_on_gpu.SUM else args[0]).dtype
                copied = self._tensor(torch.empty(args[0].shape, dtype=dtype))
                self.ops.append(self._op("aten::_to_copy", inputs[:1], (copied,), {}))
                inputs = (copied, *inputs[1:])
            if summed := as_on_gpu.rows_summed(name, inputs, self._lookups):
                name, inputs = BAGS[0], summed
            else:
                about |= self._about_bags(name, given, inputs, outputs)
            self.ops.append(self._op(name, inputs, outputs, about))
        return answer

    def _unmasked(self, name: str, args: Any) -> Any:
        """The arguments of an operator with masks as indices of what is true."""
        is_gradient = name in INDEX_PUT and len(args) > _ACCUMULATE and args[_ACCUMULATE]
        if not (name == MASKED or is_gradient):
            return args
        indices: list[Any] = []
        for each in args[1]:
            if each is not None and each.dtype in (torch.bool, torch.uint8):
                found = self.operator(torch.ops.aten.nonzero.default, (each,), {})
                indices += found.unbind(1)
            else:
                indices.append(each)
        return (args[0], indices, *args[2:])

    def _about_bags(
        self, name: str, given: Mapping[str, Any], inputs: Any, outputs: Any
    ) -> dict[str, str]:
        """What shapes do not tell: how many rows a sparse gradient holds, and how long the longest
        bag is."""
        read, made = list(tensors_in(inputs)), list(tensors_in(outputs))
        if name in BAGS and (offsets := self.known(given["offsets"])):
            lengths = map(sub, (*offsets[1:], read[INDICES].elements), offsets)
            return {"longest_bag": str(max(lengths))}
        if given.keys() >= {*as_on_gpu.TABLES}:
            return as_on_gpu.lookups_of(*(self.known(given[each]) for each in as_on_gpu.TABLES))
        held = [self._lookups[t.tensor_id] for t in read if t.tensor_id in self._lookups]
        if name == ROWS_OF_BAGS and made[0].layout:
            held = [read[INDICES].elements]
        if not held:
            return {}
        self._lookups |= {each.tensor_id: held[0] for each in made if each not in read}
        return {"lookups": str(held[0])}

    def _as_one(
        self, name: str, func: Any, args: Any, kwargs: Any, about: Mapping[str, str]
    ) -> Any:
        has_backward = func.__name__ in (*as_on_gpu.WITH_BACKWARD, *as_on_gpu.RECURRENT)
        packet = getattr(torch.ops.aten, func.__name__, func)
        schema = getattr(packet, packet.overloads()[0])._schema
        named = arguments_of(schema, args, kwargs)
        inputs = tuple(map(self._argument, named.values()))
        if has_backward:
            func = self._differentiable(name, func, inputs, about)
        answer = self._silently(func, *args, **kwargs)
        if self._is_silent or any(answer is value for value in (*args, *kwargs.values())):
            return answer
        self.ops.append(self._op(name, inputs, self.returned(answer), about))
        return answer

    def _silently(self, run: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """What only asks for shapes, or is one op as a whole."""
        before, self._is_silent = self._is_silent, True
        try:
            return run(*args, **kwargs)
        finally:
            self._is_silent = before

    def _differentiable(
        self, name: str, func: Any, inputs: Arguments, about: Mapping[str, str]
    ) -> Any:
        """`func` with a backward pass of one node and one op, as a GPU's: of the gradients, and of
        what `func` was called with."""

        def forward(ctx: Any, call: Callable[[], Any], *given: Any) -> Any:
            ctx.save_for_backward(*given)
            ctx.set_materialize_grads(False)
            return call()

        def backward(ctx: Any, *gradients: Any) -> Any:
            given, like = ctx.saved_tensors, torch.empty_like
            needed = [
                like(each) if is_needed else None
                for each, is_needed in zip(given, ctx.needs_input_grad[1:], strict=True)
            ]
            read = (*map(self._argument, gradients), *inputs)
            back = DENSE_BACKWARD if name == DENSE_LOOKUP else f"{name}_backward"
            self.ops.append(self._op(back, read, self.returned(needed), about))
            return None, *needed

        def called(*args: Any, **kwargs: Any) -> Any:
            tensors = [x for x in leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            return layer.apply(partial(func, *args, **kwargs), *tensors)

        parts = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        node = name.rpartition("::")[2].title().replace("_", "")
        layer: Any = type(node, (torch.autograd.Function,), parts)
        return called

    def returned(self, answer: Any) -> Arguments:
        """Tensors and numbers of the program, as arguments of ops."""
        parts = answer if isinstance(answer, (tuple, list)) else (answer,)
        return tuple(map(self._argument, parts))

    def _argument(self, value: Any) -> Argument:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            return tuple(map(self._argument, value))
        return value if isinstance(value, (int, float, str, NoneType)) else str(value)

    def _tensor(self, value: Any) -> Tensor:
        layout = "" if value.layout == torch.strided else "sparse"
        word, strides, storage = str(value.dtype).removeprefix("torch."), tuple[int, ...](), -1
        if not layout:
            strides = tuple(map(int, value.stride()))
            storage = self.lifetimes.number(value.untyped_storage())
        if value not in self._numbers:
            self._numbers[value] = number = next(self._next)
            # Transposed, and as gradients, fake ones hold none.
            if value.layout == torch.sparse_coo and (rows := self._silently(value._nnz)):
                self._lookups[number] = rows
        shape, dtype = tuple(map(int, value.shape)), dtype_of_torch(word) or word
        device = HOST if storage in self._host else DEVICE
        return Tensor(shape, dtype, self._numbers[value], storage, device, layout, strides)


def _nodes(roots: Any) -> Iterator[tuple[Any, str]]:
    """All nodes behind tensors, or edges of the graph, with their modules; one that is not known
    has that of the node which runs before it."""
    left = [(getattr(each, "grad_fn", each), "") for each in leaves(roots)]
    seen = set()
    while left:
        node, module = left.pop()
        if node not in seen and hasattr(node, "next_functions"):
            seen.add(node)
            module = node.metadata.get(MODULE, module)
            yield node, module
            left += [(each, module) for each, _ in node.next_functions]

"""Values of what a program computes from integers alone, while it runs under fake tensors.

Integers and booleans are what sizes depend on: lengths, masks, indices. An operator that is given
known values is queued, and the queue is computed in its order once the program asks for a value, so
that a program which never asks computes nothing. Weights and other floats have no values; where
they become integers, values are assumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, UnsupportedOperatorException
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from perfmodel.ops.read.as_on_gpu import of_table_batched
from perfmodel.ops.read.assumed import ALIKE, NUMBERS, STAND_INS, Assumption, Assumptions, hint
from perfmodel.ops.read.collective_calls import NAMESPACES, given_and_got, received
from perfmodel.ops.read.tracing import (
    UnknownValueError,
    arguments_of,
    instead,
    leaves,
    mapped,
    place,
)

MAX_GUESSES = 20_000
"""Values that rest on what is assumed, asked for at a line: a loop until one changes has no end."""
MAX_ELEMENTS = 1 << 24
"""Of the largest tensor whose values are computed."""
SHORT: dict[str, str] = dict.fromkeys(("_unique2", "unique_dim", "unique_consecutive"), "unique")
SHORT |= {"_local_scalar_dense": "item"}
"""Operators that people call otherwise."""
ON_HOST = frozenset(("_pack_padded_sequence",))
"""What reads its integers in the memory of the host, and makes such of it."""
FORMAT = "__format__"
_UNKNOWABLE = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    UnsupportedOperatorException,
)
READS = ("tolist", "numpy", FORMAT)
"""Methods that give the values of a whole tensor to Python."""


@dataclass(eq=False, slots=True)
class _Memory:
    """What tensors share that are views of one another."""

    why: str | None = None
    """Why values are not known: "" of floats, else what they depend on; None where they are."""
    assumed: frozenset[Assumption] = frozenset()


@dataclass(eq=False, slots=True)
class _Value:
    memory: _Memory
    real: Any = None
    """A tensor with its values, once they are computed."""

    @property
    def is_known(self) -> bool:
        return self.memory.why is None


class Values:
    """Values of what runs while it is `following`."""

    def __init__(self, assumptions: Assumptions) -> None:
        self._assumptions = assumptions
        self._of: Any = WeakTensorKeyDictionary()
        self._queue: list[Callable[[], None]] = []
        """Holds no fake tensor: memory counts how long a program does."""
        self._seeds = count()
        self._are_inputs, self._guesses, self._is_sum = False, Counter[str](), True

    @contextmanager
    def following(self) -> Iterator[None]:
        def operator(_: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return self._operator(func, args, kwargs or {})

        mode: Any = type("Values", (TorchDispatchMode,), {"__torch_dispatch__": operator})
        kind = "torch._subclasses.fake_tensor:FakeTensor"
        changes: dict[str, Callable[..., Any]] = {
            f"{kind}.{name}": partial(self._reading, name) for name in READS
        }
        changes["torch.distributed:ProcessGroup.allreduce"] = self._reducing
        with instead(changes), mode():
            yield

    def inputs(self, make: Callable[[], list[Any]]) -> list[Any]:
        """What is made as inputs: masks of random floats are given as integers are, and floats have
        no values."""
        self._are_inputs = True
        given = make()
        self._are_inputs = False
        for each in tree_leaves(given):
            if isinstance(each, FakeTensor) and _is_real(each):
                self._value(each).memory.why = ""
        return given

    def known(self, tensor: Any) -> list[Any]:
        """The values of a tensor, computed now; of none that is not known."""
        self._compute([value := self._value(tensor)])
        with self._for_real():
            return value.real.tolist() if value.is_known else []

    def _reading(self, name: str, usual: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        value = self._value(tensor)
        if name == FORMAT:
            is_number = not tensor.dim() and (value.is_known or any(args))
            return format(tensor.item(), *args) if is_number else usual(tensor, *args)
        # It waits, or says what is not known.
        item = tensor.flatten()[0].item() if tensor.numel() else 0
        self._compute([value])
        with self._for_real():  # `numpy` detaches, and of a fake tensor it would be zeros
            real = value.real
            if not value.is_known:
                real = torch.full(tensor.shape, item, dtype=tensor.dtype)
            return getattr(real, name)(*args, **kwargs)

    def _reducing(self, run: Any, group: Any, given: Any, options: Any = None) -> Any:
        """Its operator does not tell Python whether it adds up, or takes the largest."""
        sums = torch.distributed.ReduceOp.SUM
        self._is_sum = options is None or getattr(options, "reduceOp", options) == sums
        try:
            return run(group, given, *[options] * (options is not None))
        finally:
            self._is_sum = True  # what else adds up is not asked

    def _operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operator, whose sizes are those of its values where it depends on them."""
        try:
            if short(func) in ON_HOST:
                raise _UNKNOWABLE[0](func)
            answer = self._on_fakes(func, args, kwargs)
        except _UNKNOWABLE as error:
            return self._asked(func, args, kwargs, error)
        self._follow(func, args, kwargs, answer)
        return answer

    def _on_fakes(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Real tensors are not written to: what has none but them would run as it is."""
        mode = torch._guards.detect_fake_mode()
        real = [t for t in self._tensors((args, kwargs)) if not isinstance(t, FakeTensor)]
        if not (func._schema.is_mutable and real and mode):
            return func(*args, **kwargs)
        fakes = {id(t): mode.from_tensor(t) for t in real}
        own = {id(fakes[id(t)]): t for t in real}
        args, kwargs = mapped(lambda x: fakes.get(id(x), x), (args, kwargs))
        return mapped(lambda x: own.get(id(x), x), func(*args, **kwargs))

    def _tensors(self, value: Any) -> list[Any]:
        return [each for each in leaves(value) if isinstance(each, torch.Tensor)]

    def _value(self, tensor: Any) -> _Value:
        known = self._of.get(tensor)
        if known is not None:
            return known  # type: ignore[no-any-return]
        if isinstance(tensor, (FakeTensor, torch.nn.Parameter)):
            return _Value(_Memory(""))
        is_small = tensor.numel() <= MAX_ELEMENTS and not tensor.is_meta
        why = None if is_small else f"a tensor of more than {MAX_ELEMENTS} elements"
        own = self._of[tensor] = _Value(_Memory(why))

        def copied() -> None:  # what the program holds is not written to
            own.real = tensor.detach().clone() if own.is_known else None

        self._queue.append(copied)
        return own

    def _follow(self, func: Any, args: Any, kwargs: Any, answer: Any) -> None:
        """Queue what is computed of known values; of anything else, note why it is not known."""
        given, made = self._tensors((args, kwargs)), self._tensors(answer)
        values = [self._value(each) for each in given]
        integers = [each for each in made if not _is_real(each)]
        is_mutable, is_sent = func._schema.is_mutable, func.namespace in NAMESPACES
        if is_sent and self._receive(func, arguments_of(func._schema, args, kwargs), answer):
            return
        are_known = not is_sent and all(each.is_known for each in values)
        if not (are_known or integers or is_mutable or is_sent):
            return
        is_seeded = torch.Tag.nondeterministic_seeded in func.tags
        is_empty = "empty" in short(func)
        are_data = (is_seeded and not self._are_inputs) or is_empty
        largest = max((each.numel() for each in made), default=0)
        are_odd = any(t.is_meta or t.layout != torch.strided for t in made)
        is_large = largest > MAX_ELEMENTS or are_odd
        if are_known and not (is_large or (are_data and any(map(_is_real, (*made, *given))))):
            results = self._results(given, values, made)
            of = dict(zip(map(id, given), values, strict=True))
            call = mapped(lambda x: of.get(id(x), x), (args, kwargs))
            seed = next(self._seeds) if is_seeded else None
            self._queue.append(partial(self._run, func, call, results, seed, is_empty))
            return
        why = next((each.memory.why for each in values if each.memory.why), "")
        if is_sent:
            why = f"what other ranks send by {func}, {place()}"
        elif is_large and not why:
            why = f"{largest} elements of {func} ({place()}), and {MAX_ELEMENTS} are computed"
        named = arguments_of(func._schema, args, kwargs)
        if is_mutable or is_sent:
            infos = (each.alias_info for each in func._schema.arguments)
            pairs = zip(infos, named.values(), strict=True)
            written = [arg for info, arg in pairs if is_sent or (info and info.is_write)]
            for each in self._tensors(written):
                own = "" if _is_real(each) else why or f"{func} ({place()})"
                self._value(each).memory.why = own
        for out in integers:
            if out not in self._of:
                self._of[out] = self._of_floats(func, named, out, why)

    def _receive(self, func: Any, named: Mapping[str, Any], answer: Any) -> bool:
        """Queue the integers that a collective gives, if other ranks give what this one gives;
        whether these are known."""
        given, got = map(self._tensors, given_and_got(func._schema.name, named, answer) or ((), ()))
        if not given or any(_is_real(t) or t.numel() > MAX_ELEMENTS for t in (*given, *got)):
            return False
        values = [self._value(t) for t in given]
        for each in got:
            if each not in self._of and isinstance(each, FakeTensor):
                self._of[each] = own = _Value(_Memory())
                empty = partial(torch.empty, tuple(each.shape), dtype=each.dtype)
                self._queue.append(partial(self._run, empty, ((), {}), [own], None, False))
        results = [self._value(t) for t in got]
        if not all(each.is_known for each in (*values, *results)):
            return False
        assumed = frozenset((ALIKE,)).union(*(each.memory.assumed for each in values))
        for each in results:
            each.memory.assumed |= assumed
        word = named.get("reduce_op")
        is_sum = word == "sum" if isinstance(word, str) else self._is_sum
        make = received(func._schema.name, named, is_sum=is_sum)
        self._queue.append(partial(self._run, make, ((values, results), {}), results, None, False))
        return True

    def _results(self, given: Sequence[Any], values: Sequence[_Value], made: Any) -> list[_Value]:
        """Where values of `made` will stand; views of what is given share what is known of it."""
        assumed = frozenset[Assumption]().union(*(each.memory.assumed for each in values))
        shared = {_address(t): v.memory for t, v in zip(given, values, strict=True)}
        results = []
        for each in made:
            memory = shared.setdefault(_address(each), _Memory())
            memory.assumed |= assumed
            if each not in self._of:
                self._of[each] = _Value(memory)
            results.append(self._of[each])
        return results

    def _of_floats(self, func: Any, named: Mapping[str, Any], out: Any, why: str) -> _Value:
        """Integers of an operator that is given what is not known: of floats, they are assumed."""
        name = short(func)
        is_open = not why or name in self._assumptions.shares
        found = self._assumptions.of_result(name, named, out) if is_open else None
        if found is None:
            how = hint(name) if out.dtype == torch.bool else ""
            return _Value(_Memory(why or f"what {func} makes of floats, {place()}{how}"))
        assumption, make = found
        value = _Value(_Memory(assumed=frozenset((assumption,))))
        self._queue.append(lambda: setattr(value, "real", make()))
        return value

    def _run(
        self, func: Any, call: Any, results: Sequence[_Value], seed: int | None, is_empty: bool
    ) -> None:
        """Compute an operator of the queue."""
        try:
            if seed is not None:
                torch.manual_seed(seed)
            args, kwargs = mapped(_with_values, call)
            made = self._tensors(func(*args, **kwargs))
        except Exception as error:
            why = " ".join(str(error).split())[:80]
            why = why if isinstance(error, UnknownValueError) else f"{func}, which fails: {why}"
            for each in results:
                each.memory.why = why
            return
        for value, real in zip(results, made, strict=True):
            value.real = real.zero_() if is_empty else real

    @contextmanager
    def _for_real(self) -> Iterator[None]:
        with _disable_current_modes(), torch.no_grad():
            yield

    def _compute(self, values: Sequence[_Value]) -> None:
        """Compute what is queued, so that these have values; what they assume is used."""
        with self._for_real(), torch.random.fork_rng(devices=[]):
            for run in self._queue:
                run()
        self._queue.clear()
        self._assumptions.used.update(*(each.memory.assumed for each in values))

    def _asked(self, func: Any, args: Any, kwargs: Any, error: Exception) -> Any:
        """What an operator returns that depends on values, or that knows no fake tensors.

        Floats stand for nothing where integers are given too: those decide sizes.
        """
        named = arguments_of(func._schema, args, kwargs)
        looked_up = of_table_batched(torch, func._schema.name, named)
        if looked_up is not None:
            shape, dtype = looked_up
            return torch.empty(shape, dtype=dtype) if dtype else None
        given, name = self._tensors((args, kwargs)), short(func)
        values = [self._value(each) for each in given]
        self._compute(values)
        if any(value.memory.assumed for value in values):
            self._guesses[here := place()] += 1
            if self._guesses[here] > MAX_GUESSES:
                text = f"{MAX_GUESSES:,} values are asked for that rest on what is assumed"
                raise UnknownValueError(f"{text}: does a loop wait for one to change?") from error
        pairs = list(zip(given, values, strict=True))
        unknown = [each for each, value in pairs if not value.is_known]
        decide = any(value.is_known and not _is_real(each) for each, value in pairs)
        why = next((value.memory.why for value in values if value.memory.why), "")
        if name in NUMBERS & {*self._assumptions.shares} and given[0].dtype != torch.bool:
            why = ""  # as of floats, also where it counts what is true of them
        standing: Callable[[Sequence[int]], Any] | None = None
        if unknown and not (decide or why):
            if isinstance(error, UnsupportedOperatorException):
                raise error
            standing = self._assumptions.stand_in(name)
            how = hint(name) if name in STAND_INS else ": what asks for them can run before"
            why = "" if standing else f"floats{how}"
        if why:
            text = f"{func} depends on values, and nothing is computed here; they are {why}"
            raise UnknownValueError(text) from error
        with self._for_real():
            real = {id(each): value.real for each, value in pairs}
            make = standing or torch.zeros(()).expand  # which takes no memory
            real |= {id(each): make(each.shape).to(each.dtype) for each in unknown}
            real_args, real_kwargs = mapped(lambda x: real.get(id(x), x), (args, kwargs))
            answer = func(*real_args, **real_kwargs)
        assumed = frozenset[Assumption]().union(*(each.memory.assumed for each in values))

        def faked(made: Any) -> Any:
            is_real = isinstance(made, torch.Tensor) and _is_real(made)
            if not isinstance(made, torch.Tensor) or (name in ON_HOST and not is_real):
                return made
            fake = torch.empty_strided(made.shape, made.stride(), dtype=made.dtype)
            if not (unknown and is_real):
                self._of[fake] = _Value(_Memory(assumed=assumed), made)
            return fake

        return mapped(faked, answer)


def short(func: Any) -> str:
    """What people call an operator: `gt` of `aten::gt.Scalar`, `item`."""
    name: str = func._schema.name.rpartition("::")[2].rstrip("_")
    return SHORT.get(name, name)


def _is_real(tensor: Any) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex())


def _with_values(argument: Any) -> Any:
    """An argument of a queued operator as it is computed."""
    if not isinstance(argument, _Value):
        return argument
    if argument.real is None:
        raise UnknownValueError(argument.memory.why)
    return argument.real


def _address(tensor: Any) -> int:
    """Of the memory that views share."""
    is_plain = str(tensor.layout) == "torch.strided"
    return int(tensor.untyped_storage()._cdata) if is_plain else id(tensor)

"""Values of what a program computes from integers alone, while it runs under fake tensors.

Integers and booleans are what sizes depend on: lengths, masks, indices. An operator that is given
known values is queued, and the queue is computed in its order once the program asks for a value, so
that a program which never asks computes nothing. Weights and other floats have no values. Where
floats become integers (a router chooses experts, a comparison makes a mask) values are assumed, by
the operator's name. It is longer than 400 lines, since what is computed and what is assumed go
through one queue.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import prod
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

from perfmodel.ops.read.recorder import mapped

MAX_ELEMENTS = 1 << 24
"""Of the largest tensor whose values are computed."""
CHOICES = frozenset(("topk", "sort", "argmax", "argmin", "max", "min", "multinomial"))
"""What chooses indices along a dimension: each alike, unless assumed otherwise."""
SHARES: Mapping[str, float] = MappingProxyType({"isnan": 0.0, "isinf": 0.0, "isfinite": 1.0})
"""Booleans of floats: what share of them is true unless assumed otherwise."""
SHORT: Mapping[str, str] = MappingProxyType(
    {"_local_scalar_dense": "item", "_unique2": "unique"}
    | dict.fromkeys(("unique_dim", "unique_consecutive"), "unique")
)
"""Operators that people call otherwise."""
ON_HOST = frozenset(("_pack_padded_sequence",))
"""What reads its integers in the memory of the host, and makes such of it."""
COLLECTIVES = ("c10d", "_c10d_functional")
"""Whose operators write what other ranks send, where their schemas do not tell as well."""
FORMAT = "__format__"
READS = ("tolist", "numpy", FORMAT)
"""Methods that give the values of a whole tensor to Python."""


class UnknownValueError(Exception):
    """An operator asks for a value that nothing computes, and that is not assumed."""


@dataclass(frozen=True)
class Assumption:
    """A `share` that sizes depend on: of booleans that are true, of rows that choose the first."""

    name: str
    share: float
    what: str
    is_number: bool = False
    """Whether it is the value itself, no share."""

    def __str__(self) -> str:
        return f"assumed: {self.what} (--assume {self.name}={self.share:.4g})"


@dataclass(eq=False, slots=True)
class _Memory:
    """What tensors share that are views of one another."""

    is_known: bool = True
    why: str = ""
    """Integers alone: what they depend on, where they are not known."""
    assumed: frozenset[Assumption] = frozenset()


@dataclass(eq=False, slots=True)
class _Value:
    memory: _Memory
    real: Any = None
    """A tensor with its values, once they are computed."""


class Values:
    """Values of what runs while it is `following`; `assume` are shares by operator, whose odds are
    `odds` times those."""

    def __init__(self, torch: Any, assume: Mapping[str, float], odds: float = 1.0) -> None:
        from torch._subclasses import fake_tensor
        from torch.utils.weak import WeakTensorKeyDictionary

        self.torch, self._assume, self._odds = torch, assume, odds
        self._fake: Any = fake_tensor.FakeTensor
        self._unsupported: Any = fake_tensor.UnsupportedOperatorException
        self._unknowable: Any = (
            fake_tensor.DataDependentOutputException,
            fake_tensor.DynamicOutputShapeException,
            self._unsupported,
        )
        self._of: Any = WeakTensorKeyDictionary()
        self._queue: list[Callable[[], None]] = []
        """Holds no fake tensor: memory counts how long a program does."""
        self._seeds = count()
        self._are_inputs = False
        self.used: set[Assumption] = set()

    @contextmanager
    def following(self) -> Iterator[None]:
        from torch.utils._python_dispatch import TorchDispatchMode

        def operator(_: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return self.operator(func, args, kwargs or {})

        def read(name: str, tensor: Any, *args: Any, **kwargs: Any) -> Any:
            is_known = self._value(tensor).memory.is_known
            if name == FORMAT and (tensor.dim() or _is_real(tensor) or not is_known):
                return usual[name](tensor, *args)
            if tensor.numel():
                tensor.flatten()[0].item()  # waits, or says what is not known
            real = self._read(tensor)
            with self._for_real():  # `numpy` detaches, and of a fake tensor it would be zeros
                return getattr(real, name)(*args, **kwargs)

        mode: Any = type("Values", (TorchDispatchMode,), {"__torch_dispatch__": operator})
        usual = {name: getattr(self._fake, name) for name in READS}
        own = [name for name in READS if name in vars(self._fake)]
        for name in READS:
            method = partial(read, name)
            setattr(self._fake, name, lambda *args, _of=method, **kwargs: _of(*args, **kwargs))
        try:
            with mode():
                yield
        finally:
            for name in READS:
                delattr(self._fake, name)
            for name in own:
                setattr(self._fake, name, usual[name])

    @contextmanager
    def of_inputs(self) -> Iterator[None]:
        """While inputs are made, masks of random floats are given as integers are."""
        self._are_inputs = True
        yield
        self._are_inputs = False

    def forget_floats(self, tensors: Iterable[Any]) -> None:
        """Inputs that are no integers have no values."""
        for each in tensors:
            if isinstance(each, self._fake) and _is_real(each):
                self._value(each).memory.is_known = False

    def operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operator, whose sizes are those of its values where it depends on them."""
        try:
            if short(func) in ON_HOST:
                raise self._unknowable[0](func)
            answer = func(*args, **kwargs)
        except self._unknowable as error:
            return self._asked(func, args, kwargs, error)
        self._follow(func, args, kwargs, answer)
        return answer

    def _tensors(self, value: Any) -> list[Any]:
        if isinstance(value, self.torch.Tensor):
            return [value]
        if isinstance(value, dict):
            value = value.values()
        elif not isinstance(value, (list, tuple)):
            return []
        return [each for item in value for each in self._tensors(item)]

    def _value(self, tensor: Any) -> _Value:
        if not isinstance(tensor, self._fake):  # of the file itself
            is_small = tensor.numel() <= MAX_ELEMENTS and not tensor.is_meta
            why = "" if is_small else f"a tensor of more than {MAX_ELEMENTS} elements"
            return _Value(_Memory(is_small, why), tensor)
        return self._of.get(tensor) or _Value(_Memory(is_known=False))

    def _follow(self, func: Any, args: Any, kwargs: Any, answer: Any) -> None:
        given, made = self._tensors((args, kwargs)), self._tensors(answer)
        values, name = [self._value(each) for each in given], short(func)
        are_known = all(each.memory.is_known for each in values)
        is_mutable, integers = func._schema.is_mutable, [t for t in made if not _is_real(t)]
        is_sent = func.namespace in COLLECTIVES
        are_known &= not is_sent
        if not (are_known or integers or is_mutable or is_sent):
            return
        is_seeded = self.torch.Tag.nondeterministic_seeded in func.tags
        is_empty = "empty" in name
        are_data = (is_seeded and not self._are_inputs) or is_empty
        largest = max((each.numel() for each in made), default=0)
        is_large = largest > MAX_ELEMENTS or any(
            t.is_meta or t.layout != self.torch.strided for t in made
        )
        are_known &= not (is_large or (are_data and any(map(_is_real, (*made, *given)))))
        if are_known:
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
        if is_mutable or is_sent:
            for each in given if is_sent else self._tensors(_written(func, args, kwargs)):
                value = self._value(each)
                value.memory.is_known = False
                value.memory.why = why or ("" if _is_real(each) else f"{func} ({place()})")
        for out in integers:
            if out not in self._of:
                self._of[out] = self._of_floats(func, name, args, kwargs, out, why)

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

    def _of_floats(
        self, func: Any, name: str, args: Any, kwargs: Any, out: Any, why: str
    ) -> _Value:
        """Integers of an operator that is given what is not known: of floats, they are assumed."""
        share, shape = self._assume.get(name, SHARES.get(name)), tuple(out.shape)
        is_mask = out.dtype == self.torch.bool
        if why or not (name in CHOICES or (share is not None and is_mask)):
            hint = f": --assume {name}=FRACTION" if is_mask else ""
            return _Value(_Memory(False, why or f"what {func} makes of floats, {place()}{hint}"))
        if name in CHOICES:
            of, dim = args[0].shape, _dim(func, args, kwargs)
            options = prod(of) if dim is None else of[dim]
            kept = dim if len(shape) == len(of) else None
            picks = 1 if kept is None else shape[kept]
            even = picks / max(options, 1)
            what = f"{name} chooses each of {options} alike"
            if share is not None:
                what = f"{share:.4g} of the rows of {name} choose the first of {options}"
            share = even if share is None else share
            taken = None if self._odds == 1 and share == even else self._at_odds(share)
            made = partial(self._chosen, shape, kept, options, picks, taken)
        else:
            assert share is not None
            what = f"{share:.4g} of {name} are true"
            made = partial(self._spread, shape, self._at_odds(share))
        value = _Value(_Memory(assumed=frozenset((Assumption(name, share, f"{what}, {place()}"),))))
        self._queue.append(lambda: setattr(value, "real", made()))
        return value

    def _at_odds(self, share: float) -> float:
        return self._odds * share / (1 + (self._odds - 1) * share)

    def _spread(self, shape: Sequence[int], share: float) -> Any:
        """Booleans of which a share is true, spread evenly."""
        steps = self.torch.arange(prod(shape) + 1, dtype=self.torch.float64) * share
        return (steps + _ROUND).floor().diff().bool().reshape(shape)

    def _chosen(
        self, shape: Sequence[int], dim: int | None, options: int, picks: int, share: float | None
    ) -> Any:
        """For each row different ones of `options`, in turn; of a `share` of the rows the first."""
        made = self.torch.arange(prod(shape)).reshape(-1, max(picks, 1))
        if share is None or picks >= options:
            made %= max(options, 1)
        else:
            made = 1 + made % (options - 1)
            made[self._spread(made.shape[:1], share), 0] = 0
        if dim is None:
            return made.reshape(shape)
        before = [size for at, size in enumerate(shape) if at != dim % len(shape)]
        return made.reshape(*before, picks).movedim(-1, dim)

    def _run(
        self, func: Any, call: Any, results: Sequence[_Value], seed: int | None, is_empty: bool
    ) -> None:
        """Compute an operator of the queue."""
        try:
            if seed is not None:
                self.torch.manual_seed(seed)
            args, kwargs = mapped(_with_values, call)
            made = self._tensors(func(*args, **kwargs))
        except Exception as error:
            why = " ".join(str(error).split())[:80]
            why = why if isinstance(error, UnknownValueError) else f"{func}, which fails: {why}"
            for each in results:
                each.memory.is_known, each.memory.why = False, why
            return
        for value, real in zip(results, made, strict=True):
            value.real = real.zero_() if is_empty else real

    @contextmanager
    def _for_real(self) -> Iterator[None]:
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes(), self.torch.no_grad():
            yield

    def _computed(self, values: Sequence[_Value]) -> None:
        """Compute what is queued, so that these have values; what they assume is used."""
        with self._for_real(), self.torch.random.fork_rng(devices=[]):
            for run in self._queue:
                run()
        self._queue.clear()
        self.used.update(*(each.memory.assumed for each in values))

    def _read(self, tensor: Any) -> Any:
        value = self._value(tensor)
        self._computed([value])
        return value.real

    def _asked(self, func: Any, args: Any, kwargs: Any, error: Exception) -> Any:
        """What an operator returns that depends on values, or that knows no fake tensors.

        Floats stand for nothing where integers are given too: those decide sizes.
        """
        given = self._tensors((args, kwargs))
        values, name = [self._value(each) for each in given], short(func)
        self._computed(values)
        pairs = list(zip(given, values, strict=True))
        unknown = [each for each, value in pairs if not value.memory.is_known]
        decide = any(value.memory.is_known and not _is_real(each) for each, value in pairs)
        why = next((value.memory.why for value in values if value.memory.why), "")
        standing: Callable[[Values, Sequence[int], float], Any] = _zeros
        share = 0.0
        if unknown and not (decide or why):
            if isinstance(error, self._unsupported):
                raise error
            stand_in = STAND_INS.get(name)
            why = f"floats: --assume {name}={stand_in.word}" if stand_in else "floats"
            if stand_in and name in self._assume:
                why, standing, share = "", stand_in.make, self._assume[name]
                is_number, what = stand_in.word == NUMBER, f"{name} of floats, {place()}"
                self.used.add(Assumption(name, share, what, is_number))
                share = share if is_number else self._at_odds(share)
        if why:
            text = f"{func} depends on values, and nothing is computed here; they are {why}"
            raise UnknownValueError(text) from error
        with self._for_real():
            real = {id(each): value.real for each, value in pairs}
            real |= {id(t): standing(self, t.shape, share).to(t.dtype) for t in unknown}
            real_args, real_kwargs = mapped(lambda x: real.get(id(x), x), (args, kwargs))
            answer = func(*real_args, **real_kwargs)
        assumed = frozenset[Assumption]().union(*(each.memory.assumed for each in values))

        def faked(made: Any) -> Any:
            is_real = isinstance(made, self.torch.Tensor) and _is_real(made)
            if not isinstance(made, self.torch.Tensor) or (name in ON_HOST and not is_real):
                return made
            fake = self.torch.empty_strided(made.shape, made.stride(), dtype=made.dtype)
            if not (unknown and is_real):
                self._of[fake] = _Value(_Memory(assumed=assumed), made)
            return fake

        return mapped(faked, answer)


_ROUND = 1e-9
"""Below the rounding of shares such as a third."""


def short(func: Any) -> str:
    """What people call an operator: `gt` of `aten::gt.Scalar`, `item`."""
    name = func._schema.name.rpartition("::")[2].rstrip("_")
    return SHORT.get(name, name)


def line_of(frames: Iterable[tuple[FrameType, int]]) -> str:
    """The first line outside of PyTorch, of this folder and of Python's own import."""
    here = str(Path(__file__).parent)
    for frame, line in frames:
        name = frame.f_code.co_filename
        if not (name.startswith((here, "<frozen ")) or "/torch/" in name):
            return f"line {line} of {Path(name).name}"
    return ""


def place() -> str:
    """The line of the program that runs."""
    return line_of(traceback.walk_stack(None))


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


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments that an operator writes to."""
    arguments = func._schema.arguments
    written = {each.name for each in arguments if each.alias_info and each.alias_info.is_write}
    named = {each.name: arg for each, arg in zip(arguments, args, strict=False)} | dict(kwargs)
    return [arg for name, arg in named.items() if name in written]


def _dim(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """The dimension along which it chooses; None is all of them."""
    for at, each in enumerate(func._schema.arguments):
        if each.name == "dim":
            found = args[at] if at < len(args) else kwargs.get("dim", each.default_value)
            return None if found is None else int(found)
    return -1 if short(func) == "multinomial" else None


@dataclass(frozen=True)
class _StandIn:
    """What stands for floats whose values are asked for, made of a shape and what is assumed."""

    make: Callable[[Values, Sequence[int], float], Any]
    word: str = "FRACTION"


NUMBER = "NUMBER"


def _zeros(values: Values, shape: Sequence[int], _: float) -> Any:
    """Take no memory."""
    return values.torch.zeros(()).expand(tuple(shape))


def _distinct(values: Values, shape: Sequence[int], share: float) -> Any:
    return (values.torch.arange(prod(shape)) * share).floor().reshape(shape)


def _number(values: Values, shape: Sequence[int], number: float) -> Any:
    return values.torch.full(tuple(shape), number)


STAND_INS: Mapping[str, _StandIn] = MappingProxyType(
    {
        "nonzero": _StandIn(Values._spread),
        "unique": _StandIn(_distinct),
        "item": _StandIn(_number, NUMBER),
    }
)

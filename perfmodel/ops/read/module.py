"""The op graph of a PyTorch module, built and called under fake tensors: nothing is computed or
allocated but the values of integers that it asks for. PyTorch is imported when a module is traced,
and not before.

What of a PyTorch module is asked: the class in its file, what it is given, how it is run.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from perfmodel.base.files import check_input
from perfmodel.errors import UsageError
from perfmodel.ops.edits.compiled import compiled
from perfmodel.ops.graph import OPTIMIZER, WAITING, Op, OpGraph, tensors_in
from perfmodel.ops.read.assumed import Assumptions, check_shares
from perfmodel.ops.read.tracing import (
    ModuleError,
    UnknownValueError,
    cast,
    mapped,
    pytorch,
    step,
)

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""Our words for the types that a module may be given in, and PyTorch's."""
OTHER_DTYPES = {"fp64": "float64"} | {n: n for n in ("int64", "int32", "int8", "uint8", "bool")}
"""The same of inputs alone."""
OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop")
EAGER, COMPILED, GRAPHS, REDUCED = HOW = ("eager", "compiled", "graphs", "reduce-overhead")


@dataclass(frozen=True)
class Call:
    """What of a module is traced.

    `training`: forward, backward of the sum of its outputs, and a step of `optimizer` (a class of
    `torch.optim`; what it keeps is there before), in place of the forward pass alone. `dtype` is
    what the module and its floating inputs are cast to; `autocast` the type that `torch.autocast`
    computes in; `batch` the first dimension of every input; `assume`, by operator, what share of
    the booleans that it makes of floats is true, or of the rows takes the first choice.
    """

    training: bool = False
    optimizer: str | None = None
    dtype: str | None = None
    autocast: str | None = None
    batch: int | None = None
    assume: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_shares(self.assume)
        for name in ("dtype", "autocast"):
            word = getattr(self, name)
            if word is not None and word not in DTYPES:
                raise UsageError(f"{name} {word!r}: one of {', '.join(DTYPES)}")
        if self.optimizer is not None and not self.training:
            raise UsageError(f"--optimizer {self.optimizer}: steps in training alone: --training")
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
    torch, name = pytorch(), program.name
    from torch.utils._python_dispatch import _disable_current_modes

    def build() -> Any:
        init = list(program.init)
        if not init and hasattr(source, "get_init_inputs"):
            with step(name, "get_init_inputs()"):
                init = list(source.get_init_inputs())
        with step(name, "its constructor"):
            try:
                return made(*init)
            except UnknownValueError:  # it looks at weights: build it for real
                with _disable_current_modes():
                    module = made(*init)
                return deepcopy(module)

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
        with step(name, f"{function}()"):
            return list(getattr(source, function)())

    with _as_it_was(torch), step(name, "tracing it"):
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
        return _traced(build, inputs, name, call)


def graph_of_module(
    module: Any, inputs: Sequence[Any], call: Call = EAGER_FORWARD, name: str | None = None
) -> OpGraph:
    """The ops of `module(*inputs)` in the mode that it is in (training or evaluation).

    Its parameters are only looked at, never changed.

    Raises `ModuleError` as `graph_of_program` does.
    """
    name = name or type(module).__name__
    with step(name, "tracing it"):
        pytorch()
        from torch.utils._pytree import tree_map

        from perfmodel.ops.read.patches import fake

        return _traced(partial(deepcopy, module), partial(tree_map, fake, list(inputs)), name, call)


def _loaded(program: Program) -> ModuleType:
    spec = importlib.util.spec_from_file_location("_perfmodel_program", program.path)
    if spec is None or spec.loader is None or not program.path.is_file():
        raise ModuleError(f"{program.path}: cannot be read: no such file")
    check_input(program.path)
    source = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(program.path.parent))
    with step(str(program.path), "its import"):
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
    with step(f"--input {text!r}", "a tensor of it"):
        return torch.empty(shape, dtype=getattr(torch, words[word or "fp32"]))


def _traced(
    build: Callable[[], Any], inputs: Callable[[], list[Any]], name: str, call: Call
) -> OpGraph:
    """The ops of a call, and where sizes depend on what is assumed, of two at other odds."""
    torch = pytorch()
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._pytree import tree_leaves, tree_map

    from perfmodel.ops.read.collective_calls import reads_of_collectives
    from perfmodel.ops.read.patches import under_fake_tensors
    from perfmodel.ops.read.recorder import Recorder
    from perfmodel.ops.read.values import Values

    def once(odds: float = 1.0) -> tuple[OpGraph, Assumptions]:
        recorder, assumptions = Recorder(), Assumptions(torch, call.assume, odds=odds)
        values = Values(assumptions)
        recorder.known = values.known
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        with (
            warnings.catch_warnings(action="ignore"),
            under_fake_tensors(mode),
            values.following(),
        ):
            module = build()
            is_sharded = torch.distributed.is_available() and torch.distributed.is_initialized()
            given = values.inputs(inputs)
            if call.training:
                module.train()
            if call.dtype is not None:
                dtype = getattr(torch, DTYPES[call.dtype])
                module._apply(lambda value: cast(torch, value, dtype))
                given = tree_map(lambda x: cast(torch, x, dtype), given)
            if call.batch is not None:
                with step(name, f"a batch of {call.batch}"):
                    given = [_of_batch(torch, each, call.batch) for each in given]
            tensors = tuple(tensors_in(recorder.returned(tree_leaves(given))))
            autocast: Any = nullcontext()
            if call.autocast is not None:
                autocast = torch.autocast("cpu", dtype=getattr(torch, DTYPES[call.autocast]))
            with recorder.recording(), step(name, "its call"), autocast:
                if call.training:
                    optimizer = _optimizer(torch, call.optimizer, module)
                    _train(torch, module, given, optimizer, recorder, name)
                    # What optimizers keep, and ranks tell one another, only the first step makes.
                    if is_sharded or (optimizer is not None and optimizer.state):
                        module.zero_grad()
                        recorder.restart()
                        _train(torch, module, given, optimizer, recorder, name)
                else:
                    with torch.no_grad():
                        module(*given)
        if not recorder.ops:
            raise ModuleError(f"{name}: its call runs no operator")
        held = recorder.lifetimes.held
        ops = tuple(recorder.ops)
        reads = reads_of_collectives(ops)
        graph = OpGraph(ops, reads, source=name, held=held, given=tensors)
        return graph, assumptions

    graph, assumptions = once()
    assumptions.check_used(name)
    notes, others = sorted(map(str, assumptions.used)), []
    if any(each.has_odds for each in assumptions.used):
        notes.append("the interval covers half and twice the odds of what is assumed")
        others = [once(odds)[0] for odds in (0.5, 2.0)]
    return replace(graph, notes=(*graph.notes, *notes), others=tuple(others))


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


def _optimizer(torch: Any, word: str | None, module: Any) -> Any:
    """PyTorch's of that name in any letters."""
    if word is None:
        return None
    name = next((each for each in OPTIMIZERS if each.lower() == word.lower()), None)
    if name is None:
        raise UsageError(f"optimizer {word!r}: one of {', '.join(OPTIMIZERS)}")
    return getattr(torch.optim, name)(module.parameters(), lr=0.01, foreach=True)


def _train(
    torch: Any, module: Any, inputs: list[Any], optimizer: Any, recorder: Any, name: str
) -> None:
    from torch.utils._pytree import tree_leaves

    outputs = tree_leaves(module(*inputs))
    losses = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
    if not losses:
        raise ModuleError(f"{name}: no output depends on a parameter: there is nothing to train")
    sum(each.float().sum() for each in losses).backward()
    recorder.phase = OPTIMIZER
    if optimizer is not None:
        optimizer.step()

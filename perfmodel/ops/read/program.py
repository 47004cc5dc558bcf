"""What of a PyTorch module is asked: the class in its file, what it is given, how it is run.

Nothing here needs PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.ops.graph import OpGraph

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""Our words for the types that a module may be given in, and PyTorch's."""
OTHER_DTYPES = {"fp64": "float64"} | {n: n for n in ("int64", "int32", "int8", "uint8", "bool")}
"""The same of inputs alone."""
OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop")
EAGER, COMPILED, GRAPHS = HOW = ("eager", "compiled", "graphs")


class ModuleError(PerfmodelError):
    """A module cannot be built or traced; one line that names the file, and the operator."""


@dataclass(frozen=True)
class Call:
    """What of a module is traced.

    `training`: forward, backward of the sum of its outputs, and a step of `optimizer` (a class of
    `torch.optim`), in place of the forward pass alone. `dtype` is what the module and its floating
    inputs are cast to; `autocast` the type that `torch.autocast` computes in; `batch` the first
    dimension of every input.
    """

    training: bool = False
    optimizer: str | None = None
    dtype: str | None = None
    autocast: str | None = None
    batch: int | None = None

    def __post_init__(self) -> None:
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


def as_run(graph: OpGraph, how: str) -> OpGraph:
    """The ops of a call as they run `eager`ly, or captured in CUDA `graphs`."""
    if how not in HOW:
        raise UsageError(f"mode {how!r}: one of {', '.join(HOW)}")
    if how == COMPILED:
        from perfmodel.ops.edits.compiled import compiled

        return compiled(graph)
    return graph if how == EAGER else replace(graph, cuda_graphs=True)

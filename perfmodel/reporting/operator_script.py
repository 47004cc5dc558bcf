"""One recorded operator as a PyTorch file that runs and times it: shapes and types, no data."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

from perfmodel import __version__
from perfmodel.base.registry import offered
from perfmodel.errors import UsageError
from perfmodel.ops.graph import Argument, Tensor
from perfmodel.ops.read.arguments import ProfileArguments, usual_dtype
from perfmodel.trace import Trace
from perfmodel.trace.categories import Category
from perfmodel.trace.columns import NONE, RankTrace

MAX_CASES = 50
"""Sets of arguments that are written, most host time first."""
_CALLABLE = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*")
_TORCH_DTYPES = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
}
"""Words of our dtypes that PyTorch spells otherwise."""

_ASSETS, _SCRIPT = "perfmodel.reporting.assets", "operator.py.txt"


def operator_script(trace: Trace, name: str, file: str = "op.py") -> str:
    """The text of a file that runs operator `name` of a trace with all arguments it was given.

    Raises `UsageError` where no such operator was recorded, it is none that can be called, or its
    shapes were not recorded.
    """
    rows = {rank.rank: _rows(rank, name) for rank in trace.ranks}
    if not any(len(each) for each in rows.values()):
        known = sorted({text for rank in trace.ranks for text in _names(rank)})
        raise UsageError(f"--name: {trace.source} has no operator {offered(name, known)}")
    if not _CALLABLE.fullmatch(name):
        raise UsageError(f"--name {name[:60]!r}: not one of PyTorch's operators, such as aten::mm")
    count: defaultdict[tuple[Argument, ...], int] = defaultdict(int)
    total_us: defaultdict[tuple[Argument, ...], float] = defaultdict(float)
    for rank in trace.ranks:
        arguments = ProfileArguments(
            rank.strings.__getitem__,
            rank.where,
            usual_dtype({rank.strings[at] for at in set(rank.input_dtypes.tolist()) - {NONE}}),
        )
        for row in rows[rank.rank]:
            if rank.input_shapes[row] == NONE:
                continue
            columns = (rank.input_shapes, rank.input_dtypes, rank.input_values, rank.input_strides)
            given = arguments.of(*(int(column[row]) for column in columns))
            count[given] += 1
            total_us[given] += float(rank.duration_us[row])
    if not count:
        raise UsageError(
            f"--name {name}: {trace.source} records no shapes of it: profile with "
            "record_shapes=True"
        )
    most = sorted(count, key=lambda given: -total_us[given])[:MAX_CASES]
    return (
        files(_ASSETS)
        .joinpath(_SCRIPT)
        .read_text("utf-8")
        .format(
            name=name,
            version=__version__,
            source=json.dumps(Path(trace.source).name)[1:-1].replace('"', ""),
            file=file,
            path=name.replace("::", "."),
            cases="\n".join(f"    ({count[given]}, lambda: {_list(given)})," for given in most),
        )
    )


def _rows(rank: RankTrace, name: str) -> list[int]:
    return [row for row in rank.of(Category.CPU_OP).tolist() if rank.text(row) == name]


def _names(rank: RankTrace) -> Iterable[str]:
    return (rank.strings[at] for at in set(rank.name[rank.of(Category.CPU_OP)].tolist()))


def _list(values: Sequence[Argument]) -> str:
    return f"[{', '.join(map(_literal, values))}]"


def _literal(value: Argument) -> str:
    """An argument as Python text."""
    if isinstance(value, Tensor):
        strides = value.strides if len(value.strides) == len(value.shape) else _dense(value.shape)
        dtype = _TORCH_DTYPES.get(value.dtype, value.dtype)
        named = f"torch.{dtype}" if dtype.isidentifier() else "torch.float32"
        return f"tensor({list(value.shape)}, {list(strides)}, {named})"
    if isinstance(value, tuple):
        return _list(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _dense(shape: Sequence[int]) -> list[int]:
    """Strides of a tensor without holes."""
    steps = [1]
    for size in reversed(shape[1:]):
        steps.insert(0, steps[0] * max(size, 1))
    return steps[: len(shape)]

"""Reading an op's arguments; what operators launch by their records (`perfmodel.ops.operators`);
which rule is whose."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import translate
from functools import cache, lru_cache
from itertools import pairwise, zip_longest
from math import prod

from perfmodel.lowering.piece import ANY, LOWERINGS, Lowering, MissingArguments, Piece
from perfmodel.ops.graph import Op, Tensor, argument, tensors_in
from perfmodel.ops.operators import ALL, OPERATORS, OUTPUT, WAIT, WHOLE_TENSORS, Operator, Row
from perfmodel.ops.operators import STREAM as STREAMED
from perfmodel.ops.rows import FRAMEWORK, TORCH, framework_code
from perfmodel.ops.spec import OPS, is_known, item_bytes
from perfmodel.ops.vocabulary.matmul import MATMUL

HOST = "cpu"
REUSE = ("zipf_alpha", "unique_rows", "longest_bag")
"""What an embedding op says of how its rows repeat (`perfmodel.ops.read.arguments`)."""
BY_ELEMENTS = "by_elements"
"""Dim of a gather: elements that each thread looks up one after another; mark of an op that joined
tensors by single elements, as before PyTorch 2.9."""
BY_CALLS = "by_calls"
"""Attribute of an op of a profile that launched nothing but what its calls did."""
OWN_STREAM = "pipeline"
"""The attribute of ops whose copies run beside the step, on a stream of their own; others go where
the kernels go, and wait for them."""
STREAM = "stream"
"""The attribute that names the stream on which a profile saw an op's work."""
UNKNOWN_ITEM_BYTES = 4.0


def tensor(op: Op, index: int) -> Tensor:
    """The tensor that is argument `index`; raises `MissingArguments` where it is none."""
    value = argument(op, index)
    if not isinstance(value, Tensor):
        raise MissingArguments
    return value


def tensors(op: Op, count: int) -> tuple[Tensor, ...]:
    """The first `count` tensors among the arguments; fewer are `MissingArguments`."""
    if len(op.tensors) < count:
        raise MissingArguments
    return op.tensors[:count]


def matrix(tensor_: Tensor) -> tuple[int, int]:
    """Rows and columns; raises `MissingArguments` for what has not two dimensions."""
    if len(tensor_.shape) != 2:
        raise MissingArguments
    return tensor_.shape[0], tensor_.shape[1]


def length(tensor_: Tensor, dim: int) -> int:
    """How long dimension `dim` is, which may count from the last; else `MissingArguments`."""
    if not -len(tensor_.shape) <= dim < len(tensor_.shape):
        raise MissingArguments
    return tensor_.shape[dim]


def flag(op: Op, index: int) -> bool | None:
    """The boolean that is argument `index`, or None where it is unknown."""
    value = argument(op, index)
    return bool(value) if isinstance(value, (bool, int)) else None


def output(op: Op) -> Tensor | None:
    """The first tensor that the op returns, where the graph says it."""
    return next(tensors_in(op.outputs), None)


def broadcast(tensors: tuple[Tensor, ...]) -> tuple[int, ...]:
    """The shape that tensors have together."""
    columns = zip_longest(*(reversed(t.shape) for t in tensors), fillvalue=1)
    return tuple(reversed([0 if 0 in column else max(column) for column in columns]))


def rows_cols(shape: tuple[int, ...]) -> dict[str, float]:
    """A shape as `rows` and `cols`, the last dimension."""
    cols = shape[-1] if shape else 1
    return {"rows": float(prod(shape[:-1])), "cols": float(cols)}


def layout_dims(tensors: Sequence[Tensor], shape: tuple[int, ...]) -> dict[str, float]:
    """How tensors that make one of `shape` lie in memory, as dims of a kernel that streams them.

    `strided`: in more than one way, or with holes; else `broadcast` where one is smaller, else
    `apart` where stretches of one are, or lie in another order. A number is neither, unless it is
    known to lie on the device, nor are strides that are not known.
    """
    layouts, is_broadcast = set(), False
    for held in tensors:
        if stored(held) == prod(shape):
            layouts.add(_layout(held))
        elif held.elements > 1 or held.device not in ("", HOST):
            is_broadcast = True
    rows_apart = APART in layouts
    layouts.discard(APART)
    if len(layouts) > 1 and SLICED not in layouts and _run_alike(tensors):
        layouts, rows_apart = set(), True
    if len(layouts) > 1 or SLICED in layouts:
        return {"strided": 1.0}
    if is_broadcast:
        return {"broadcast": 1.0}
    return {"apart": 1.0} if rows_apart else {}


SLICED, APART, SECTOR_BYTES = "sliced", "apart", 32


def _run_alike(tensors: Sequence[Tensor]) -> bool:
    """Whether the same dimension lies side by side in all that have several elements, for a whole
    sector at least: neighbours in one are neighbours in the others."""
    innermost = set()
    for held in tensors:
        strides = held.strides or (*(0,) * (len(held.shape) - 1), 1)
        runs = [
            at for at, (n, s) in enumerate(zip(held.shape, strides, strict=False)) if s == 1 < n
        ]
        if len(runs) == 1 and held.shape[runs[0]] * bytes_of(held.dtype) >= SECTOR_BYTES:
            innermost.add(runs[0] - len(held.shape))
        elif held.elements > 1:
            return False
    return len(innermost) == 1


def _layout(held: Tensor) -> Hashable:
    """The order of the dimensions in memory, `""` for the usual one; with holes `SLICED`, or
    `APART` where stretches of whole sectors lie in the usual order."""
    pairs = [(s, n) for n, s in zip(held.shape, held.strides, strict=False) if n > 1]
    expected = 1
    for stride, length in sorted(pairs):
        if stride != expected:
            in_order = all(a[0] > b[0] for a, b in pairwise(pairs))
            is_whole = expected * bytes_of(held.dtype) >= SECTOR_BYTES
            return APART if in_order and is_whole else SLICED
        expected *= length
    usual = all(a[0] > b[0] for a, b in pairwise(pairs))
    return "" if usual else tuple(stride for stride, _ in pairs)


def stored(tensor_: Tensor) -> int:
    """Elements that a tensor takes in memory: an expanded dimension holds one."""
    if 0 not in tensor_.strides:
        return tensor_.elements
    pairs = zip(tensor_.shape, tensor_.strides, strict=True)
    return prod(length for length, stride in pairs if stride or not length)


def tensor_bytes(tensor_: Tensor) -> float:
    return stored(tensor_) * bytes_of(tensor_.dtype)


def bytes_of(dtype: str) -> float:
    """Bytes per element; 4 for a dtype that is not known."""
    return item_bytes(dtype) if is_known(dtype) else UNKNOWN_ITEM_BYTES


def numbers(op: Op, *names: str) -> dict[str, float]:
    """Those of the attributes that an op has."""
    return {name: float(op.attributes[name]) for name in names if name in op.attributes}


def told(op: Op, name: str) -> dict[str, float]:
    """The dims of row op `name` that are among an op's attributes; raises `MissingArguments` where
    one is not that the row must have."""
    spec = OPS.get(name)
    if spec is None or any(dim not in op.attributes for dim in spec.dims):
        raise MissingArguments
    return numbers(op, *spec.dims, *spec.defaults)


def lies_on_host(op: Op) -> bool | None:
    """Whether all tensors of an op lie in host memory; None where it has none that could tell.

    Execution traces do not say where sparse tensors lie.
    """
    tensors = [t for t in (*op.tensors, *tensors_in(op.outputs)) if t.device or not t.layout]
    return all(t.device.startswith(HOST) for t in tensors) if tensors else None


FP32, TF32 = "fp32", "tf32"
WAITED = Piece("copy_d2h", {"elements": 1.0}, "int64", kind="copy", blocks=True)
"""A number that the host waits for."""


@lru_cache(maxsize=1 << 14)
def rule_of(name: str, target: str, scope: str = "") -> Lowering | None:
    """The rule of an op, the target's own before that for all and that of its record; None where
    there is none."""
    full = f"{scope}{name}"
    for where in (target, ANY):
        rule = LOWERINGS.get(f"{where}/{full}")
        if rule is not None:
            return rule
    record = OPERATORS.get(full)
    if record is not None and record.launches is not None:
        return by_record(record)
    return next((rule for pattern, rule in _patterns(target) if pattern.fullmatch(full)), None)


@lru_cache(maxsize=8)
def _patterns(target: str) -> list[tuple[re.Pattern[str], Lowering]]:
    """The entries with a `*`, the target's own first."""
    patterns = []
    for where in (target, ANY):
        keys = [key for key in LOWERINGS if key.startswith(f"{where}/") and "*" in key]
        patterns += [(translate(key[len(where) + 1 :]), LOWERINGS[key]) for key in keys]
    patterns += [(translate(key), by_record(OPERATORS[key])) for key in OPERATORS if "*" in key]
    return [(re.compile(pattern), rule) for pattern, rule in patterns]


@cache
def by_record(record: Operator) -> Lowering:
    """The rule that a record states; nothing is launched over no elements."""

    def rule(op: Op) -> Sequence[Piece]:
        sizes = record.bind(op, lambda place: tensor(op, place).shape or (1,))
        if sizes is None:
            raise MissingArguments
        elements = {name: float(prod(each)) for name, each in sizes.items()}
        elements |= record.numbers(op)
        dtypes = {name: tensor(op, place).dtype for name, (place, _) in record.tensors.items()}
        result, is_told = made(op), output(op) is not None
        elements[OUTPUT] = float(result.elements if is_told else max(result.elements, 1))
        dtypes[OUTPUT] = result.dtype
        pieces: list[Piece] = []
        for row in record.rows:
            if row.op in WHOLE_TENSORS:
                pieces += _of_tensors(record, op, row)
            else:
                pieces += _of_row(row, elements, dtypes, is_told=is_told)
        return pieces

    return rule


def _of_tensors(record: Operator, op: Op, row: Row) -> Sequence[Piece]:
    """A kernel over whole tensors: elementwise, a copy or a fill."""
    words = dict(row.dims)
    reads, writes = (
        [t for word in filter(None, text.split(",")) for t in _named(record, op, word)]
        for text in (words.get("reads", ""), words.get("writes", ""))
    )
    if row.op == STREAMED:
        return pointwise(reads, writes, float(words.get("flop", 1.0)))
    return copy_pieces(writes[0], reads[0]) if reads else fill_of(writes[0])


def _of_row(
    row: Row, elements: Mapping[str, float], dtypes: Mapping[str, str], *, is_told: bool
) -> Sequence[Piece]:
    """A row of the measurement table; `is_told`: the graph says what is made."""
    dims = {
        name: _dim(text, elements)
        for name, text in row.dims
        if ">" not in text or _dim(text, elements)
    }
    if not dims.pop("if", 1.0):
        return ()
    if row.op == WAIT:
        return (WAITED,)
    spec = OPS[row.op]
    if not all(dims[name] for name in spec.dims):
        return ()
    if spec.family == MATMUL:
        dims[FRAMEWORK] = float(framework_code(TORCH))
    dtype = dtypes.get(row.dtype, row.dtype or next(iter(dtypes.values())))
    is_guess = not is_told and any(text == OUTPUT for _, text in row.dims)
    return (Piece(row.op, dims, dtype, row.direction, launches=row.launches, guessed=is_guess),)


def _named(record: Operator, op: Op, word: str) -> Iterator[Tensor]:
    name, _, dtype = word.partition(":")
    if name == ALL and dtype:
        yield Tensor(broadcast(op.tensors), dtype)
    elif name == ALL:
        yield from op.tensors
    elif name == OUTPUT:
        yield made(op)
    else:
        held = tensor(op, record.tensors[name][0])
        yield Tensor(held.shape, dtype) if dtype else held


def made(op: Op) -> Tensor:
    """The first output, else one that the inputs broadcast to."""
    dtype = op.tensors[0].dtype if op.tensors else FP32
    return output(op) or Tensor(broadcast(op.tensors), dtype)


def _dim(text: str, elements: Mapping[str, float]) -> float:
    """A product of sizes and numbers, which a size may divide; or whether a size is above one."""
    name, above, limit = text.partition(">")
    if above:
        return float(elements[name] > float(limit))
    product, _, divisor = text.partition("/")
    value = prod(float(n) if n[0].isdigit() else elements[n] for n in product.split("*"))
    return value / max(elements[divisor], 1.0) if divisor else value


def pointwise(
    reads: Sequence[Tensor], writes: Sequence[Tensor], flop: float = 1.0, *, finds: bool = True
) -> Sequence[Piece]:
    """One kernel that streams these tensors; nothing where they are empty. `finds`: it computes
    where each element lies, which a kernel that is made for their shapes need not."""
    tensors = [*reads, *writes]
    elements = max((t.elements for t in tensors), default=0)
    if not elements:
        return ()
    dtype = max(tensors, key=tensor_bytes).dtype
    full = elements * bytes_of(dtype)
    dims = {
        "elements": float(elements),
        "reads": sum(map(tensor_bytes, reads)) / full,
        "writes": sum(map(tensor_bytes, writes)) / full,
        "flop_per_element": flop,
    }
    if finds:
        dims |= layout_dims(tensors, max((t.shape for t in tensors), key=prod))
    return (Piece("elementwise", dims, dtype),)


def fill_of(filled: Tensor) -> Sequence[Piece]:
    if not filled.elements:
        return ()
    if layout_dims([filled], filled.shape):
        return pointwise([], [filled], flop=0.0)
    return (Piece("fill", rows_cols(filled.shape), filled.dtype),)


def copy_pieces(target: Tensor, source: Tensor, *, non_blocking: bool = False) -> Sequence[Piece]:
    elements = target.elements
    if not elements:
        return ()
    to_host, from_host = target.device.startswith(HOST), source.device.startswith(HOST)
    if to_host != from_host and target.device and source.device:
        name = "copy_d2h" if to_host else "copy_h2d"
        return host_device_copy(name, target, non_blocking=non_blocking)
    if source.dtype != target.dtype or stored(source) != elements:
        (piece,) = pointwise([source], [target], flop=0.0)
        is_wider = bytes_of(target.dtype) > bytes_of(source.dtype)
        return (replace(piece, dims={**piece.dims, "widened": 1.0}) if is_wider else piece,)
    turned = [held for held in (source, target) if _is_transposed(held)]
    if len(turned) == 1:
        cols = turned[0].shape[turned[0].strides.index(1)]  # elements that lie side by side
        dims = {"rows": elements / cols, "cols": float(cols)}
        return (Piece("transpose_copy", dims, target.dtype),)
    dims = {"elements": 2.0 * elements} | layout_dims([target, source], target.shape)
    return (Piece("copy", dims, target.dtype),)


def host_device_copy(
    name: str, moved: Tensor, *, non_blocking: bool = False, pinned: bool = False
) -> Sequence[Piece]:
    """A copy between host and device: unless told otherwise, PyTorch waits for it.

    One that is not waited for is taken to be of pinned memory.
    """
    dims = {"elements": float(moved.elements), "pinned": float(non_blocking or pinned)}
    return (Piece(name, dims, moved.dtype, kind="copy", blocks=not non_blocking),)


def _is_transposed(values: Tensor) -> bool:
    """Whether another dimension than the last is the one whose elements lie side by side."""
    steps = [s for n, s in zip(values.shape, values.strides, strict=False) if n > 1]
    return bool(steps) and steps[-1] != 1 and 1 in steps

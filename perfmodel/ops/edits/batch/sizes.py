"""Sizes as functions of the batch: so much per sample, and so much whatever the batch is; and what
sizes operators return, given those of their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import chain
from math import prod
from typing import NamedTuple, TypeAlias

from perfmodel.ops.graph import Op, Tensor, argument, integer, integers
from perfmodel.ops.operators import operator_of


class Size(NamedTuple):
    """`per_sample` times the batch, plus `fixed`."""

    per_sample: Fraction | int
    fixed: int

    def at(self, batch: int) -> Fraction | int:
        """The size at a batch; a fraction where it does not come out whole."""
        return self.per_sample * batch + self.fixed


Dims: TypeAlias = tuple[Size, ...]


def fixed(shape: Iterable[int]) -> Dims:
    """Sizes that do not change."""
    return tuple(Size(0, size) for size in shape)


def per_sample(value: int, batch: int) -> Size:
    """A size in proportion to the batch."""
    whole, rest = divmod(value, batch)
    return Size(Fraction(value, batch) if rest else whole, 0)


def product(dims: Iterable[Size]) -> Size | None:
    """Number of elements; None where two sizes depend on the batch or one has both parts."""
    dims = tuple(dims)
    scaled = [size for size in dims if size.per_sample]
    if not scaled:
        return Size(0, prod(size.fixed for size in dims))
    if len(scaled) > 1:
        return None
    rest = prod(size.fixed for size in dims if not size.per_sample)
    return Size(scaled[0].per_sample * rest, scaled[0].fixed * rest)


def total(dims: Iterable[Size]) -> Size:
    """The sum of sizes."""
    dims = tuple(dims)
    return Size(sum(size.per_sample for size in dims), sum(size.fixed for size in dims))


def reshaped_sizes(dims: Dims, old: Sequence[int], new: Sequence[int], batch: int) -> Dims | None:
    """Sizes of a tensor of sizes `dims` (`old` at `batch`) that is seen as `new`.

    Neighbours that multiply to the same number stand for each other; of several that one size
    becomes, the one that is the batch itself scales, else the first that the batch divides, else
    the first. None where the numbers of elements differ.
    """
    if prod(old) != prod(new) or not prod(new):
        return None
    sizes: list[Size] = []
    low = high = 0
    while low < len(old) or high < len(new):
        ends = (low, high)
        left = right = 1
        while True:
            if left <= right and low < len(old) and (left < right or low == ends[0]):
                left *= old[low]
                low += 1
            elif high < len(new) and (right < left or high == ends[1]):
                right *= new[high]
                high += 1
            if left == right or (low == len(old) and high == len(new)):
                break
        sizes += _group(dims[ends[0] : low], tuple(new[ends[1] : high]), batch)
    return tuple(sizes)


def _group(dims: Dims, new: tuple[int, ...], batch: int) -> Dims:
    whole = product(dims)
    if whole is None:
        return dims if len(dims) == len(new) else fixed(new)
    if not whole.per_sample or not new:
        return fixed(new)
    if len(new) == 1:
        return (whole,)
    wide = [size for size in dims if size != Size(0, 1)]
    if len(wide) == 1 and sum(size > 1 for size in new) == 1:
        return tuple(wide[0] if size > 1 else Size(0, 1) for size in new)
    candidates = range(len(new))
    chosen = next(
        chain(
            (i for i in candidates if new[i] == batch),
            (i for i in candidates if new[i] % batch == 0),
            (i for i in candidates if new[i] > 1),
            candidates,
        )
    )
    rest = prod(new[:chosen]) * prod(new[chosen + 1 :])
    scaled = Size(Fraction(whole.per_sample) / rest, 0) if not whole.fixed else Size(0, new[chosen])
    return (*fixed(new[:chosen]), scaled, *fixed(new[chosen + 1 :]))


class Call(NamedTuple):
    """An op, the sizes of its input tensors, and the batch it was recorded at."""

    op: Op
    dims: tuple[tuple[Dims, ...], ...]
    """Per argument, of each tensor in it."""
    batch: int

    def sizes(self, place: int) -> Dims | None:
        """Sizes of the tensor at a place; None where there is no tensor."""
        return self.dims[place][0] if isinstance(argument(self.op, place), Tensor) else None

    def dim(self, place: int, rank: int) -> int:
        """The dimension, of so many, that an integer argument names."""
        return (integer(self.op, place) or 0) % rank


Returned: TypeAlias = "Sequence[Sequence[Size | None] | None]"
"""Per returned tensor, of each size; None: follow from the shapes."""


def returned_sizes(call: Call) -> Returned:
    """What sizes an op returns, by its record or what is known of its name; of any other nothing:
    they follow from the shapes alone (`follow.py`)."""
    name, made = call.op.name, returned_by(call.op)
    if name.startswith("fbgemm::") and "embedding" in name and "backward" not in name:
        return _looked_up(call, made)
    rule = _RULES.get(name.removeprefix("aten::"))
    if rule is not None:
        x, given, first = call.sizes(0), argument(call.op, 0), made[0] if made else None
        if x is None or first is None or not isinstance(given, Tensor):
            return ()
        return rule(call, x, given.shape, first.shape)
    if name in _JOINED:
        return _JOINED[name](call, call.dims[0] if call.dims else ())
    record = operator_of(name)
    bound = None if record is None else record.bind(call.op, call.sizes)
    return () if record is None or bound is None else list(record.returned(bound, made, fixed))


Shape: TypeAlias = tuple[int, ...]
_Rule = Callable[[Call, Dims, Shape, Shape], Returned]
"""From a call, the sizes and shape of its first argument, and the shape of what it returned."""


def _transposed(call: Call, x: Dims, old: Shape, new: Shape) -> Returned:
    sizes = list(x)
    if sizes:
        a, b = call.dim(1, len(x)), call.dim(2, len(x))
        sizes[a], sizes[b] = sizes[b], sizes[a]
    return [sizes]


def _permuted(call: Call, x: Dims, old: Shape, new: Shape) -> Returned:
    order = integers(call.op, 1) or ()
    return [tuple(x[i] for i in order)] if len(order) == len(x) else ()


def _viewed(call: Call, x: Dims, old: Shape, new: Shape) -> Returned:
    return [reshaped_sizes(x, old, new, call.batch)]


def _expanded(call: Call, x: Dims, old: Shape, new: Shape) -> Returned:
    pad = len(new) - len(x)
    sizes: list[Size | None] = [
        x[at - pad] if at >= pad and old[at - pad] == size else Size(0, size)
        for at, size in enumerate(new)
    ]
    if sizes and (pad or old[0] != new[0]):
        sizes[0] = None
    return [sizes]


def _as_strided(call: Call, x: Dims, old: Shape, new: Shape) -> Returned:
    is_part = prod(new) <= prod(old) and not any(size.per_sample for size in x)
    return [fixed(new)] if is_part else ()


def _sliced(call: Call, x: Dims, old: Shape, new: Shape) -> Returned:
    if not x:
        return ()
    at = call.dim(1 if call.op.name in ("aten::slice", "aten::narrow") else 2, len(x))
    return [
        None
        if part is None
        else (*x[:at], _part(x[at], old[at], part.shape[at], call.batch), *x[at + 1 :])
        for part in returned_by(call.op)
    ]


def _part(whole: Size, old: int, new: int, batch: int) -> Size:
    """A stretch of `new` of the `old` elements of a dimension."""
    if not whole.per_sample or not new:
        return Size(0, new)
    if new % batch == 0 and new != old:
        return Size(new // batch, 0)
    if 2 * new > old:
        return Size(whole.per_sample, whole.fixed + new - old)
    return Size(0, new) if old % new else Size(Fraction(whole.per_sample * new) / old, 0)


def _reduced(call: Call, x: Dims, old: Shape, new: Shape) -> Returned:
    gone = {i % len(x) for i in integers(call.op, 1) or ()} if x else set()
    if not gone:
        return [()] if not new else ()
    if len(new) == len(x):
        return [tuple(Size(0, 1) if i in gone else size for i, size in enumerate(x))]
    return [tuple(size for i, size in enumerate(x) if i not in gone)]


def _bags(call: Call, x: Dims, old: Shape, new: Shape) -> Returned:
    index, offsets = call.sizes(1), call.sizes(2)
    if not x or not index or not offsets:
        return ()
    bags, inputs = offsets[0], call.op.inputs
    if inputs[-2:-1] == (True,) or inputs[7:8] == (True,):
        bags = Size(bags.per_sample, bags.fixed - 1)
    near = {index[0].at(call.batch): index[0], bags.at(call.batch): bags}
    others = [
        None if other is None else tuple(near.get(size, Size(0, size)) for size in other.shape)
        for other in returned_by(call.op)[1:]
    ]
    return [(bags, x[1]), *others]


def _rule(names: str, rule: _Rule) -> dict[str, _Rule]:
    return dict.fromkeys(names.split(), rule)


_RULES = {
    **_rule("transpose swapaxes transpose_", _transposed),
    **_rule("permute", _permuted),
    **_rule("view _unsafe_view reshape _reshape_alias flatten unflatten view_as", _viewed),
    **_rule("squeeze unsqueeze squeeze_ unsqueeze_ ravel", _viewed),
    **_rule("expand expand_as broadcast_to", _expanded),
    **_rule("as_strided", _as_strided),
    **_rule("slice narrow split split_with_sizes chunk unsafe_split tensor_split", _sliced),
    **_rule("sum mean amax amin prod var std logsumexp argmax argmin norm", _reduced),
    **_rule("embedding_bag _embedding_bag _embedding_bag_forward_only", _bags),
}


def _concatenated(call: Call, parts: tuple[Dims, ...]) -> Returned:
    parts = tuple(part for part in parts if part != fixed((0,)))
    if not parts or len({len(part) for part in parts}) > 1:
        return ()
    first, at = parts[0], call.dim(1, len(parts[0]))
    return [(*first[:at], total(part[at] for part in parts), *first[at + 1 :])]


def _stacked(call: Call, parts: tuple[Dims, ...]) -> Returned:
    if not parts:
        return ()
    at = call.dim(1, len(parts[0]) + 1)
    return [(*parts[0][:at], Size(0, len(parts)), *parts[0][at:])]


_JOINED = {"aten::cat": _concatenated, "aten::concat": _concatenated, "aten::stack": _stacked}


def _looked_up(call: Call, made: Sequence[Tensor | None]) -> Returned:
    """Of a table-batched lookup: as many rows as bags, by the offsets, which end each table's."""
    lists = [dims[0][0] for dims in call.dims if len(dims) == 1 and len(dims[0]) == 1]
    ends = [size for size in lists if size.per_sample and size.fixed == 1]
    sizes: list[tuple[Size | None, ...] | None] = []
    for output in made:
        if output is None or len(output.shape) != 2 or not output.shape[0] or not ends:
            sizes.append(None)
            continue
        tables = Fraction(ends[-1].at(call.batch) - 1, output.shape[0])
        bags = Size(ends[-1].per_sample / tables, 0)
        sizes.append((bags if tables.denominator == 1 else None, Size(0, output.shape[1])))
    return sizes


def returned_by(op: Op) -> tuple[Tensor | None, ...]:
    """The tensors that an op returned, lists opened; None for what is no tensor."""
    tensors: list[Tensor | None] = []
    for output in op.outputs:
        for item in output if isinstance(output, tuple) else (output,):
            tensors.append(item if isinstance(item, Tensor) else None)
    return tuple(tensors)

"""What sizes operators return at another batch, given those of their arguments.

Each tensor has its shape as recorded and the one that it gets: what differs between the two grows
with the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import chain
from math import prod
from typing import NamedTuple, TypeAlias

from perfmodel.ops.graph import Op, Tensor, argument, integer, integers, tensors_in
from perfmodel.ops.operators import operator_of

Shape: TypeAlias = tuple[int, ...]
Sizes: TypeAlias = "tuple[int | Fraction | None, ...]"
"""Sizes at the new batch; None: follows from values alone."""
Returned: TypeAlias = "Sequence[Sizes | None]"
"""Per returned tensor; None: follows from the shapes of what was given."""


class Batch(NamedTuple):
    """Samples per rank as recorded, and as asked for."""

    old: int
    new: int


def reshaped(was: Shape, now: Shape, made: Shape, batch: Batch) -> Sizes | None:
    """What `made`, a view of a tensor of shape `was`, is once that is of shape `now`.

    Neighbours that multiply to the same number stand for each other; of several that one size
    becomes, the one that is the batch itself scales, else the first that the batch divides, else
    the first. None where the numbers of elements differ.
    """
    if prod(was) != prod(made) or not prod(made):
        return None
    sizes: list[int | Fraction | None] = []
    low = high = 0
    while low < len(was) or high < len(made):
        first, second, left, right = low, high, 1, 1
        while True:
            if left <= right and low < len(was) and (left < right or low == first):
                left, low = left * was[low], low + 1
            elif high < len(made) and (right < left or high == second):
                right, high = right * made[high], high + 1
            if left == right or (low == len(was) and high == len(made)):
                break
        sizes += _group(was[first:low], now[first:low], made[second:high], batch)
    return tuple(sizes)


def _group(was: Shape, now: Shape, made: Shape, batch: Batch) -> Sizes:
    """The same of neighbours with as many elements."""
    if was == now or len(made) < 2:
        return made if was == now else (prod(now),) * len(made)
    if prod(now) * batch.old != prod(was) * batch.new:
        return now if len(now) == len(made) else made
    wide = [new for old, new in zip(was, now, strict=True) if (old, new) != (1, 1)]
    if len(wide) == 1 and sum(size > 1 for size in made) == 1:
        return tuple(wide[0] if size > 1 else 1 for size in made)
    places = range(len(made))
    whole = (at for at in places if made[at] == batch.old)
    parts = (at for at in places if made[at] % batch.old == 0)
    chosen = next(chain(whole, parts, (at for at in places if made[at] > 1), places))
    rest = prod(made) // made[chosen]
    return (*made[:chosen], Fraction(prod(now), rest), *made[chosen + 1 :])


class Call(NamedTuple):
    """An op, and the sizes of its input tensors at the new batch."""

    op: Op
    now: tuple[tuple[Shape, ...], ...]
    """Per argument, of each tensor in it."""
    batch: Batch

    def sizes(self, place: int) -> Shape | None:
        """Of the tensor at a place; None where there is none."""
        return self.now[place][0] if isinstance(argument(self.op, place), Tensor) else None

    def dim(self, place: int, rank: int) -> int:
        """The dimension, of so many, that an integer argument names."""
        return (integer(self.op, place) or 0) % rank


def returned_by(op: Op) -> tuple[Tensor | None, ...]:
    """The tensors that an op returned, lists opened; None for what is no tensor."""
    items = chain.from_iterable(o if isinstance(o, tuple) else (o,) for o in op.outputs)
    return tuple(item if isinstance(item, Tensor) else None for item in items)


def returned_sizes(call: Call) -> Returned:
    """What sizes an op returns, by what is known of its name, or by its record."""
    name, made = call.op.name, returned_by(call.op)
    if name.startswith("fbgemm::") and "embedding" in name and "backward" not in name:
        return _looked_up(call, made)
    rule = _RULES.get(name.removeprefix("aten::"))
    if rule is not None:
        x, given, first = call.sizes(0), argument(call.op, 0), made[0] if made else None
        if x is None or first is None or not isinstance(given, Tensor):
            return ()
        return rule(call, x, given.shape, first.shape)
    if name in ("aten::cat", "aten::concat", "aten::stack"):
        return _joined(call, call.now[0] if call.now else ())
    record = operator_of(name)
    bound = None if record is None else record.bind(call.op, call.sizes)
    return () if record is None or bound is None else list(record.returned(bound, made, tuple))


_Rule = Callable[[Call, Shape, Shape, Shape], Returned]
"""From a call, the new and old shape of its first argument, and the old shape of what it returned.
"""


def _transposed(call: Call, x: Shape, old: Shape, new: Shape) -> Returned:
    sizes = list(x)
    if sizes:
        a, b = call.dim(1, len(x)), call.dim(2, len(x))
        sizes[a], sizes[b] = sizes[b], sizes[a]
    return [tuple(sizes)]


def _permuted(call: Call, x: Shape, old: Shape, new: Shape) -> Returned:
    order = integers(call.op, 1) or ()
    return [tuple(x[i] for i in order)] if len(order) == len(x) else ()


def _viewed(call: Call, x: Shape, old: Shape, new: Shape) -> Returned:
    return [reshaped(old, x, new, call.batch)]


def _expanded(call: Call, x: Shape, old: Shape, new: Shape) -> Returned:
    pad = len(new) - len(x)
    kept = [at >= pad and old[at - pad] == size for at, size in enumerate(new)]
    sizes = [x[at - pad] if kept[at] else size for at, size in enumerate(new)]
    is_led = bool(new) and (pad > 0 or old[0] != new[0])
    return [(None, *sizes[1:]) if is_led else tuple(sizes)]


def _as_strided(call: Call, x: Shape, old: Shape, new: Shape) -> Returned:
    return [new] if prod(new) <= prod(old) and x == old else ()


def _sliced(call: Call, x: Shape, old: Shape, new: Shape) -> Returned:
    if not x:
        return ()
    at = call.dim(1 if call.op.name in ("aten::slice", "aten::narrow") else 2, len(x))
    shapes = [part.shape if part else None for part in returned_by(call.op)]
    return [
        shape and (*x[:at], _part(x[at], old[at], shape[at], call.batch), *x[at + 1 :])
        for shape in shapes
    ]


def _part(now: int, old: int, part: int, batch: Batch) -> int | Fraction | None:
    """A stretch of `part` of the `old` elements of a dimension that has `now`."""
    if now == old or not part:
        return part
    if part % batch.old == 0 and part != old:
        return part // batch.old * batch.new
    if 2 * part > old:
        return now + part - old
    if now * batch.old != old * batch.new:
        return None
    return part if old % part else Fraction(now * part, old)


_RULES: dict[str, _Rule] = {
    name: rule
    for names, rule in {
        "transpose swapaxes transpose_": _transposed,
        "permute": _permuted,
        "view _unsafe_view reshape _reshape_alias flatten unflatten view_as": _viewed,
        "squeeze unsqueeze squeeze_ unsqueeze_ ravel": _viewed,
        "expand expand_as broadcast_to": _expanded,
        "as_strided": _as_strided,
        "slice narrow split split_with_sizes chunk unsafe_split tensor_split": _sliced,
    }.items()
    for name in names.split()
}


def _joined(call: Call, parts: tuple[Shape, ...]) -> Returned:
    is_stack = call.op.name == "aten::stack"
    parts = tuple(part for part in parts if is_stack or part != (0,))
    if not parts or len({len(part) for part in parts}) > 1:
        return ()
    first, at = parts[0], call.dim(1, len(parts[0]) + is_stack)
    total = len(parts) if is_stack else sum(part[at] for part in parts)
    return [(*first[:at], total, *first[at + (not is_stack) :])]


def _looked_up(call: Call, made: Sequence[Tensor | None]) -> Returned:
    """Of a table-batched lookup: as many rows as bags, by the offsets, which end each table's."""
    pairs = zip(map(tensors_in, call.op.inputs), call.now, strict=True)
    lists = [(next(old).shape, now[0]) for old, now in pairs if len(now) == 1 and len(now[0]) == 1]
    batch = call.batch
    ends = [
        (old[0] - 1, now[0] - 1)
        for old, now in lists
        if old != now and (old[0] - 1) * batch.new == (now[0] - 1) * batch.old
    ]
    sizes: list[Sizes | None] = []
    for output in made:
        if output is None or len(output.shape) != 2 or not output.shape[0] or not ends:
            sizes.append(None)
            continue
        tables, rest = divmod(ends[-1][0], output.shape[0])
        sizes.append((None if rest else Fraction(ends[-1][1], tables), output.shape[1]))
    return sizes

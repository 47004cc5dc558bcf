"""`rebatch`: the same program at another batch, and products whose operands no longer fit.

Of each tensor it is followed from op to op, by the records of operators, which sizes the batch is a
factor of, and how often (`Powers`); a size that it is a factor of becomes as much larger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import chain
from math import prod
from typing import TypeAlias

from perfmodel.errors import WorkloadError
from perfmodel.ops.edits.leaves import Leaves, first_operand
from perfmodel.ops.edits.leaves import batch_of as batch_of
from perfmodel.ops.edits.named import Edited
from perfmodel.ops.graph import (
    NO_OP,
    Argument,
    Op,
    OpGraph,
    Tensor,
    argument,
    integer,
    integers,
    last_called,
    tensors_in,
    with_tensors,
)
from perfmodel.ops.operators import operator_of

Shape: TypeAlias = tuple[int, ...]
Powers: TypeAlias = tuple[int, ...]
"""Of each dimension, how often the batch is a factor of its size."""
Known: TypeAlias = tuple[Shape, Powers]
_PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm")
_CREATIONS = ("aten::empty", "aten::zeros", "aten::ones", "aten::full")
"""What gives scratch space, whose size need not be any other tensor's."""
_VIEWS = (
    *("view", "_unsafe_view", "reshape", "_reshape_alias", "flatten", "unflatten", "view_as"),
    *("squeeze", "unsqueeze", "squeeze_", "unsqueeze_", "ravel"),
)
_PARTS = ("slice", "narrow", "split", "split_with_sizes", "chunk", "unsafe_split", "tensor_split")
_SHOWN = 5


def rebatch(graph: OpGraph, batch: int, old: int | None = None) -> Edited:
    """`graph` at `batch` samples per rank; `old` is what it was recorded at, found if not given.

    The batch enters where a step's inputs do and is followed through every op: products of it
    (B*T, B*L, flattened) scale with it, parameters and their gradients do not. `skipped` says which
    ops have sizes that could be the batch's or not, and how many lengths were scaled in proportion.
    Raises `WorkloadError` for a batch below 1, where fixed parts of the batch do not come out
    whole, and for a matrix product whose operands no longer fit.
    """
    if type(batch) is not int or batch < 1:
        raise WorkloadError(f"batch {batch!r}: expected an integer of at least 1")
    old = batch_of(graph) if old is None else old
    found = _Follower(graph, old, batch)
    ops = tuple(found.resized(index) for index in range(len(graph)))
    unfit = [
        f"op {index} ({now.name}): operands of {shapes[0]} and {shapes[1]} "
        "do not fit: one of them does not change with the batch"
        for index, (was, now) in enumerate(zip(graph.ops, ops, strict=True))
        if now.name in _PRODUCTS and _unfit(was) is None and (shapes := _unfit(now))
    ]
    if unfit and len(graph.data):
        raise WorkloadError(f"{graph.source}: batch {old} to {batch}: {unfit[0]}")
    skipped = [*unfit[:_SHOWN], *found.leaves.skipped()]
    if found.guessed:
        names = ", ".join(dict.fromkeys(graph.ops[i].name for i in sorted(found.guessed)[:_SHOWN]))
        count = len(found.guessed)
        skipped.append(f"{count} ops have sizes that may be the batch or not ({names}, …): guessed")
    if found.in_proportion:
        skipped.append(f"{found.in_proportion} sizes that the data decides: scaled in proportion")
    stated = sum("lookups" in op.attributes for op in ops)
    if stated:
        kept = "their lookups per table: kept; change the workload instead"
        skipped.append(f"{stated} ops state {kept}")
    note = f"batch {old} rescaled to {batch}"
    return Edited(replace(graph, ops=ops, notes=(*graph.notes, note)), tuple(skipped))


def _unfit(op: Op) -> list[list[int]] | None:
    """Shapes of a product's operands where they do not fit."""
    given = op.inputs[first_operand(op) :][:2]
    shapes = [list(t.shape) for t in given if isinstance(t, Tensor) and len(t.shape) > 1]
    return shapes if len(shapes) > 1 and shapes[0][-1] != shapes[1][-2] else None


class _Follower:
    """Goes through a graph in program order, from batch `old` to `new`.

    What an op returns is known by its record, by the op around it that returns the same tensor, by
    what it called, or by the shapes of its inputs, in this order.
    """

    def __init__(self, graph: OpGraph, old: int, new: int) -> None:
        self.guessed: set[int] = set()
        """Ops some of whose sizes could be the batch's or not."""
        self.in_proportion = 0
        """Sizes that had to be rounded: lists whose length the data decides."""
        self.leaves = Leaves(graph, old)
        self._graph, self._ops, self._old, self._new = graph, graph.ops, old, new
        self._read: list[list[list[Powers]]] = []
        """Per op and argument, of each tensor in it."""
        self._made: list[list[Powers | None]] = []
        self._known: dict[tuple[int, int], tuple[Known, int]] = {}
        """By tensor and storage, with the op that had it last: ids are those of others later."""
        self._stored: defaultdict[int, dict[Shape, Powers]] = defaultdict(dict)
        self._seen: defaultdict[int, set[int]] = defaultdict(set)
        self._last = last_called(self._ops)
        closing: list[list[int]] = [[] for _ in self._ops]
        for index, last in reversed(list(enumerate(self._last))):
            closing[last].append(index)
        for index, op in enumerate(self._ops):
            self._made.append([None] * len(returned_by(op)))
            self._read.append(
                [
                    [self._of_read(index, place, tensor) for tensor in tensors_in(item)]
                    for place, item in enumerate(op.inputs)
                ]
            )
            self._return(index, is_done=False)
            for done in closing[index]:
                self._return(done, is_done=True)

    def _of_read(self, index: int, place: int, tensor: Tensor) -> Powers:
        shape, fixed = tensor.shape, (0,) * len(tensor.shape)
        known = self._known.get((tensor.tensor_id, tensor.storage_id))
        if known and known[0][0] == shape:
            return known[0][1]
        if not shape or self.leaves.is_gradient(index):
            return fixed
        if stored := self._stored.get(tensor.storage_id):
            return stored.get(shape) or self._like(index, shape)
        at = self.leaves.grows_at(index, place, tensor)
        return self._keep(index, tensor, tuple(int(each == at) for each in range(len(shape))))

    def _keep(self, index: int, tensor: Tensor, powers: Powers) -> Powers:
        shape = tensor.shape
        if tensor.storage_id >= 0:
            self._stored[tensor.storage_id][shape] = powers
        if tensor.tensor_id >= 0:
            self._known[tensor.tensor_id, tensor.storage_id] = (shape, powers), index
        for size, power in _values(shape, powers):
            self._seen[size].add(power)
        return powers

    def _return(self, index: int, *, is_done: bool) -> None:
        """What is known of an op's outputs before what it calls, or once all of that is done."""
        made = returned_by(self._ops[index])
        said = [] if is_done or not made else self._said(index, made)
        for at, tensor in enumerate(made):
            if tensor is None or self._made[index][at] is not None:
                continue
            powers = said[at] if at < len(said) else None
            if powers is None or len(powers) != len(tensor.shape):
                # as called by this op, or, before it is done, as an op around it returns it
                known, other = self._known.get((tensor.tensor_id, tensor.storage_id), (None, 0))
                is_near = other > index if is_done else self._last[other] >= index > other
                if known and known[0] == tensor.shape and is_near:
                    powers = known[1]
                elif is_done:
                    powers = self._like(index, tensor.shape)
                else:
                    continue
            self._made[index][at] = self._keep(index, tensor, powers)

    def _said(self, index: int, made: Sequence[Tensor | None]) -> Sequence[Powers | None]:
        """What is known of an op's outputs by its name, or by its record."""
        op, given, first = self._ops[index], self._read[index], made[0]
        name, x = op.name.removeprefix("aten::"), argument(op, 0)
        if name.startswith("fbgemm::") and "embedding" in name and "backward" not in name:
            lists = (each for item in given for each in item if len(each) == 1)
            return [(1, 0) if any(map(sum, lists)) else None] * len(made)
        if name in ("cat", "concat", "stack"):
            is_stack, parts = name == "stack", given[0] if given else []
            shapes = [t.shape for t in op.tensors[: len(parts)]]
            parts = [p for p, shape in zip(parts, shapes, strict=True) if is_stack or shape != (0,)]
            if not parts or len({len(part) for part in parts}) > 1:
                return [None]
            most = tuple(map(max, zip(*parts, strict=True)))
            at = (integer(op, 1) or 0) % (len(most) + is_stack)
            return [(*most[:at], *((0,) if is_stack else ()), *most[at:])]
        if isinstance(x, Tensor) and first is not None:
            powers = given[0][0]
            if name in _VIEWS:
                return [viewed(x.shape, powers, first.shape, self._old)]
            if name == "as_strided" and first.elements <= x.elements and not any(powers):
                return [(0,) * len(first.shape)]
            if name in _PARTS and powers:
                at = (integer(op, 1 if name in ("slice", "narrow") else 2) or 0) % len(powers)
                return [
                    None if part is None else self._part(x.shape[at], powers, part.shape, at)
                    for part in made
                ]
            if name == "permute" and len(order := integers(op, 1) or ()) == len(powers):
                return [tuple(powers[at] for at in order)]
            if name in ("transpose", "swapaxes", "transpose_") and powers:
                a, b = ((integer(op, place) or 0) % len(powers) for place in (1, 2))
                turned = {a: powers[b], b: powers[a]}
                return [tuple(turned.get(at, power) for at, power in enumerate(powers))]
        record = operator_of(op.name)
        alone = {at: given[at][0] for at, one in enumerate(op.inputs) if isinstance(one, Tensor)}
        if record is None or (bound := record.bind(op, alone.get)) is None:
            return []
        return list(record.returned(bound, made, lambda sizes: (0,) * len(sizes)))

    def _part(self, whole: int, powers: Powers, part: Shape, at: int) -> Powers:
        """A stretch of dimension `at`; a small one that is no part of the batch stays."""
        size = part[at] if at < len(part) else 0
        stays = 2 * size <= whole and size % self._old and (whole % size or whole % self._old)
        return (*powers[:at], 0 if stays else powers[at], *powers[at + 1 :])

    def _like(self, index: int, shape: Shape) -> Powers:
        """Like a tensor of the op, or of those around it, of the same shape; else size by size like
        one of that value there, or anywhere before. The batch is in one of them at most; where a
        value has several powers, the first size has the largest, others the least."""
        scopes: list[list[Known]] = []
        around = index
        while around != NO_OP:
            if around < len(self._read):  # outputs that are known, then inputs
                op = self._ops[around]
                made = zip(returned_by(op), self._made[around], strict=True)
                read = zip(op.tensors, chain.from_iterable(self._read[around]), strict=True)
                scopes.append([(t.shape, powers) for t, powers in (*made, *read) if t and powers])
            around = self._ops[around].parent
        for scope in scopes:
            if same := [powers for other, powers in scope if other == shape]:
                return max(same)
        values = [[value for pair in scope for value in _values(*pair)] for scope in scopes]
        is_made = self._ops[index].name.startswith(_CREATIONS)
        found: list[int] = []
        for at, size in enumerate(shape):
            near = next(filter(None, (_of(size, scope, len(shape)) for scope in values)), set())
            is_first = at == 0 and (bool(near) or size == self._old)
            if not near and not (is_made and at):
                near = self._seen.get(size, set())
            is_list = len(shape) == 1 and size > 0 == size % self._old
            usual = int(is_list or (at == 0 and size == self._old))
            power = (max if is_first else min)(near, default=usual)
            if len(near) > 1 or (usual and not near) or (power and any(found)):
                self.guessed.add(index)
            found.append(0 if any(found) else power)
        return tuple(found)

    def resized(self, index: int) -> Op:
        """An op at the new batch: its tensors, lists of their sizes, and what collectives say."""
        op, read = self._ops[index], chain.from_iterable(self._read[index])
        inputs = with_tensors(op.inputs, partial(self._resized, index, read))
        known = zip(self._made[index], returned_by(op), strict=True)
        returned = (powers or () for powers, tensor in known if tensor is not None)
        outputs = with_tensors(op.outputs, partial(self._resized, index, returned))
        if inputs == op.inputs and outputs == op.outputs:
            return op
        given = [*zip(tensors_in(op.inputs), tensors_in(inputs), strict=True)]
        made = [*zip(tensors_in(op.outputs), tensors_in(outputs), strict=True)]
        renamed: dict[Argument, Argument] = {}
        for was, now in (*made, *given):
            renamed.setdefault(was.shape, now.shape)
            renamed.setdefault(was.strides, now.strides)
        inputs = tuple(renamed.get(i, i) if i and isinstance(i, tuple) else i for i in inputs)
        sizes = [
            (sum(was.elements for was, _ in pairs), sum(now.elements for _, now in pairs))
            for pairs in (given, made)
        ]
        return replace(op, inputs=inputs, outputs=outputs, attributes=_exchanged(op, sizes))

    def _resized(self, index: int, each: Iterator[Powers], tensor: Tensor) -> Tensor:
        """A tensor with the sizes of the next of `each`."""
        if not any(powers := next(each, ())):
            return tensor
        pairs = zip(tensor.shape, powers, strict=True)
        shape = tuple(self._size(index, size, power) for size, power in pairs)
        # Strides become as many times what they were as what lies within them in dense memory.
        order = sorted(range(len(tensor.strides)), key=lambda i: (-tensor.strides[i], i))
        strides = list(tensor.strides)
        for at, dim in enumerate(order):
            old, new = (prod(sizes[j] for j in order[at + 1 :]) for sizes in (tensor.shape, shape))
            if old and strides[dim] % old == 0:
                strides[dim] = strides[dim] * new // old
        return replace(tensor, shape=shape, strides=tuple(strides))

    def _size(self, index: int, size: int, power: int) -> int:
        """A size at the new batch; one next to a multiple of the batch stays next to it. Parts of
        the batch must come out whole, what the data decides is rounded."""
        multiple = round(size / self._old) * self._old if power else size
        rest = size - multiple if multiple and abs(size - multiple) == 1 else 0
        found = (size - rest) * Fraction(self._new, self._old) ** power + rest
        if found.denominator > 1:
            if size < self._old:
                raise WorkloadError(
                    f"{self._graph.source}: op {index} ({self._ops[index].name}) splits a batch of "
                    f"{self._old} into parts of {self._old / Fraction(size)}: {self._new} samples "
                    "are no whole number of such parts"
                )
            self.in_proportion += 1
        return round(found)


def _exchanged(op: Op, sizes: Sequence[tuple[int, int]]) -> dict[str, str]:
    """The attributes of an op whose tensors have other `sizes`, elements before and after of those
    that it is given and of those that it returns: what a collective exchanges, and its splits, are
    in proportion to the first of these that changed and divides it."""
    about = dict(op.attributes)
    for side in ("in", "out"):
        key, split = f"{side}_elements", f"{side}_split"
        elements = int(about.get(key, "0"))
        fits = (each for each in sizes if each[0] and each[0] != each[1] and not elements % each[0])
        old, new = next(fits, (1, 1))
        if elements:
            about[key] = str(elements // old * new)
        if elements and split in about:
            parts = (round(int(part) * new / old) for part in about[split].split(","))
            about[split] = ",".join(map(str, parts))
    return about


def returned_by(op: Op) -> tuple[Tensor | None, ...]:
    """The tensors that an op returned, lists opened; None for what is no tensor."""
    items = chain.from_iterable(o if isinstance(o, tuple) else (o,) for o in op.outputs)
    return tuple(item if isinstance(item, Tensor) else None for item in items)


def _values(shape: Shape, powers: Powers) -> Iterator[tuple[int, int]]:
    """Sizes, and numbers of elements, with their powers."""
    yield from zip(shape, powers, strict=True)
    if len(shape) > 1:
        yield prod(shape), sum(powers)


def viewed(was: Shape, powers: Powers, made: Shape, batch: int) -> Powers | None:
    """What `made`, a view of a tensor of shape `was`, has of its powers.

    Neighbours that multiply to the same number stand for each other; of several that one size
    becomes, the one that is the batch itself has its power, else the first that the batch divides,
    else the first. None where the numbers of elements differ.
    """
    if prod(was) != prod(made) or not prod(made):
        return None
    found: list[int] = []
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
        group, total = made[second:high], sum(powers[first:low])
        if was[first:low] == group:
            found += powers[first:low]
            continue
        ranked = sorted(group, key=lambda size: (size == 1, size != batch, size % batch != 0))
        chosen = group.index(ranked[0]) if group else 0
        found += [total if at == chosen else 0 for at in range(len(group))]
    return tuple(found)


def _of(size: int, values: Sequence[tuple[int, int]], rank: int) -> set[int]:
    """Powers of sizes of that value; of a list's also of those next to it, as offsets are."""
    same = {power for value, power in values if value == size}
    if same or rank > 1:
        return same
    return {power for value, power in values if abs(value - size) == 1 < value and power}

"""Activations that lie in host memory between the forward and the backward pass.

Each is copied out behind its last use in the forward pass, and back some nodes of autograd before
the first that reads it, when the device has come so far. Copies of one direction follow one
another, those back behind the batch that is brought meanwhile. Source: PyTorch,
`torch.autograd.graph.save_on_cpu`, and TorchRec's activation stashing, which restores ahead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfmodel.lowering.arguments import STREAM
from perfmodel.lowering.build import COPY_STREAM
from perfmodel.ops.dtypes import item_bytes
from perfmodel.ops.graph import BACKWARD, FORWARD, NO_OP, Argument, Op, Tensor, tensors_in
from perfmodel.workload.eager.recorder import Recorder

LEAST_BYTES = 1 << 20
"""assumed: of smaller tensors copies take longer to launch than to run."""
STASH_STREAM = "stash"
OUT, BACK = {STREAM: STASH_STREAM}, {STREAM: COPY_STREAM}


@dataclass(slots=True)
class _Use:
    """Of a storage: its largest tensor, the last op without a caller that used it in the forward
    pass, the first in the backward pass; whether an op of the forward pass made it."""

    tensor: Tensor
    is_made: bool
    last: int
    first: int = NO_OP


def stashed(r: Recorder, ops: Sequence[Op], most_bytes: float, ahead: int) -> tuple[Op, ...]:
    """`ops` with `most_bytes` of activations, those made first, brought back `ahead` nodes early:
    they are needed last."""
    tops, uses, given = list[int](), dict[int, _Use](), dict[int, Tensor]()
    for at, op in enumerate(ops):
        tops.append(at if op.parent == NO_OP else tops[op.parent])
        for is_made, arguments in ((False, op.inputs), (op.phase == FORWARD, op.outputs)):
            for x in tensors_in(arguments):
                if x.device == r.place:
                    use = uses.setdefault(x.storage_id, _Use(x, is_made, tops[at]))
                    use.tensor = max(use.tensor, x, key=lambda each: each.elements)
                    if op.phase != BACKWARD:
                        use.last = tops[at] if use.first == NO_OP else use.last
                        continue
                    use.first = tops[at] if use.first == NO_OP else use.first
                    if arguments is op.outputs:
                        given[tops[at]] = x
    nodes = sorted({tops[at] for at, op in enumerate(ops) if op.phase == BACKWARD})
    place = {node: number for number, node in enumerate(nodes)}
    behind, before = defaultdict[int, list[Op]](list), defaultdict[int, list[Op]](list)
    moved: dict[int, tuple[int, int]] = {}
    for storage, use in uses.items():
        size_bytes = use.tensor.elements * float(item_bytes([use.tensor.dtype])[0])
        if not use.is_made or use.first == NO_OP or size_bytes < LEAST_BYTES:
            continue
        most_bytes -= size_bytes
        if most_bytes < 0:
            break
        x = r.view(use.tensor, use.tensor.shape, use.tensor.strides)
        host, back = r.tensor(x.shape, x.dtype, place="cpu"), r.like(x)
        first = next(n for n in nodes[max(place[use.first] - ahead, 0) :] if n > use.last)
        reached = [given[n] for n in nodes[: place[first]] if n in given][-1:]
        behind[use.last] += _copy(ops[use.last], (host, x), OUT)
        before[first] += _copy(ops[first], (back, host, *reached), BACK)
        moved[storage] = first, back.storage_id
    return _placed(ops, tops, behind, before, moved)


def _copy(beside: Op, tensors: tuple[Tensor, ...], about: dict[str, str]) -> tuple[Op, Op]:
    """A place for a tensor, and the copy of another into it, once others are `reached`."""
    to, of, *reached = tensors
    given: tuple[Argument, ...] = (to, of, True, *reached)
    copy = Op("aten::copy_", given, (to,), NO_OP, beside.thread, beside.phase, attributes=about)
    return replace(copy, name="aten::empty_strided", inputs=(to.shape,), attributes={}), copy


def _placed(
    ops: Sequence[Op],
    tops: Sequence[int],
    behind: dict[int, list[Op]],
    before: dict[int, list[Op]],
    moved: dict[int, tuple[int, int]],
) -> tuple[Op, ...]:
    """All in order; what is read when it is back is another storage."""

    def now(argument: Argument, at: int) -> Argument:
        if isinstance(argument, tuple):
            return tuple(now(each, at) for each in argument)
        if isinstance(argument, Tensor) and argument.storage_id in moved:
            first, storage = moved[argument.storage_id]
            return replace(argument, storage_id=storage) if at >= first else argument
        return argument

    placed: list[Op] = []
    new = list[int]()
    for at, op in enumerate(ops):
        if op.parent == NO_OP:
            if at:
                placed += behind.pop(tops[at - 1], [])
            placed += before.pop(at, [])
        new.append(len(placed))
        parent = NO_OP if op.parent == NO_OP else new[op.parent]
        given, made = (tuple(now(x, at) for x in each) for each in (op.inputs, op.outputs))
        placed.append(replace(op, inputs=given, outputs=made, parent=parent))
    return tuple(placed)

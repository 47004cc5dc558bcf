"""Activations that lie in host memory between the forward and the backward pass.

Each is copied out behind its last use in the forward pass, and back some nodes of autograd before
the first that reads it, when the device has come so far. Copies of one direction follow one
another, those back behind the batch that is brought meanwhile. Source: TorchRec's activation
stashing, which restores ahead; PyTorch, `torch.autograd.graph.save_on_cpu`.
"""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from perfmodel.lowering.arguments import STREAM
from perfmodel.lowering.draft import COPY_STREAM
from perfmodel.ops.graph import BACKWARD, FORWARD, NO_OP, Op, Tensor, tensors_in, with_tensors
from perfmodel.ops.spec import item_bytes
from perfmodel.workload.eager.recorder import Recorder

LEAST_BYTES = 1 << 20  # assumed: of smaller tensors copies take longer to launch than to run
STASH_STREAM = "stash"


def stashed(r: Recorder, ops: Sequence[Op], most_bytes: float, ahead: int) -> tuple[Op, ...]:
    """`ops` with `most_bytes` of activations, those made first, brought back `ahead` nodes early:
    they are needed last."""
    tops, largest, given = list[int](), dict[int, Tensor](), dict[int, Tensor]()
    made, last, first = set[int](), dict[int, int](), dict[int, int]()  # by storage; uses by node
    for at, op in enumerate(ops):
        tops.append(top := at if op.parent == NO_OP else tops[op.parent])
        for arguments in (op.inputs, op.outputs):
            for x in (x for x in tensors_in(arguments) if x.device == r.place):
                key = x.storage_id
                if key not in largest and arguments is op.outputs and op.phase == FORWARD:
                    made.add(key)
                largest[key] = max(largest.get(key, x), x, key=lambda each: each.elements)
                if op.phase == BACKWARD:
                    first.setdefault(key, top)
                    given |= {top: x} if arguments is op.outputs else {}
                elif key not in first:
                    last[key] = top
    nodes = sorted({top for op, top in zip(ops, tops, strict=True) if op.phase == BACKWARD})
    added, moved = defaultdict[int, list[Op]](list), dict[int, tuple[int, int]]()
    for key, x in largest.items():
        size_bytes = x.elements * item_bytes(x.dtype)
        if key not in made or key not in first or size_bytes < LEAST_BYTES:
            continue
        if (most_bytes := most_bytes - size_bytes) < 0:
            break
        behind = next(at for at in range(last[key] + 1, len(ops)) if ops[at].parent == NO_OP)
        early = nodes[max(bisect(nodes, first[key]) - 1 - ahead, 0) :]
        node = next(node for node in early if node > last[key])
        reached = [gradient for at, gradient in given.items() if at < node][-1:]
        x = r.view(x, x.shape, x.strides)
        host, back = r.tensor(x.shape, x.dtype, place="cpu"), r.like(x)
        added[behind] += _copy(ops[last[key]], STASH_STREAM, host, x)
        added[node] += _copy(ops[node], COPY_STREAM, back, host, *reached)
        moved[key] = node, back.storage_id

    def now(at: int, held: Tensor) -> Tensor:
        """What is read when it is back is another storage."""
        since, storage = moved.get(held.storage_id, (len(ops), 0))
        return replace(held, storage_id=storage) if at >= since else held

    placed, new = list[Op](), list[int]()
    for at, op in enumerate(ops):
        placed += added.get(at, [])
        new.append(len(placed))
        parent = NO_OP if op.parent == NO_OP else new[op.parent]
        inputs, outputs = (with_tensors(it, partial(now, at)) for it in (op.inputs, op.outputs))
        placed.append(replace(op, inputs=inputs, outputs=outputs, parent=parent))
    return tuple(placed)


def _copy(beside: Op, stream: str, to: Tensor, of: Tensor, *reached: Tensor) -> tuple[Op, Op]:
    """A place for a tensor, and the copy of another into it, once others are `reached`."""
    about, where = {STREAM: stream}, (NO_OP, beside.thread, beside.phase)
    copy = Op("aten::copy_", (to, of, True, *reached), (to,), *where, attributes=about)
    return replace(copy, name="aten::empty_strided", inputs=(to.shape,), attributes={}), copy

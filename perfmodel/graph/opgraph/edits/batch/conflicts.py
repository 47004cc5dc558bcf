"""Matrix products whose operands no longer fit after a change of the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfmodel.graph.ops import Op, Tensor

_OPERANDS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
"""Position of the left one; the right one follows."""


def conflicts(old: Sequence[Op], new: Sequence[Op]) -> Iterator[str]:
    """A text for each product of `new` whose inner sizes differ, and did not in `old`."""
    for index, (was, now) in enumerate(zip(old, new, strict=True)):
        at = _OPERANDS.get(now.name)
        if at is None or _fits(now, at) or not _fits(was, at):
            continue
        left, right = now.inputs[at : at + 2]
        assert isinstance(left, Tensor)
        assert isinstance(right, Tensor)
        yield (
            f"op {index} ({now.name}): operands of {list(left.shape)} and {list(right.shape)} "
            "do not fit: one of them does not change with the batch"
        )


def _fits(op: Op, at: int) -> bool:
    operands = op.inputs[at : at + 2]
    shapes = [item.shape for item in operands if isinstance(item, Tensor) and len(item.shape) > 1]
    return len(shapes) < 2 or shapes[0][-1] == shapes[1][-2]

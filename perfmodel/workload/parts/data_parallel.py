"""`DistributedDataParallel`: gradients into buckets, an all-reduce per bucket, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from perfmodel.graph.ops import Tensor
from perfmodel.ops.storage import item_bytes
from perfmodel.workload.eager.creation import copy, to_dtype
from perfmodel.workload.eager.recorder import Recorder, contiguous
from perfmodel.workload.eager.views import as_strided
from perfmodel.workload.parts.exchange import GROUP, all_reduce

FIRST_BUCKET_BYTES = 1 << 20
"""The first all-reduce starts early.

Source: PyTorch, `DistributedDataParallel`, default of the first bucket.
"""
LABEL = "DistributedDataParallel.forward"


@dataclass
class Reducer:
    """The buckets of one module, filled as its gradients arrive, to `bucket_bytes` at least."""

    parameters: Sequence[Tensor]
    ranks: int
    bucket_bytes: int
    group: str = GROUP
    left: int = 0
    held: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    buckets: list[tuple[Tensor, list[tuple[Tensor, Tensor]]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.left = len(self.parameters)

    def arrived(self, r: Recorder, parameter: Tensor, gradient: Tensor) -> None:
        """One gradient: scaled into its bucket; a full bucket is reduced."""
        self.left -= 1
        _scale(r, gradient)
        self.held.append((parameter, gradient))
        limit = self.bucket_bytes if self.buckets else min(FIRST_BUCKET_BYTES, self.bucket_bytes)
        elements = sum(held.elements for _, held in self.held)
        if elements * item_bytes([gradient.dtype])[0] >= limit or not self.left:
            bucket = r.tensor((elements,), gradient.dtype)
            all_reduce(r, bucket, self.ranks, group=self.group)
            self.buckets.append((bucket, self.held))
            self.held = []

    def finish(self, r: Recorder) -> None:
        """After the backward pass: the reduced gradients out of the buckets."""
        for bucket, held in self.buckets:
            parts, start = [], 0
            for _, gradient in held:
                parts.append(
                    as_strided(r, bucket, gradient.shape, contiguous(gradient.shape), start)
                )
                start += gradient.elements
            for (parameter, gradient), part in zip(held, parts, strict=True):
                r.begin("torch.distributed.ddp.reducer::copy_bucket_to_grad", parameter)
                copy(r, gradient, part)
                r.end()


def _scale(r: Recorder, gradient: Tensor) -> None:
    """The gradient divided by the number of ranks, into its place in the bucket."""
    place = r.tensor(gradient.shape, gradient.dtype)
    share = r.tensor((), "fp64", place="cpu")
    r.begin("torch::distributed::reducer::mul_out", gradient)
    r.begin("aten::mul", gradient, share, place)
    if r.is_cpu:
        to_dtype(r, share, gradient.dtype)
    r.end(place)
    r.end()

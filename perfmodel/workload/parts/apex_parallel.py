"""Apex's `DistributedDataParallel`: gradients flattened into buckets, reduced, and put back.

Source: apex/parallel/distributed.py of NVIDIA/apex (`allreduce_bucket`, `allreduce_maybe_retain`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.joins import cat
from perfmodel.workload.eager.recorder import Recorder, contiguous
from perfmodel.workload.eager.views import view
from perfmodel.workload.parts.exchange import all_reduce

BUCKET_ELEMENTS = 10_000_000
"""`message_size`, the least that a bucket holds unless no more gradients come."""


@dataclass
class ApexReducer:
    """The buckets of one module whose `parameters` are reduced over `ranks`."""

    parameters: Sequence[Tensor]
    ranks: int
    arrived_count: int = 0
    held: list[Tensor] = field(default_factory=list)
    buckets: list[tuple[Tensor, list[Tensor]]] = field(default_factory=list)

    def arrived(self, r: Recorder, parameter: Tensor, gradient: Tensor) -> None:
        """One gradient, of this module or of another; a full bucket is flattened and reduced."""
        if all(parameter.tensor_id != own.tensor_id for own in self.parameters):
            return
        self.arrived_count += 1
        self.held.append(gradient)
        is_last = self.arrived_count == len(self.parameters)
        if is_last or sum(held.elements for held in self.held) >= BUCKET_ELEMENTS:
            flat = [view(r, held, (held.elements,)) for held in self.held]
            bucket = cat(r, flat, 0, tracked=False)
            all_reduce(r, bucket, self.ranks)
            self.buckets.append((bucket, self.held))
            self.held = []

    def finish(self, r: Recorder) -> None:
        """After the backward pass: sums to means, and from the buckets to the gradients."""
        for bucket, held in self.buckets:
            r.leaf("aten::mul_", (bucket, 1.0 / self.ranks), bucket)
            parts = tuple(r.view(bucket, each.shape, contiguous(each.shape)) for each in held)
            r.leaf("aten::_foreach_copy_", (tuple(held), parts), tuple(held))

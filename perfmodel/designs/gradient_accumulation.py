"""Gradient accumulation: a step of several micro-batches, dense gradients summed once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.designs import settings
from perfmodel.designs.deployment import Deployment
from perfmodel.errors import WorkloadError


@dataclass(frozen=True)
class GradientAccumulation(settings.Checked, of="gradient_accumulation"):
    """A batch in equal micro-batches, one after the other: less memory, layers updated once.

    Dense gradients of `micro_batches` are added up and reduced over ranks with the last. Rows are
    exchanged, and updated by the optimizer fused into each backward pass, with every one: FBGEMM
    has no gradients of tables to keep.

    Source: PyTorch, `DistributedDataParallel.no_sync`; TorchRec's fused optimizers. Peers predict
    it for transformers (SimuMax), none for tables.
    """

    micro_batches: settings.SomeCount = 4

    def apply(self, deployment: Deployment) -> Deployment:
        """Each micro-batch that there is in so many."""
        samples = deployment.samples
        if not deployment.train:
            raise WorkloadError("gradient_accumulation: inference has no gradients")
        if self.micro_batches > samples:
            raise WorkloadError(
                f"gradient_accumulation: {self.micro_batches} micro-batches of the {samples} "
                "samples of a rank"
            )
        parts = tuple(
            replace(part, samples_frac=part.samples_frac / self.micro_batches)
            for part in deployment.pipeline.micro_batches
            for _ in range(self.micro_batches)
        )
        return deployment.with_(pipeline=replace(deployment.pipeline, micro_batches=parts))

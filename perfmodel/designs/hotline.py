"""Hotline: popular samples while rows for the others come from host memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from perfmodel.designs.budget import halved
from perfmodel.designs.deployment import DESIGNS, Deployment, Design
from perfmodel.designs.popular import LEAST_MIB, MIB, popular, require_settings
from perfmodel.placement import MicroBatch

SAMPLES = 8
"""A device's popular samples, where there are as many, come in multiples of so many, the rest with
the others: else products in 16 bits miss the matrix units (NVIDIA, Linear/Fully-Connected Layers
User's Guide). assumed of the accelerator."""


@DESIGNS.register("hotline")
@dataclass(frozen=True)
class Hotline:
    """Popular samples run from hot rows on every GPU while an accelerator gathers others' rows.

    The accelerator is beside the host's memory. `hot_mib` of every GPU hold the most popular rows
    of all tables. `popular_frac` is a measured share of the samples that need no other; without it,
    lookups are taken as independent. Learning the rows and parting the batch happen in the
    accelerator, beside the step before.

    Source: Adnan et al., Heterogeneous Acceleration Pipeline for Recommendation System Training
    (ISCA 2024, arXiv 2204.05436), abstract; the mechanism and 512 MB recalled.
    """

    hot_mib: float = 512.0
    popular_frac: float | None = None

    def __post_init__(self) -> None:
        require_settings("hotline", self.hot_mib, self.popular_frac)

    def apply(self, deployment: Deployment) -> Deployment:
        found = popular(deployment, self.hot_mib * MIB, popular_frac=self.popular_frac)
        share = _in_multiples(found.popular_frac, deployment.batch // deployment.ranks)
        parts = (MicroBatch(share, popular=True), MicroBatch(1.0 - share))
        pipeline = replace(
            deployment.pipeline,
            micro_batches=tuple(part for part in parts if part.samples_frac),
            input_ahead=True,
            rows_beside=True,
            writes_behind=True,
        )
        return deployment.with_(
            found.note,
            "assumed: the accelerator gathers rows as fast as the host's cores do",
            placement=found.placement,
            pipeline=pipeline,
        )

    def within(self, deployment: Deployment) -> Iterable[Design]:
        """With fewer hot rows."""
        return [replace(self, hot_mib=size) for size in halved(self.hot_mib, LEAST_MIB)]


def _in_multiples(popular_frac: float, samples: int) -> float:
    """Of a device's `samples`, the share that run as popular ones."""
    found = round(popular_frac * samples)
    if not SAMPLES <= found < samples:
        return popular_frac
    return found // SAMPLES * SAMPLES / samples

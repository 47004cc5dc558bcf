"""Settings for the SmartNIC co-design of Guo et al. (ICS 2023), fixed before any prediction.

Of the paper only the abstract could be read: 2.1 times less latency in inference, 1.6 times the
throughput in training. Its machines, models and cache sizes are not in it; what stands here is
believed of them, not fitted to these two figures. The first of each axis is the centre.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

LATENCY, THROUGHPUT = 2.1, 1.6
SOURCE = (
    "Guo et al., Software-Hardware Co-design of Heterogeneous SmartNIC System for Recommendation "
    "Models Inference and Training (ICS 2023), abstract: read"
)


@dataclass(frozen=True)
class Setting:
    """One point of the box; bytes of caches are per adapter, batches per rank."""

    device: str = "a100-sxm-40gb"
    adapter: str = "u280"
    ranks: int = 16
    cache_gib: float = 4.0
    remote_frac: float = 0.5
    pooling: float = 15.8
    alpha: float = 1.09
    inference_batch: int = 256
    training_batch: int = 2048


CENTRE = Setting()

AXES: dict[str, tuple[float | str, ...]] = {
    "adapter": ("u280", "bluefield-2", "bluefield-3"),
    "ranks": (16, 4, 8, 32, 64),
    "cache_gib": (4.0, 0.25, 1.0, 8.0),
    "remote_frac": (0.5, 0.25, 0.75),
    "pooling": (15.8, 1.0, 4.0),
    "alpha": (1.09, 0.8, 1.2),
    "inference_batch": (256, 64, 1024, 2048),
    "training_batch": (2048, 512, 4096),
}
"""What the box spans, axis by axis."""

ASSUMED = (
    "workload smartnic-rm: DLRM_open_source's layers, 13 tables per GPU, locality of "
    "dlrm_datasets 2021 (the authors work at Meta): sources in its file; table-wise, fp32 rows",
    "one A100 40 GB and one adapter per node: assumed (one rank per adapter, so that what a rank "
    "looks up elsewhere crosses the network, the bottleneck that the abstract names)",
    "adapter u280: assumed, an FPGA card with HBM, as in the group's earlier work on FPGA NICs; "
    "half of its 8 GiB holds rows, half of them remote ones: assumed",
    "pooling 1 (one-hot, as Criteo) to 15.8 (dlrm_datasets 2021); exponents 0.8 to 1.2 about the "
    "1.09 of dlrm_datasets 2021: box assumed",
    "batches per rank 512 to 4,096 in training as in Lin et al. 2022; 64 to 2,048 in inference: "
    "assumed",
    "baseline: the same machine and wire rate without caches or kernels in the adapter: assumed",
)


def settings(axis: str, start: Setting = CENTRE) -> tuple[Setting, ...]:
    """`start` with each value of one axis in turn."""
    changes: list[dict[str, Any]] = [{axis: value} for value in AXES[axis]]
    return tuple(replace(start, **change) for change in changes)

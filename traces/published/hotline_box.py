"""Settings for Hotline, FAE and their baselines, fixed before anything was predicted.

Of both papers only the abstracts could be read, of FAE its repository as well; the server and the
workloads of Hotline are recalled. The first of each axis is the centre.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

HOTLINE_OVER_HYBRID = 2.2
FAE_OVER_CPU, FAE_OVER_CPU_GPU = 2.3, 1.52
TOLERANCE_PCT = 30.0
ORDER = (1.0, HOTLINE_OVER_HYBRID)
"""Hotline over FAE, and FAE over the hybrid: each at least 1 (Hotline >= FAE > hybrid), and no more
than both together are published to be."""
HOTLINE_SOURCE = "Hotline (Adnan et al., ISCA 2024; arXiv 2204.05436v2), abstract: read"
FAE_SOURCE = "FAE (Adnan et al., VLDB 2022; arXiv 2103.00686v3), abstract: read"


@dataclass(frozen=True)
class Setting:
    """One point of the box; batches and rates are those of the whole server."""

    machine: str = "hotline-server"
    dram_gb_per_s: float = 76.8
    gpus: int = 4
    alpha: float = 1.05
    hotline_mib: float = 512.0
    fae_mib: float = 256.0
    batch_factor: float = 1.0


CENTRE = Setting()

AXES: dict[str, tuple[Any, ...]] = {
    "dram_gb_per_s": (76.8, 153.6, 230.4),
    "gpus": (4, 1, 2),
    "alpha": (1.05, 0.9, 1.2),
    "hotline_mib": (512.0, 128.0, 256.0),
    "fae_mib": (256.0, 128.0, 512.0),
    "batch_factor": (1.0, 0.25, 4.0),
}
"""What the box spans, axis by axis."""

CPU_MACHINE = "hotline-cpus"

HOTLINE_BATCH = {
    "hotline-rm1": 4_096,
    "hotline-rm2": 4_096,
    "hotline-rm3": 4_096,
    "hotline-rm4": 4_096,
}
FAE_BATCH = {"criteo-kaggle": 4_096, "taobao": 1_024, "hotline-rm3": 4_096, "avazu": 4_096}
"""Workload to global batch on four GPUs; the speed-up is the mean over all workloads."""

SAMPLED_FRAC = {"criteo-kaggle": 0.05, "taobao": 0.2, "hotline-rm3": 0.05, "avazu": 0.05}
"""Inputs that FAE counts rows on. Source: its repository."""
INPUTS = {"criteo-kaggle": 39.3e6, "taobao": 10e6, "hotline-rm3": 4.195e9, "avazu": 36.4e6}
"""Inputs of the training sets. Source: hpcaitech/CacheEmbedding (Kaggle), facebookresearch/dlrm
(Terabyte); Avazu's 40.4 million less a tenth: recalled; Taobao: assumed."""
SWITCH_EVERY_STEPS = 64
"""Mini-batches of one kind before those of the other. assumed"""

ASSUMED = (
    "server hotline-server: V100 16 GB, Xeon Silver 4116 and 76.8 GB/s recalled; two sockets, and "
    "that rate for both together, assumed",
    "batch 4,096 on four GPUs: FAE's repository has 1,024 (Taobao 256), taken per GPU: assumed",
    "workloads hotline-rm1 to rm4 recalled; Taobao's attention left out; FAE's terabyte model is "
    "hotline-rm3: assumed",
    "skew: Zipf 1.05 for every table, as NVIDIA's synthetic models; samples' lookups independent",
    "hot rows: 512 MiB (Hotline, recalled), 256 MiB (FAE, default of its repository)",
    "baselines run the operators of PyTorch 2: tables and their optimizer on the CPU, pooled rows "
    "sent to data-parallel GPUs: assumed",
    "FAE switches between hot and cold mini-batches every 64 steps; learning the hot rows is done "
    "once, and left out of the step: assumed",
)

XDL_ASSUMED = (
    "XDL is not modelled: the operators of PyTorch 2 stand in its place. FAE's abstracts have XDL "
    "1.54 times as fast as its repository's own CPU-GPU baseline (2.34 / 1.52)",
    "of XDL was read (alibaba/x-deeplearning): TensorFlow 1.12 or MXNet 1.3 for the layers, with "
    "parameters and gradients copied in and out; per table, rows of distinct keys copied out and "
    "updated by one thread without a call for each; not its model's code, its reader's "
    "threads, or a rate",
)
INTEL_ASSUMED = (
    "Intel's DLRM is not modelled: PyTorch's operators stand in its place, one process for all "
    "GPUs, as FAE's repository has it; by what is published of FAE (2.34 times its repository's "
    "baseline, 2.4 / 1.2 times Intel's: arXiv 2404.04270, abstract) the two are a sixth apart",
)


def settings(axis: str) -> tuple[Setting, ...]:
    """The centre with each value of one axis in turn."""
    return tuple(replace(CENTRE, **{axis: value}) for value in AXES[axis])

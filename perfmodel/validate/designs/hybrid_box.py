"""Settings for NVIDIA's extra-large DLRM with tables in host memory, fixed before anything was
predicted."""

from __future__ import annotations

from perfmodel.designs.hybrid import OnHost

WORKLOAD = "nvidia-dlrm-extra-large"
BATCH = 65_536
SAMPLES_PER_S = {"gpu-only": 12.1e6, "hybrid": 768e3, "cpu-only": 17.7e3}
GPU_OVER_HYBRID = 15.8
FACTOR = 1.5
"""A prediction holds within this factor, either way."""
SOURCE = (
    "NVIDIA/DeepLearningExamples, TensorFlow2/Recommendation/DLRM/README.md: read in the repository"
)
GPU_MACHINE, CPU_DEVICE, CPU_SOCKETS = "dgx-a100-80gb", "epyc-7742", 2
HOST_TABLE_BYTES = 60e9
"""Larger tables are in host memory, the four of 62 to 140 GiB. Source: embedding.py of the example:
the smallest tables stay on the GPU, as many as 70 GiB hold (`memory_threshold`)."""
HOST_LOOKUPS: OnHost = "host"
"""All threads of the host share the rows of a gather or a scatter, as TensorFlow's were measured to
(`traces/tensorflow_cpu`), where PyTorch's update of a table is as serial as its popular rows."""
ASSUMED = (
    "hybrid: one A100 80 GB with both CPUs of a DGX A100, mixed precision; the four tables above "
    "60 GB in host memory, looked up and updated by the CPU",
    "hybrid: rows shared among all threads, as measured of TensorFlow; taken so after PyTorch's "
    "operators had given 540,000 to 680,000 per second",
    "CPU-only: one process on two sockets, fp32, batch 65,536, no XLA: assumed; PyTorch's "
    "operators for those of TensorFlow's that share their work among threads; serial ones measured "
    "on two cores (traces/tensorflow_cpu), which scale with the host's single-thread speed",
    "CPU-only: modelled so after PyTorch's operators alone, on two ranks, had given 71,000 per "
    "second",
    "skew: Zipf 1.05 for every table: assumed, as NVIDIA's synthetic models",
)

"""Settings for NVIDIA's extra-large DLRM with tables in host memory, fixed before anything was
predicted."""

from __future__ import annotations

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
"""Larger tables are in host memory, the four of 62 to 140 GiB; the others fit one A100. Source:
the example has such a threshold (`cpu_offloading_threshold_gb`), recalled; its value assumed."""
ASSUMED = (
    "hybrid: one A100 80 GB with both CPUs of a DGX A100, mixed precision; the four tables above "
    "60 GB in host memory, looked up and updated by the CPU: assumed",
    "CPU-only: one process on two sockets, fp32, batch 65,536, no XLA: assumed; PyTorch's "
    "operators for those of TensorFlow's that share their work among threads; serial ones measured "
    "on two cores (traces/tensorflow_cpu), which scale with the host's single-thread speed",
    "CPU-only: modelled so after PyTorch's operators alone, on two ranks, had given 71,000 per "
    "second",
    "skew: Zipf 1.05 for every table: assumed, as NVIDIA's synthetic models",
)

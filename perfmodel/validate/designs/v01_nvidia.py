"""NVIDIA's DLRM: the MLPerf submission in HugeCTR, and its TensorFlow 2 example."""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.units import US_PER_MS
from perfmodel.validate.designs.figures import CASES, Figure
from perfmodel.validate.designs.lab import Lab
from perfmodel.validate.published import SOFTWARE
from perfmodel.workload import Workload, load_workload

MS = "ms"
EXAMPLE = (
    "NVIDIA/DeepLearningExamples, TensorFlow2/Recommendation/DLRM/README.md: global batch 65,536; "
    "read in the repository"
)
ASSUMED = (
    "kernels between products: the clusters that TensorFlow 2.12 makes of a graph like it; each "
    "moves its operands once",
    "the host waits for half a cycle of Horovod before an exchange (0.2 ms by its Dockerfile, and "
    "the timer's slack), then for the device: as in 0.24.3 as released, of which the container has "
    "NVIDIA's build",
    "per operator the host spends as much as PyTorch's: TensorFlow's executor took 1 us on a CPU "
    "(traces/tensorflow_cpu), but without a device's runtime, and with that NVIDIA's published "
    "latencies of inference (1.33 ms on an A100) come out at half",
    "the batch is copied within the step: its dataset goes on after prefetch_to_device",
    "skew of the rows: alpha 1.05",
    "modelled from its source after a stand-in had missed these figures, once more after they had "
    "come out 20 to 30 % too fast, and a third time (copies, waits, clusters' calls, Horovod's "
    "buffer) after 18 to 34 %; nothing in it is fitted",
)


FITTED = (
    "unmodelled_sample_bytes of the workload was fitted to the median rate of submissions of v1.1 "
    "to v2.0 on one node of 8 A100 SXM 80 GB: {}"
)
LATER = (
    ("v2.0", "8 A100", "dgx-a100-80gb", 1, 55_296, 1.355, "dgxa100_ngc22.04_merlin_hugectr"),
    ("v2.0", "64 A100", "dgx-a100-80gb", 8, 71_680, 0.613, "dgxa100_n8_ngc22.04_merlin_hugectr"),
    ("v1.1", "112 A100", "dgx-a100-80gb", 14, 71_680, 0.603, "dgxa100_n14_ngc21.09_merlin_hugectr"),
    ("v2.1", "8 H100", "dgx-h100", 1, 55_296, 0.855, "dgxh100_preview"),
    ("v2.1", "32 H100", "dgx-h100", 4, 71_680, 0.481, "dgxh100_n4_preview"),
)
"""Round, GPUs, node and how many, global batch, milliseconds of an iteration (from one evaluation
to the next, over the iterations between), and the result of NVIDIA's in whose log that was read."""


@CASES.register("V1")
def hugectr(lab: Lab) -> Iterator[Figure]:
    """One DGX A100 in v1.0, global batch 55,296, evaluations left out; and later rounds."""
    workload = load_workload("dlrm-mlperf").with_(evaluation__included=False)
    earlier = workload.with_(implementation__indices_ahead=False)
    yield Figure(
        "V1-mlperf",
        "HugeCTR, MLPerf v1.0, 8 A100",
        MS,
        1.546,
        lab.step(earlier, lab.machine("dgx-a100-80gb")).step_us / US_PER_MS,
        25.0,
        "training_results_v1.0, NVIDIA dgxa100_ngc21.05_merlin_hugectr, result_0: read in the log",
        (FITTED.format("not to this one"),),
    )
    for round_, gpus, node, nodes, batch, target, result in LATER:
        machine = lab.machine(node, nodes=nodes)
        is_seen = (round_, nodes) == ("v2.0", 1)
        yield Figure(
            f"V1-mlperf-{round_}-{gpus.replace(' ', '-').lower()}",
            f"HugeCTR, MLPerf {round_}, {gpus}",
            MS,
            target,
            lab.step(workload, machine, batch=batch).step_us / US_PER_MS,
            25.0,
            f"training_results_{round_}, NVIDIA {result}, result_0: read in the log",
            (FITTED.format("this one is one of nine" if is_seen else "not to this one"),),
        )


def _example(size: str, precision: str = "fp16") -> Workload:
    """NVIDIA's TensorFlow 2 example."""
    software = SOFTWARE["TF2 + distributed-embeddings"]
    exchange = "fp16" if precision == "fp16" else "fp32"
    return load_workload(f"nvidia-dlrm-{size}").with_(
        **software,
        implementation__precision=precision,
        implementation__exchange_precision=exchange,
    )


@CASES.register("V2")
def several(lab: Lab) -> Iterator[Figure]:
    """Eight A100 80 GB: the large and the extra-large model, mixed precision and TF32."""
    machine = lab.machine("dgx-a100-80gb")
    published = {
        ("large", "fp16"): 4.92,
        ("extra-large", "fp16"): 5.42,
        ("large", "tf32"): 6.98,
        ("extra-large", "tf32"): 6.60,
    }
    for (size, precision), target in published.items():
        workload = _example(size, precision)
        yield Figure(
            f"V2-{size}-{'amp' if precision == 'fp16' else precision}",
            f"NVIDIA's {size} DLRM, {precision}, 8 A100 80 GB",
            MS,
            target,
            lab.step(workload, machine).step_us / US_PER_MS,
            30.0,
            EXAMPLE,
            ASSUMED,
        )


@CASES.register("V3")
def alone(lab: Lab) -> Iterator[Figure]:
    """The small model on one GPU, mixed precision."""
    for name, target in (("a100-sxm-80gb", 14.66), ("v100-sxm2-32gb", 31.8)):
        machine = lab.machine(name)
        yield Figure(
            f"V3-small-{name.partition('-')[0]}",
            f"NVIDIA's small DLRM, mixed precision, one {name}",
            MS,
            target,
            lab.step(_example("small"), machine).step_us / US_PER_MS,
            25.0,
            EXAMPLE,
            ASSUMED,
        )


@CASES.register("V15")
def multi_hot(lab: Lab) -> Iterator[Figure]:
    """Bytes looked up per sample: multi-hot DLRM-DCNv2 over one-hot DLRM."""
    read = {
        name: sum(table.pooling * table.dim for table in load_workload(name).tables)
        for name in ("dlrm-dcnv2", "dlrm-mlperf")
    }
    yield Figure(
        "V15-multi-hot",
        "bytes looked up per sample, DLRM-DCNv2 over DLRM",
        "ratio",
        8.23,
        read["dlrm-dcnv2"] / read["dlrm-mlperf"],
        0.02,
        "exact: 214 lookups over 26 (facebookresearch/dlrm, torchrec_dlrm/README.MD)",
    )

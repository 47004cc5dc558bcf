"""NVIDIA's DLRM: the MLPerf submissions in HugeCTR."""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.evaluate.published_designs import Figure, Lab, case
from perfmodel.units import US_PER_MS
from perfmodel.workload import load_workload

MS = "ms"
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


@case("V1")
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


@case("V15")
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

"""Random workloads and machines, and machines with more of one resource: cases of `sense.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.designs import Deployment, deployment_of
from perfmodel.errors import HardwareError, PerfmodelError
from perfmodel.hardware import Cluster, Part, cluster, load, names
from perfmodel.hardware.schema import figure_values
from perfmodel.hardware.settings import with_settings
from perfmodel.workload import Workload, load_workload
from perfmodel.workload.load import workload_from_document

NODES = tuple(name for name in names("node") if name != "hotline-cpus")
ADAPTERS = ("", "bluefield-3", "u280")
DRIVES = ("pm9a3", "p5800x", "p4800x")

RESOURCES = (
    *("device.hbm_bytes", "device.hbm_gb_per_s", "device.l2_bytes", "device.l2_gb_per_s"),
    *("device.llc_bytes", "device.llc_gb_per_s", "device.shared_bytes_per_sm"),
    *("device.max_threads_per_sm", "device.boost_mhz", "device.max_sustained_mhz"),
    *("device.sm_count", "device.gemm_peak_frac", "device.stream_peak_frac", "device.tdp_w"),
    *(f"device.{each}_tflop_per_s" for each in ("fp32", "fp32_matrix", "tf32", "fp16", "bf16")),
    *(f"device.{each}_tflop_per_s" for each in ("fp8", "fp4", "int8")),
    *("device.pcie_gb_per_s", "device.link_gb_per_s", "device.base_mhz"),
    *("host.cores", "host.boost_mhz", "host.single_thread_ratio", "host.dram_gb_per_s"),
    *("link.gb_per_s", "node.host_memory_bytes", "node.nics", "node.drives", "node.sockets"),
    *("nic.gb_per_s", "nic.messages_per_us", "nic.exchange_frac", "nic.cores"),
    *("nic.memory_bytes", "nic.memory_gb_per_s", "nic.engine_rows_per_us"),
    *("nic.descriptors_per_us", "nic.pcie_gb_per_s"),
    *("storage.read_gb_per_s", "storage.write_gb_per_s", "storage.read_iops"),
    *("storage.small_read_iops", "storage.capacity_bytes"),
    *("accelerator.engines", "accelerator.rows_in_flight", "accelerator.memory_gb_per_s"),
    *("accelerator.pcie_gb_per_s", "accelerator.keys_per_us", "accelerator.input_bytes"),
)
"""Figures of which more is never worse."""
DELAYS = (
    *("device.kernel_floor_us", "nic.latency_us", "storage.read_latency_us"),
    *("storage.sector_bytes", "accelerator.memory_latency_us", "accelerator.start_us"),
    "node.gpus_per_uplink",
)
"""Figures of which less is never worse."""
NO_RESOURCE = (
    *("device.target", "device.architecture", "device.compute_capability", "device.memory_kind"),
    *("device.usual_node", "device.usual_host", "device.price_usd", "device.calibration"),
    *("host.tdp_w", "host.price_usd", "link.topology", "link.peers", "nic.network", "nic.tdp_w"),
    *("nic.price_usd", "storage.drive_writes_per_day", "storage.tdp_w", "storage.price_usd"),
    *("accelerator.tdp_w", "accelerator.price_usd", "node.gpus", "node.link_domain_gpus"),
    *("node.power_w", "node.price_usd", "node.price_usd_per_hour", "cluster.nodes"),
)
"""Names, prices, and numbers of devices, among which the same batch is parted otherwise."""
_RATES = tuple(each for each in RESOURCES if each.endswith("_tflop_per_s"))
TOGETHER = {
    "multiprocessors, each as fast": ("device.sm_count", "device.l2_gb_per_s", *_RATES),
    "clock": (
        *("device.boost_mhz", "device.max_sustained_mhz", "device.l2_gb_per_s"),
        *_RATES,
    ),
    "sockets and cores": ("node.sockets", "host.cores"),
}
"""Figures that follow from one thing."""
FACTORS = (1.1, 1.5, 2.0, 4.0)


@dataclass(frozen=True)
class Case:
    """One deployment that designs edit."""

    name: str
    start: Deployment


def drawn_workload(generator: np.random.Generator, name: str) -> Workload:
    """A DLRM: 2 to 40 tables of 10^3 to 10^8 rows, small to large layers; in a third, tables of
    many dims and poolings."""

    def power(low: float, high: float) -> int:
        return round(2.0 ** generator.uniform(low, high))

    count, dim = power(1, 5.3), int(generator.choice([16, 32, 64, 128]))
    kind = str(generator.choice(["dot", "cat", "dcn_v2"]))
    pooling: float | list[float] = float(generator.choice([1, 1, 2, 10, 40]))
    dims: int | list[int] = dim
    if generator.random() < 1 / 3:
        kind = "cat"
        dims = generator.choice([8, 32, 64, 128, 256], count).tolist()
        pooling = generator.choice([1.0, 1.0, 1.0, 5.0, 30.0, 200.0], count).tolist()
    document: dict[str, Any] = {
        "batch": 4096,
        "model": {
            "dense_features": power(3, 9),
            "bottom_mlp": [power(6, 11) for _ in range(int(generator.integers(1, 4)))] + [dim],
            "top_mlp": [power(6, 11) for _ in range(int(generator.integers(1, 5)))] + [1],
        },
        "interaction": {"kind": kind},
        "tables": [
            {
                "rows": [power(10, 26) for _ in range(count)],
                "dim": dims,
                "pooling": pooling,
                "alpha": round(float(generator.uniform(0.3, 1.4)), 2),
            }
        ],
        "training": {
            "table_optimizer": str(generator.choice(["sgd", "rowwise_adagrad", "adagrad"])),
            "loss": "bce_with_logits",
        },
        "implementation": {
            "name": "torchrec",
            "precision": str(generator.choice(["fp32", "tf32", "bf16"])),
            "sharding": str(generator.choice(["table_wise", "row_wise", "balanced"])),
            "prefetch": bool(generator.integers(2)),
            "cuda_graphs": bool(generator.integers(2)),
        },
    }
    return workload_from_document(document, name, name)


def drawn_machine(generator: np.random.Generator) -> Cluster:
    """One to four nodes of the catalogue, with an adapter that may have memory, and drives."""
    one = cluster(str(generator.choice(NODES)))
    nodes = int(generator.choice([1, 1, 2, 4]))
    node = one.node
    adapter = str(generator.choice(ADAPTERS))
    if adapter and node.nic is not None:
        node = replace(node, nic=load(adapter, "nic"))
    drive = load(str(generator.choice(DRIVES)), "storage")
    node = replace(node, storage=drive, drives=int(generator.integers(1, 5)))
    return cluster(node, nodes if node.nic is not None else 1)


def catalogued_workload(generator: np.random.Generator) -> Workload:
    """One of the catalogue, in the software that designs edit."""
    workload = load_workload(str(generator.choice(WORKLOADS)))
    return workload.with_(implementation__name="torchrec")


WORKLOADS = (
    "avazu",
    "criteo-kaggle",
    "criteo-terabyte",
    "dlrm-dcnv2",
    "hotline-rm1",
    "hotline-rm3",
    "smartnic-rm",
    "taobao",
)


def cases(seed: int) -> Iterator[Case]:
    """Without end; those that no deployment can be are left out."""
    number = 0
    while True:
        generator = np.random.default_rng([seed, number])
        machine = drawn_machine(generator)
        drawn = generator.random() < 0.7
        workload = (
            drawn_workload(generator, f"drawn {seed}/{number}")
            if drawn
            else catalogued_workload(generator)
        )
        per_rank = 2 ** int(generator.integers(7, 15))
        train = bool(generator.integers(2))
        number += 1
        try:
            start = deployment_of(workload, machine, per_rank * machine.gpus, train=train)
        except PerfmodelError:
            continue
        way = "training" if train else "inference"
        yield Case(
            f"{workload.name} on {machine.nodes} x {machine.name}, {way}, {start.batch}", start
        )


def more_of(
    machine: Cluster, generator: np.random.Generator, most: int = 1000
) -> Iterator[tuple[str, float, Cluster]]:
    """(figure, factor, machine) with more of every resource that `machine` has, one at a time.

    At most `most` of them, by lot. Figures of `TOGETHER` grow together, under the name there.
    """
    known = {key: value for key, value in figure_values(machine).items() if value is not None}
    single = {key: (key,) for key in known if key in RESOURCES + DELAYS}
    changes = single | {
        name: tuple(key for key in keys if key in known) for name, keys in TOGETHER.items()
    }
    for name in generator.permutation(list(changes)).tolist()[:most]:
        factor = float(generator.choice(FACTORS))
        more = {key: _more(key, known[key], factor) for key in changes[name]}
        if any(more[key] != known[key] for key in more):
            texts = [f"{key}={value!r}" for key, value in more.items()]
            try:
                yield name, factor, with_settings(machine, texts)
            except HardwareError:
                continue  # no such machine: a base clock above the boost clock


def _more(figure: str, value: float, factor: float) -> float:
    more = value / factor if figure in DELAYS else value * factor
    if figure.endswith("_frac"):
        return min(more, 1.0)
    if isinstance(value, int):
        return max(int(more), 1) if figure in DELAYS else int(np.ceil(more))
    return more


def unsorted_figures(part: Part) -> set[str]:
    """Figures that neither list names: a new one must be in one of them."""
    return set(figure_values(part)) - {*RESOURCES, *DELAYS, *NO_RESOURCE}

"""Published throughput of DLRM training as configurations: what can be predicted, and what not.

Tables: MLPerf Training submissions (`round submitter system benchmark n_nodes accel_per_node
accelerator global_batch samples_per_s_train_est samples_per_s_logged ttt_min_median`), and
NVIDIA's DeepLearningExamples (`model framework phase gpu n_gpus global_batch precision
samples_per_s interaction source`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfmodel.errors import HardwareError, PerfmodelError
from perfmodel.files import read_bytes
from perfmodel.frames import MAX_TABLE_BYTES
from perfmodel.hardware import Cluster, device, from_driver_name, node, node_of

WORKLOAD = {"dlrm": "dlrm-mlperf", "dlrm_dcnv2": "dlrm-dcnv2"}
EARLIER: dict[tuple[str, str], dict[str, object]] = {
    ("dlrm", "v1.0"): {"implementation__indices_ahead": False}
}
"""Benchmark and round whose software was another one, to the settings that stand for it; such runs
are a group of their own."""
RATE = {"dlrm": "samples_per_s_logged", "dlrm_dcnv2": "samples_per_s_train_est"}
"""The logged rate contains the evaluations, as the workload's step does."""
SIZES = {"DLRM small": "nvidia-dlrm-small", "DLRM large": "nvidia-dlrm-large"}
SIZES |= {"DLRM extra large": "nvidia-dlrm-extra-large"}
SOFTWARE: dict[str, dict[str, object]] = {
    "PyTorch (NVIDIA)": {
        "implementation__name": "nvidia",
        "implementation__sharding": "bucketed",
        "implementation__cuda_graphs": True,
    },
    "TF2 + distributed-embeddings": {
        "implementation__name": "distributed_embeddings",
        "implementation__sharding": "memory_balanced",
        "implementation__cuda_graphs": False,
    },
}
"""Framework of an example to the settings that stand for it."""
PRECISIONS = {"AMP": "fp16", "TF32": "tf32", "FP32": "fp32"}
MACHINES = {
    "A100-80GB": ("dgx-a100-80gb", "a100-sxm-80gb"),
    "V100-32GB (DGX-1)": ("dgx-1", "v100-sxm2-32gb"),
    "V100-32GB (DGX-2)": ("dgx-2", "v100-sxm3-32gb"),
}
EXAMPLES = "NVIDIA/DeepLearningExamples"
MOST = 1e15
MLPERF_COLUMNS = (
    *("round", "submitter", "system", "benchmark", "n_nodes", "accel_per_node", "accelerator"),
    *("global_batch", "ttt_min_median", *RATE.values()),
)
EXAMPLE_COLUMNS = (
    *("model", "framework", "phase", "gpu", "n_gpus", "n_nodes", "global_batch", "precision"),
    *("samples_per_s", "source"),
)
NO_LINKS = "no links between its GPUs: the layout of PCIe root complexes is not told"


@dataclass(frozen=True)
class Published:
    """A configuration, and the rates that were published for it."""

    group: str
    workload: str
    machine: Cluster
    batch: int
    settings: Mapping[str, object] = field(default_factory=dict)
    rates: tuple[float, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """Precisions that differ from the workload's own."""
        precisions = [value for key, value in self.settings.items() if key.endswith("precision")]
        return "".join(f", {value}" for value in dict.fromkeys(precisions))

    @property
    def name(self) -> str:
        """`8 x 8 a100-sxm-80gb, batch 71,680`, and its settings."""
        node_, nodes = self.machine.node, self.machine.nodes
        several = f"{nodes} x " if nodes > 1 else ""
        return f"{several}{node_.gpus} {node_.device.name}, batch {self.batch:,}{self.told}"


@dataclass(frozen=True)
class LeftOut:
    """A row that is not predicted, and why."""

    name: str
    reason: str


def read_mlperf(path: Path) -> tuple[list[Published], list[LeftOut]]:
    """Distinct configurations of submissions, each run once, and what is left out by name.

    Raises `PerfmodelError` for a file that is no such table.
    """
    found: dict[tuple[object, ...], Published] = {}
    left: list[LeftOut] = []
    seen: set[tuple[str, ...]] = set()
    for line, row in _rows(path, MLPERF_COLUMNS):
        where = f"{path}: line {line}"
        name = f"{row['round']} {row['submitter']} {row['system']}"
        rate = row[RATE[row["benchmark"]]] if row["benchmark"] in RATE else ""
        reason = _unusable(row, rate)
        run = (row["submitter"], row["benchmark"], row["global_batch"], rate, row["ttt_min_median"])
        if not reason and run in seen:
            reason = "the same run as in a round before"
        seen.add(run)
        machine = None if reason else _machine(row, where)
        if not isinstance(machine, Cluster):
            left.append(LeftOut(name, reason or str(machine)))
            continue
        batch = int(_number(row, "global_batch", where))
        settings = EARLIER.get((row["benchmark"], row["round"]), {})
        group = f"{row['benchmark']} {row['round']}" if settings else row["benchmark"]
        key = (group, machine.node.device.name, machine.nodes, machine.node.gpus, batch)
        old = found.get(key)
        if old is None:
            old = Published(group, WORKLOAD[row["benchmark"]], machine, batch, settings)
        found[key] = replace(
            old,
            rates=(*old.rates, _number(row, RATE[row["benchmark"]], where)),
            names=(*old.names, name),
        )
    return list(found.values()), left


def _unusable(row: Mapping[str, str], rate: str) -> str:
    if row["benchmark"] not in WORKLOAD:
        return f"benchmark {row['benchmark']}"
    if not rate:
        return f"no {RATE[row['benchmark']]}"
    if row["accel_per_node"] in ("", "0"):
        return "no accelerators"
    return ""


def _machine(row: Mapping[str, str], where: str) -> Cluster | str:
    """The nodes of a submission, or why they are not known."""
    try:
        found = from_driver_name(re.sub(r"\(.*?\)", "", row["accelerator"]).strip())
    except HardwareError as error:
        return str(error).partition(";")[0]
    nodes, gpus = (int(_number(row, key, where)) for key in ("n_nodes", "accel_per_node"))
    usual = node_of(found)
    if usual.link is None and gpus > 1:
        return f"{found.name}: {NO_LINKS}"
    return Cluster(name=found.name, node=replace(usual, gpus=gpus), nodes=nodes)


def read_examples(path: Path) -> tuple[list[Published], list[LeftOut]]:
    """NVIDIA's training examples, each row by itself; other rows are left out by name."""
    found, left = [], []
    for line, row in _rows(path, EXAMPLE_COLUMNS):
        where = f"{path}: line {line}"
        name = f"line {line}: {row['model']}, {row['framework']}, {row['gpu']} x {row['n_gpus']}"
        reason = _no_example(row)
        if reason:
            left.append(LeftOut(name, reason))
            continue
        node_name, device_name = MACHINES[row["gpu"]]
        own = replace(
            node(node_name), device=device(device_name), gpus=int(_number(row, "n_gpus", where))
        )
        precision = PRECISIONS[row["precision"]]
        exchange = "fp16" if precision == "fp16" else "fp32"
        found.append(
            Published(
                row["framework"],
                SIZES[row["model"]],
                Cluster(name=own.device.name, node=own, nodes=int(_number(row, "n_nodes", where))),
                int(_number(row, "global_batch", where)),
                SOFTWARE[row["framework"]]
                | {
                    "implementation__precision": precision,
                    "implementation__exchange_precision": exchange,
                },
                (_number(row, "samples_per_s", where),),
                (f"{name}, {row['source']}",),
            )
        )
    return found, left


def _no_example(row: Mapping[str, str]) -> str:
    if EXAMPLES not in row["source"]:
        return "not one of NVIDIA's examples"
    if row["phase"] != "train":
        return f"{row['phase']}: the time of a server's or TensorFlow's host, which has no profile"
    told: dict[str, Mapping[str, object]] = {
        "model": SIZES,
        "gpu": MACHINES,
        "precision": PRECISIONS,
        "framework": SOFTWARE,
    }
    for key, known in told.items():
        if row[key] not in known:
            return f"{key} {row[key]!r} is none of {', '.join(known)}"
    return ""


def _rows(path: Path, needed: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Lines with their numbers."""
    try:
        lines = read_bytes(path, max_bytes=MAX_TABLE_BYTES).decode().splitlines()
    except UnicodeDecodeError as error:
        raise PerfmodelError(f"{path}: byte {error.start} is not UTF-8 text") from None
    if max(map(len, lines), default=0) > csv.field_size_limit():
        raise PerfmodelError(f"{path}: a line of more than {csv.field_size_limit()} characters")
    reader = csv.DictReader(lines)
    missing = [name for name in needed if name not in (reader.fieldnames or ())]
    if missing:
        raise PerfmodelError(f"{path}: no column {', '.join(missing)}")
    for line, row in enumerate(reader, 2):
        yield line, {key: value or "" for key, value in row.items() if key is not None}


def _number(row: Mapping[str, str], key: str, where: str) -> float:
    try:
        found = float(row[key])
    except ValueError:
        found = -1.0
    if not 0 < found < MOST:
        raise PerfmodelError(f"{where}: {key}: expected a positive number, got {row[key][:40]!r}")
    return found

"""Published throughput of DLRM training as configurations: what can be predicted, and what not.

Table: MLPerf Training submissions (`round submitter system benchmark n_nodes accel_per_node
accelerator global_batch samples_per_s_train_est samples_per_s_logged ttt_min_median`).
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
from perfmodel.hardware import Cluster, from_driver_name, node_of

WORKLOAD = {"dlrm": "dlrm-mlperf", "dlrm_dcnv2": "dlrm-dcnv2"}
EARLIER: dict[tuple[str, str], dict[str, object]] = {
    ("dlrm", "v1.0"): {"implementation__indices_ahead": False}
}
"""Benchmark and round whose software was another one, to the settings that stand for it; such runs
are a group of their own."""
RATE = {"dlrm": "samples_per_s_logged", "dlrm_dcnv2": "samples_per_s_train_est"}
"""The logged rate contains the evaluations, as the workload's step does."""
MOST = 1e15
MLPERF_COLUMNS = (
    *("round", "submitter", "system", "benchmark", "n_nodes", "accel_per_node", "accelerator"),
    *("global_batch", "ttt_min_median", *RATE.values()),
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

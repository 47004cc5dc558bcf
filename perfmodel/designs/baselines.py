"""Designs without a cache: GPUs alone, CPUs alone, tables on hosts with layers on GPUs, sequences
balanced over ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from perfmodel.cost.tiers.host_memory import cpu_of
from perfmodel.designs import settings
from perfmodel.designs.deployment import Deployment
from perfmodel.designs.layouts.default import deployment_of
from perfmodel.embedding import TablePlacement
from perfmodel.errors import Note, WorkloadError
from perfmodel.hardware import Cluster
from perfmodel.hardware.schema import consistent
from perfmodel.ops.spec import row_bytes


@dataclass(frozen=True)
class GpuOnly(settings.Checked, of="gpu_only"):
    """All tables in device memory; infeasible where they do not fit.

    Those that ranks share in a host's memory lie as the workload's own settings lay them out.
    """

    def apply(self, deployment: Deployment) -> Deployment:
        def edit(number: int, placed: TablePlacement) -> dict[str, Any]:
            row = {"tier": "hbm", "pooled_on": "device", "caches": (), "hot_rows": 0}
            if placed.tier == "hbm" or placed.sharding != "data_parallel":
                return row
            own = usual.placement.tables[number]
            return row | {"sharding": own.sharding, "ranks": own.ranks}

        usual = deployment_of(
            deployment.workload, deployment.machine, deployment.batch, train=deployment.train
        )
        return deployment.with_(placement=deployment.placement.edited(edit))


@dataclass(frozen=True)
class CpuOnly(settings.Checked, of="cpu_only"):
    """CPUs alone: tables in host memory, all layers on the hosts' cores, one rank per socket.

    `nodes`: hosts that take part, each with `sockets` of them; `auto`: as many as the machine has.
    Each socket trains and holds its part of the tables (parameter servers beside the trainers);
    ranks meet once per step, as a synchronous system does.
    """

    nodes: settings.SomeCount | settings.Auto = settings.AUTO
    sockets: settings.SomeCount | settings.Auto = settings.AUTO

    def apply(self, deployment: Deployment) -> Deployment:
        nodes, sockets = (None if n == settings.AUTO else n for n in (self.nodes, self.sockets))
        machine = hosts_of(deployment.machine, nodes, sockets)
        workload = deployment.workload.with_(implementation__cuda_graphs=False)
        deployed = deployment_of(workload, machine, deployment.batch, train=deployment.train)
        about = "assumed: synchronous, every socket trains and holds its part of the tables"
        return replace(deployed, notes=(*deployment.notes, *deployed.notes, Note(about)))


def hosts_of(machine: Cluster, nodes: int | None = None, sockets: int | None = None) -> Cluster:
    """The hosts of `machine` as a machine of CPUs, a rank per socket."""
    name, node = f"hosts of {machine.name}", machine.node
    of_gpus = ("link", "link_domain_gpus", "power_w", "price_usd", "price_usd_per_hour")
    none: dict[str, Any] = dict.fromkeys(of_gpus)
    count, one = sockets or node.sockets, cpu_of(node.host)
    if node.host_memory_bytes is not None:
        one = replace(one, hbm_bytes=int(node.host_memory_bytes // count))
    host = replace(node, name=name, device=one, gpus=count, sockets=count, **none)
    return consistent(replace(machine, node=host, name=name, nodes=nodes or machine.nodes), name)


OnHost = Literal["one_process", "operators", "host"]


@dataclass(frozen=True)
class Hybrid(settings.Checked, of="hybrid"):
    """Tables in host memory, looked up and updated by the CPU; dense layers data-parallel on GPUs.

    Tables of at most `device_table_bytes` (fp32 rows) stay where they are. `pooled_on` names the
    software: one fused call for all tables by the `host` in a process per GPU (FBGEMM's lookup for
    CPUs with its optimizer inside), the best that exists; PyTorch's operators table by table in a
    process per GPU (`operators`); the same in `one_process` for all GPUs of a node, with serial
    sparse updates, which is what FAE's repository runs. A process per GPU has the tables of its
    rank's shards, and GPUs exchange keys and pooled rows as for tables in their own memory; what
    training keeps equal on all ranks stays on devices: no gradient goes from host to host. The one
    process of a node shares all tables among its GPUs; on several nodes ranks have shards too.

    Source: FAE (Adnan et al. 2022), whose repository is `one_process`; the software that Hotline
    (2024) compares with, Intel's DLRM, has fused lookups and tables parted among processes
    (Kalamkar et al., Optimizing Deep Learning Recommender Systems' Training On CPU Cluster
    Architectures, SC 2020): nearest to `host`.
    """

    device_table_bytes: settings.Amount = 0.0
    pooled_on: OnHost = "host"

    def apply(self, deployment: Deployment) -> Deployment:
        ranks = tuple(range(deployment.ranks))
        tables = deployment.workload.tables
        is_one = self.pooled_on == "one_process" or deployment.ranks == 1
        is_shared = is_one and deployment.machine.nodes == 1
        parted = GpuOnly().apply(deployment).placement.tables

        def edit(number: int, placed: TablePlacement) -> dict[str, Any]:
            size = tables[number].rows * row_bytes("fp32", tables[number].dim)
            sharding, own = parted[number].sharding, parted[number].ranks
            if is_shared:
                sharding, own = "data_parallel", ranks
            is_copied = deployment.train and sharding == "data_parallel" and not is_shared
            if size <= self.device_table_bytes or is_copied:
                return {}
            where = {"tier": "host", "pooled_on": self.pooled_on, "caches": (), "hot_rows": 0}
            return where | {"sharding": sharding, "ranks": own}

        pipeline = replace(deployment.pipeline, rows_ahead=False, writes_behind=False)
        placement = deployment.placement.edited(edit)
        return deployment.with_(placement=placement, pipeline=pipeline)


@dataclass(frozen=True)
class BalancedSequences(settings.Checked, of="balanced_sequences"):
    """Sequences exchanged among ranks ahead of each step, so that all have equally much to attend.

    Source: NVIDIA/recsys-examples, examples/hstu/training: the workload-balanced shuffler.
    Elsewhere 47 % was measured before and 2.4 % after (recalled). No peer answers it.
    """

    def apply(self, deployment: Deployment) -> Deployment:
        workload = deployment.workload
        if not workload.sequence.layers:
            raise WorkloadError("balanced_sequences: the workload has no sequences to balance")
        note = "assumed: who gets which sequence is computed beside the step before"
        return deployment.with_(note, workload=workload.with_(sequence__balanced=True))

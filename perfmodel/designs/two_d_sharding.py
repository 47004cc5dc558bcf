"""2D sharding: tables sharded within groups of ranks, a copy in each group."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.designs import settings
from perfmodel.designs.deployment import Deployment, Phase
from perfmodel.designs.layouts.default import deployment_of
from perfmodel.errors import WorkloadError
from perfmodel.hardware import Cluster


@dataclass(frozen=True)
class TwoDSharding(settings.Checked, of="two_d_sharding"):
    """2D sharding: tables sharded within groups of ranks, a copy in each; copies are averaged.

    Keys and pooled rows stay within `group_ranks` ranks in a row, over which tables lie as the
    workload's settings say; layers are trained by all ranks. In training every `sync_every` steps
    rows and their optimizer's state become the mean over all groups (1: no rank works on rows that
    another changed; what more costs in accuracy only a model's owner can measure).

    Source: TorchRec's `DMPCollection`. Of peers TorchRec's planner lays a group out, none predicts
    what a group gains or the averaging costs.
    """

    group_ranks: settings.SomeCount = 8
    sync_every: settings.SomeCount = 1

    def apply(self, deployment: Deployment) -> Deployment:
        """A layout over one group, copies of it in the others, and steps that average them."""
        ranks, within = deployment.ranks, self.group_ranks
        linked = deployment.machine.linked_gpus
        if ranks % within or (within % linked and linked % within):
            raise WorkloadError(
                f"two_d_sharding: groups of {within} ranks do not divide the machine's {ranks}, of "
                f"which links join {linked} each"
            )
        if within == ranks:
            return deployment.unchanged(self.of, "one group has all ranks")
        if any(placed.tier != "hbm" or placed.caches for placed in deployment.placement.tables):
            raise WorkloadError("two_d_sharding: copies are of tables in device memory")
        batch = deployment.batch * within // ranks
        group = _of_ranks(deployment.machine, within)
        laid = deployment_of(deployment.workload, group, batch, train=deployment.train)
        dtypes = [placed.dtype for placed in deployment.placement.tables]
        placement = replace(
            laid.placement.edited(lambda number, _: {"dtype": dtypes[number]}), group_ranks=within
        )
        plain = deployment.pipeline
        synced = replace(plain, averages_copies=deployment.train)
        often = 1.0 / self.sync_every
        phases = (
            Phase("averaging", often, placement, synced),
            Phase("other", 1.0 - often, placement, plain),
        )
        return deployment.with_(
            f"two_d_sharding: {ranks // within} groups of {within} ranks, a copy of all tables in "
            "each",
            *laid.notes,
            placement=placement,
            pipeline=synced,
            own_layout=None,
            phases=phases if deployment.train and self.sync_every > 1 else (),
        )


def _of_ranks(machine: Cluster, ranks: int) -> Cluster:
    """So many ranks in a row of `machine`: some of its nodes, or a part of one."""
    node = replace(machine.node, gpus=min(machine.node.gpus, ranks))
    return replace(machine, node=node, nodes=-(-ranks // node.gpus))

"""SmartNIC (Guo et al. 2023): which speed-ups the registered box of settings reaches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from perfmodel.designs import Deployment, deployment_of
from perfmodel.designs.smartnic import SmartNic
from perfmodel.embedding import Pipeline
from perfmodel.errors import WorkloadError
from perfmodel.evaluate.published_designs import Figure, Lab, case
from perfmodel.hardware import Cluster, Nic, load
from perfmodel.prediction.deployment import predict_deployment
from perfmodel.workload import Workload, load_workload

from .smartnic_box import (
    ASSUMED,
    AXES,
    CENTRE,
    LATENCY,
    SOURCE,
    THROUGHPUT,
    Setting,
    settings,
)

GIB, FP32_BYTES = 2.0**30, 4.0
SPEED_UP = "times as fast"
ROUNDS = 2
ASIDE = "beside the box, and tried after it: the centre with tables in rows, as too large ones are"


@dataclass(frozen=True)
class Gain:
    """Step time without and with the design, microseconds; equal where it finds nothing to hold."""

    plain_us: float
    design_us: float
    note: str = ""

    @property
    def speed_up(self) -> float:
        return self.plain_us / self.design_us


def machine_of(setting: Setting, lab: Lab) -> Cluster:
    """One device and one adapter per node."""
    nic = load(setting.adapter)
    assert isinstance(nic, Nic)
    whole = lab.machine(setting.device, nodes=setting.ranks, gpus=1)
    return replace(whole, node=replace(whole.node, nic=nic, nics=1))


def workload_of(setting: Setting, sharding: str = "table_wise") -> Workload:
    """The box's workload with the setting's lookups."""
    return load_workload("smartnic-rm").with_(
        table__pooling=setting.pooling,
        table__alpha=setting.alpha,
        implementation__sharding=sharding,
    )


def plain(setting: Setting, lab: Lab, *, train: bool, sharding: str = "table_wise") -> Deployment:
    """Without the design: in training steps follow one another, in inference one batch is alone."""
    each = setting.training_batch if train else setting.inference_batch
    batch = each * setting.ranks
    workload, machine = workload_of(setting, sharding), machine_of(setting, lab)
    found = deployment_of(workload, machine, batch, train=train)
    return found if train else found.with_(pipeline=Pipeline())


def design_of(setting: Setting, deployment: Deployment) -> SmartNic:
    """The setting's caches, no larger than the tables that they are for."""
    placement, tables = deployment.placement, deployment.workload.tables
    held = [0.0] * deployment.ranks
    for table, placed in zip(tables, placement.tables, strict=True):
        for rank in placed.ranks:
            held[rank] += table.rows * table.dim * FP32_BYTES / len(placed.ranks)
    local = min(held)
    nic = deployment.machine.node.nic
    assert nic is not None
    most = min(setting.cache_gib, (nic.memory_bytes or 0) / GIB)
    if setting.remote_frac < 1:
        most = min(most, local / GIB / (1 - setting.remote_frac))
    return SmartNic(cache_gib=most, remote_frac=setting.remote_frac)


def gain(
    setting: Setting, lab: Lab, *, train: bool, plain_us: dict[Setting, float] | None = None
) -> Gain:
    """Both predictions of one setting; `plain_us` keeps those without the design."""
    known = {} if plain_us is None else plain_us
    without = plain(setting, lab, train=train)
    alike = replace(setting, cache_gib=CENTRE.cache_gib, remote_frac=CENTRE.remote_frac)
    if alike not in known:
        known[alike] = predict_deployment(without).results[0].step_us
    before = known[alike]
    try:
        after = predict_deployment(design_of(setting, without).apply(without)).results[0].step_us
    except WorkloadError as error:
        return Gain(before, before, str(error))
    return Gain(before, after)


def reach(lab: Lab, *, train: bool) -> tuple[dict[Setting, Gain], Setting]:
    """Axis by axis to the best value, from the centre and `ROUNDS` times; what was tried, the best.

    The first round moves little before it comes to the pooling factor, the second knows it.
    """
    axes = [axis for axis in AXES if axis != ("inference_batch" if train else "training_batch")]
    seen: dict[Setting, Gain] = {}
    plain_us: dict[Setting, float] = {}
    best = CENTRE
    for axis in axes * ROUNDS:
        for setting in settings(axis, best):
            if setting not in seen:
                seen[setting] = gain(setting, lab, train=train, plain_us=plain_us)
        best = max(settings(axis, best), key=lambda each: seen[each].speed_up)
    return seen, max(seen, key=lambda each: seen[each].speed_up)


def in_rows(lab: Lab, *, train: bool) -> float:
    """Speed-up at the centre with tables in rows on all devices (1 where no row is worth a place
    in an adapter): not in the box."""
    without = plain(CENTRE, lab, train=train, sharding="row_wise")
    design = SmartNic(cache_gib=CENTRE.cache_gib, remote_frac=CENTRE.remote_frac)
    try:
        within = design.apply(without)
    except WorkloadError:
        return 1.0
    before, after = (predict_deployment(each).results[0].step_us for each in (without, within))
    return before / after


@case("V14-smartnic")
def smartnic(lab: Lab) -> Iterator[Figure]:
    """Reachability: the figure, or as near to it as the box comes."""
    for name, target, train in (("latency", LATENCY, False), ("throughput", THROUGHPUT, True)):
        seen, best = reach(lab, train=train)
        gains = [each.speed_up for each in seen.values()]
        centre = seen[CENTRE].speed_up
        yield Figure(
            f"V14-smartnic-{name}",
            f"SmartNIC, {name}: over the machine without caches in adapters, within the box",
            SPEED_UP,
            target,
            min(max(target, min(gains)), max(gains)),
            0.0,
            SOURCE,
            (
                f"centre of the box, registered in 6a8a85e: {centre:.2f} times "
                f"({(centre / target - 1) * 100:+.0f} %)",
                f"the box reaches {min(gains):.2f} to {max(gains):.2f} times; most at {best}",
                f"{ASIDE}: {in_rows(lab, train=train):.2f} times",
                *ASSUMED,
            ),
        )

"""SmartNIC: which speed-ups a box of settings reaches, searched axis by axis from its centre."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.published.designs import Lab, Study
from perfmodel.designs import Deployment, deployment_of
from perfmodel.designs.smartnic import SmartNic
from perfmodel.embedding import Pipeline
from perfmodel.errors import WorkloadError
from perfmodel.prediction import predict
from perfmodel.workload import load_workload

GIB, FP32_BYTES = 2.0**30, 4.0
ROUNDS = 2
"""The first round moves little before it comes to the pooling factor, the second knows it."""


@dataclass(frozen=True)
class Axes:
    """Values of every setting, the centre first; cache bytes per adapter, batches per rank."""

    adapter: tuple[str, ...]
    ranks: tuple[int, ...]
    cache_gib: tuple[float, ...]
    remote_frac: tuple[float, ...]
    pooling: tuple[float, ...]
    alpha: tuple[float, ...]
    batch: tuple[int, ...]


@dataclass(frozen=True)
class Point:
    """One point of the box."""

    adapter: str
    ranks: int
    cache_gib: float
    remote_frac: float
    pooling: float
    alpha: float
    batch: int


def most_reached(
    study: Study, workload: str, device: str, axes: Axes, train: bool
) -> tuple[float, str]:
    """The largest speed-up; what the centre gives."""
    box = _Box(study.lab, workload, device, train)
    values = asdict(axes)
    centre = best = Point(**{axis: options[0] for axis, options in values.items()})
    gains: dict[Point, float] = {}
    for axis, options in [*values.items()] * ROUNDS:
        line = [replace(best, **{axis: value}) for value in options]
        for point in line:
            if point not in gains:
                gains[point] = box.speed_up(point)
        best = max(line, key=gains.__getitem__)
    most = max(gains, key=gains.__getitem__)
    detail = (
        f"centre of the box: {gains[centre]:.2f}; in it {min(gains.values()):.2f} to "
        f"{gains[most]:.2f}, most at {asdict(most)}"
    )
    return gains[most], detail


class _Box:
    """Speed-ups over the machine without caches in adapters, one device and adapter per node."""

    def __init__(self, lab: Lab, workload: str, device: str, train: bool) -> None:
        self.lab, self.workload, self.device, self.train = lab, workload, device, train
        self._plain_us: dict[tuple[Any, ...], float] = {}

    def speed_up(self, point: Point) -> float:
        """1 where the schedule is no shorter with rows in adapters."""
        plain = self._plain(point)
        alike = (point.adapter, point.ranks, point.pooling, point.alpha, point.batch)
        if alike not in self._plain_us:
            self._plain_us[alike] = predict(plain).results[0].step_us
        try:
            within = _design_of(point, plain).apply(plain)
            gain = self._plain_us[alike] / predict(within).results[0].step_us
            return max(gain, 1.0)
        except WorkloadError:
            return 1.0

    def _plain(self, point: Point) -> Deployment:
        """In training steps follow one another, in inference one batch is alone."""
        adapter = [f"node.nic={point.adapter}", "node.nics=1"]
        machine = self.lab.machine(self.device, nodes=point.ranks, gpus=1, hardware=adapter)
        workload = load_workload(self.workload).with_(
            table__pooling=point.pooling,
            table__alpha=point.alpha,
            implementation__sharding="table_wise",
        )
        batch = point.batch * point.ranks
        deployment = deployment_of(workload, machine, batch, train=self.train)
        return deployment if self.train else deployment.with_(pipeline=Pipeline())


def _design_of(point: Point, deployment: Deployment) -> SmartNic:
    """The point's caches, no larger than the tables that they are for."""
    placement, tables = deployment.placement, deployment.workload.tables
    held = [0.0] * deployment.ranks
    for table, placed in zip(tables, placement.tables, strict=True):
        for rank in placed.ranks:
            held[rank] += table.rows * table.dim * FP32_BYTES / len(placed.ranks)
    nic = deployment.machine.node.nic
    assert nic is not None
    most = min(point.cache_gib, (nic.memory_bytes or 0) / GIB)
    if point.remote_frac < 1:
        most = min(most, min(held) / GIB / (1 - point.remote_frac))
    return SmartNic(cache_gib=most * point.remote_frac)

"""Neo on 128 GPUs of ZionEX, and MAD-Max's validation of the same machine."""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.cost.collectives.durations import collective_durations
from perfmodel.designs import deployment_of
from perfmodel.designs.neo import Neo
from perfmodel.evaluate.published_designs import Figure, Lab, case
from perfmodel.hardware import Cluster
from perfmodel.ops.rows import Rows
from perfmodel.prediction.deployment import predict_deployment
from perfmodel.prediction.types import Result
from perfmodel.units import BYTES_PER_GB, US_PER_MS, US_PER_S
from perfmodel.workload import load_workload

from . import neo_box as box


@case("V12")
def zionex(lab: Lab) -> Iterator[Figure]:
    """Rates of models A, F and I, and of DLRM-B; DLRM-A's kernels and exposed communication; what
    an all-reduce takes."""
    more = {"neo-f": box.TABLES_OF_F, "neo-i": box.TABLES_OF_I}
    for name, target in box.MILLION_SAMPLES_PER_S.items():
        result = neo_step(lab, name, box.BATCH)
        if name == "neo-a":
            largest = result
        title = f"Neo, model {name[-1].upper()}"
        yield _rate(f"V12-{name}", title, box.NEO, target, result, more=more.get(name, ()))
    again = neo_step(lab, "neo-i", box.DLRM_B_BATCH)
    yield _rate(
        "V12-mad-max-b",
        "MAD-Max, DLRM-B",
        box.MAD_MAX,
        box.MILLION_SAMPLES_PER_S["neo-i"],
        again,
        box.DLRM_B_BATCH,
        more=box.TABLES_OF_I,
    )
    rank = largest.rank
    every = sum(row["time_us"] for row in largest.families if row["family"] != "transfer")
    yield Figure(
        "V12-mad-max-a-serialised",
        "MAD-Max, DLRM-A: all kernels one after the other",
        "ms",
        box.SERIALISED_MS,
        every / US_PER_MS,
        box.TOLERANCE_PCT,
        box.MAD_MAX,
        box.ASSUMED,
    )
    yield Figure(
        "V12-mad-max-a-exposed",
        "MAD-Max, DLRM-A: exposed share of communication",
        "%",
        box.EXPOSED_PCT,
        100 * rank.exposed_comm_us / rank.comm_us,
        box.TOLERANCE_PCT,
        box.MAD_MAX,
        (*box.EXPOSED, *box.ASSUMED),
    )
    yield Figure(
        "V12-zionex-all-reduce",
        "ZionEX: all-reduce of 256 MB among 128 A100",
        "GB/s",
        box.ALL_REDUCE_GB_PER_S,
        _all_reduce_gb_per_s(lab.machine(box.MACHINE)),
        box.TOLERANCE_PCT,
        box.MAD_MAX_SYSTEM,
        box.ALL_REDUCE,
    )


def neo_step(lab: Lab, name: str, batch: int) -> Result:
    """A model of the catalogue under the design's defaults on the box's machine."""
    deployment = deployment_of(load_workload(name), lab.machine(box.MACHINE), batch)
    return predict_deployment(Neo().apply(deployment)).results[0]


def _all_reduce_gb_per_s(machine: Cluster) -> float:
    about = {"op": "all_reduce", "size_bytes": box.ALL_REDUCE_BYTES, "ranks": machine.gpus}
    rows = Rows.of([{**about, "nodes": machine.nodes}])
    seconds = collective_durations(rows, machine).duration_us[0] / US_PER_S
    return float(box.ALL_REDUCE_BYTES / seconds / BYTES_PER_GB)


def _rate(
    id: str,
    title: str,
    source: str,
    target: float,
    result: Result,
    batch: int = box.BATCH,
    *,
    more: tuple[str, ...] = (),
) -> Figure:
    found = batch / result.step_us * US_PER_S / 1e6
    return Figure(
        id,
        f"{title}, 128 A100, batch {batch:,}",
        "M samples/s",
        target,
        found,
        box.TOLERANCE_PCT,
        source,
        (*more, *box.ASSUMED),
    )

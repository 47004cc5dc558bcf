"""Quantities of published figures: what a row of `traces/published` compares, by name."""

from __future__ import annotations

from statistics import fmean
from typing import Annotated, TypeAlias

from benchmarks.published.designs import QUANTITIES, Study
from benchmarks.published.files import Count
from benchmarks.published.torchrec_formulas import Topology, shard_cost
from perfmodel.base.schema import Limits
from perfmodel.base.units import BYTES_PER_GB, US_PER_MS, US_PER_S
from perfmodel.cost.collectives.learned import collective_durations
from perfmodel.cost.tiers.drives import BLOCK_BYTES, read_amplification, read_iops, read_latency_us
from perfmodel.errors import PerfmodelError
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import row_bytes
from perfmodel.workload import load_workload

Names: TypeAlias = Annotated[tuple[str, ...], Limits()]
Measured: TypeAlias = dict[str, Annotated[float, Limits(1e-6, 1e9, "ms")]]


@QUANTITIES.register("step_ms")
def step_ms(study: Study, step: str, variant: str = "") -> float:
    """The period of a step."""
    return study.result(step, variant).step_us / US_PER_MS


@QUANTITIES.register("million_samples_per_s")
def million_samples_per_s(study: Study, step: str, variant: str = "") -> float:
    """Throughput of all devices."""
    batch = study.deployment(step).batch
    return batch / study.result(step, variant).step_us * US_PER_S / 1e6


@QUANTITIES.register("kernel_sum_ms")
def kernel_sum_ms(study: Study, step: str, variant: str = "") -> float:
    """All kernels and collectives of a rank one after the other, without copies."""
    families = study.result(step, variant).families
    copies = ("memcpy_host", "memcpy_peer")
    return float(sum(row["time_us"] for row in families if row["family"] not in copies)) / US_PER_MS


@QUANTITIES.register("exposed_comm_pct")
def exposed_comm_pct(study: Study, step: str, variant: str = "") -> float:
    """Share of the time of collectives in which nothing else runs."""
    rank = study.result(step, variant).rank
    if not rank.comm_us:
        raise PerfmodelError(f"step {step!r} has no collectives")
    return 100 * rank.exposed_comm_us / rank.comm_us


@QUANTITIES.register("speed_up")
def speed_up(
    study: Study, steps: Names, of: str, over: str, also_over: str = ""
) -> tuple[float, str]:
    """How many times as fast one variant is as another, in the mean over the steps."""

    def gains(baseline: str) -> list[float]:
        return [study.result(s, baseline).step_us / study.result(s, of).step_us for s in steps]

    each = gains(over)
    detail = ", ".join(f"{step} {gain:.2f}" for step, gain in zip(steps, each, strict=True))
    if also_over:
        detail += f"; over {also_over}: {sum(gains(also_over)) / len(steps):.2f}"
    return sum(each) / len(each), detail


@QUANTITIES.register("mean_error_pct")
def mean_error_pct(
    study: Study, measured_ms: Measured, kernels_only: bool, absolute: bool
) -> float:
    """Mean error of steps that were measured, of the kernels alone or of the whole step."""
    errors = []
    for step, measured in measured_ms.items():
        result = study.result(step)
        predicted_us = result.rank.gpu_active_us if kernels_only else result.step_us
        errors.append((predicted_us / US_PER_MS / measured - 1) * 100)
    return fmean(map(abs, errors)) if absolute else fmean(errors)


@QUANTITIES.register("all_reduce_gb_per_s")
def all_reduce_gb_per_s(study: Study, machine: str, size_bytes: Count) -> float:
    """Size over time of an all-reduce among all devices of a machine."""
    whole = study.lab.machine(machine)
    about = {"op": "all_reduce", "size_bytes": float(size_bytes), "ranks": whole.gpus}
    rows = Rows.of([{**about, "nodes": whole.nodes}])
    seconds = collective_durations(rows, whole).duration_us[0] / US_PER_S
    return float(size_bytes / seconds / BYTES_PER_GB)


@QUANTITIES.register("row_bytes")
def stored_row_bytes(study: Study, dtype: str, dim: Count) -> float:
    """Bytes of a stored row with its padding."""
    return float(row_bytes(dtype, dim))


@QUANTITIES.register("lookup_ratio")
def lookup_ratio(study: Study, workload: str, over: str) -> float:
    """Elements looked up per sample, of one workload over another."""
    each, other = (
        sum(table.pooling * table.dim for table in load_workload(name).tables)
        for name in (workload, over)
    )
    return each / other


@QUANTITIES.register("drive_reads_per_s")
def drive_reads_per_s(study: Study, drive: str, in_flight: Count) -> float:
    """Reads of 4 KiB at random places."""
    return float(read_iops(study.lab.drive(drive), in_flight, BLOCK_BYTES))


@QUANTITIES.register("drive_latency_us")
def drive_latency_us(study: Study, drive: str, in_flight: Count) -> float:
    """Mean latency of such reads."""
    return float(read_latency_us(study.lab.drive(drive), in_flight, BLOCK_BYTES))


@QUANTITIES.register("drive_read_amplification")
def drive_read_amplification(study: Study, drive: str, row_bytes: Count) -> float:
    """Bytes that a drive reads per byte of a row."""
    return float(read_amplification(study.lab.drive(drive), row_bytes))


@QUANTITIES.register("torchrec_shard_ms")
def torchrec_shard_ms(
    study: Study, sharding: str, kernel: str, ranks: Count, width: Count
) -> float:
    """TorchRec's planner, eight GPUs per node: cost of a shard of 1,000,000 rows of `width`, 20
    lookups per sample."""
    topology = Topology(ranks, 8)
    return float(shard_cost([1e6], [width], [20], [sharding], [kernel], topology).total_ms[0])

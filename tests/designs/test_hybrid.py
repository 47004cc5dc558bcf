"""The hybrid: who looks rows up in host memory, and what stays on devices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from designs.hot_rows import ROWS, pieces, predicted, start

from perfmodel.designs import deployment_of
from perfmodel.designs.baselines import GpuOnly, Hybrid, OnHost
from perfmodel.hardware import cluster
from perfmodel.workload import load_workload


def test_the_host_does_more_table_by_table() -> None:
    small = start(batch=1024)
    by_operators, at_once = (
        predicted(Hybrid(pooled_on=how), small).step_us for how in ("operators", "host")
    )
    assert by_operators > at_once


def test_one_process_looks_the_whole_batch_up() -> None:
    """And sends it by way of the first GPU, table by table from there; of four processes each has
    one of the four tables, forward, backward and update."""
    small = start(batch=4096)
    one, each = (pieces(Hybrid(pooled_on=how).apply(small)) for how in ("one_process", "operators"))
    batches = [
        [piece.dims["batch"] for piece in found if piece.op == "host_embedding_bag"]
        for found in (one, each)
    ]
    assert [pytest.approx([4096.0] * 12), pytest.approx([4096.0] * 3)] == batches
    sent = [
        [piece.dims["elements"] for piece in found if piece.op == "copy_h2d" and piece.blocks]
        for found in (one, each)
    ]
    assert max(sent[0]) == 4 * max(sent[1]) == 4096 * 4 * 64
    server = cluster("hotline-server")
    one_gpu = replace(server, node=replace(server.node, gpus=1))
    alone = deployment_of(start().workload, one_gpu, 1024)
    times = [
        predicted(Hybrid(pooled_on=how), alone).step_us for how in ("one_process", "operators")
    ]
    assert times[0] == pytest.approx(times[1])


@pytest.mark.parametrize("pooled_on", ["host", "operators", "one_process"])
@pytest.mark.parametrize("batch", [2_048, 16_384])
def test_it_is_never_faster_than_tables_in_device_memory(pooled_on: OnHost, batch: int) -> None:
    """A process per GPU exchanges what it exchanges for its own memory, and looks up on the host;
    the one process exchanges nothing, but has all GPUs' samples to look up."""
    plain = deployment_of(load_workload("criteo-terabyte"), cluster("dgx-a100-80gb"), batch)
    hosted = predicted(Hybrid(pooled_on=pooled_on), plain).step_us
    assert hosted > predicted(GpuOnly(), plain).step_us


def test_small_tables_can_stay_on_devices() -> None:
    found = Hybrid(device_table_bytes=ROWS * 64 * 4).apply(start())
    assert {table.tier for table in found.placement.tables} == {"hbm"}
    assert {table.tier for table in Hybrid().apply(start()).placement.tables} == {"host"}
    back = GpuOnly().apply(Hybrid().apply(start())).placement.tables
    assert {(table.tier, table.pooled_on) for table in back} == {("hbm", "device")}

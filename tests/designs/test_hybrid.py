"""The hybrid: who looks rows up in host memory, and what stays on devices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from designs.hot_rows import ROWS, pieces, predicted, start

from perfmodel.designs import deployment_of
from perfmodel.designs.baselines import GpuOnly, Hybrid
from perfmodel.hardware import cluster


def test_the_host_does_more_table_by_table() -> None:
    small = start(batch=1024)
    by_operators, at_once = (
        predicted(Hybrid(pooled_on=how), small).step_us for how in ("operators", "host")
    )
    assert by_operators > at_once


def test_one_process_looks_the_whole_batch_up() -> None:
    """And sends it by way of the first GPU, table by table from there."""
    small = start(batch=4096)
    one, each = (pieces(Hybrid(pooled_on=how).apply(small)) for how in ("one_process", "operators"))
    batches = [
        [piece.dims["batch"] for piece in found if piece.op == "host_embedding_bag"]
        for found in (one, each)
    ]
    assert batches == [[4096.0] * 12, [1024.0] * 12]
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


def test_small_tables_can_stay_on_devices() -> None:
    found = Hybrid(device_table_bytes=ROWS * 64 * 4).apply(start())
    assert {table.tier for table in found.placement.tables} == {"hbm"}
    assert {table.tier for table in Hybrid().apply(start()).placement.tables} == {"host"}
    back = GpuOnly().apply(Hybrid().apply(start())).placement.tables
    assert {(table.tier, table.pooled_on) for table in back} == {("hbm", "device")}

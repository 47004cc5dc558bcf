"""The nodes of one rank: what begins when it was measured to, and the kinds of device work."""

from __future__ import annotations

import math

import numpy as np
import pytest
from timeline.graph.handmade import node_of
from tiny import COMMS, COPIES, GEMM, WORKER, Tiny

from perfmodel.timeline.graph.kinds import NodeKind
from perfmodel.timeline.schedule import schedule


def test_threads_that_nobody_wakes_begin_when_they_did() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.op("aten::mm", 10, 30)
    for start in range(12, 90, 10):
        t.op("read", start, start + 10, WORKER)
    graph = t.graph()
    assert float(schedule(graph).start_us[node_of(graph, "read")]) == 12


@pytest.mark.parametrize("thread", [1, WORKER])
def test_a_kernel_whose_launch_has_no_length_and_no_piece_before_it_keeps_its_time(
    thread: int,
) -> None:
    t = Tiny()
    t.launch(0, 0, kernel=(35, 60), thread=thread)
    t.op("aten::mm", 0, 20)
    t.op("aten::mm", 40, 50, thread)
    graph = t.graph()
    kernel = node_of(graph, GEMM)
    assert math.isfinite(schedule(graph).start_us[kernel])
    assert schedule(graph).start_us[kernel] == pytest.approx(35, abs=5)


def test_collective_kernels_are_collectives_and_copies_are_copies() -> None:
    t = Tiny()
    t.step(1, 0, 100)
    t.launch(0, 5, kernel=(10, 20), name="ncclDevKernel_AllReduce", stream=COMMS)
    t.launch(5, 8, kernel=(20, 25), name="void vllm::cross_device_reduce_1stage<half, 8>")
    t.copy(10, 15, copy=(20, 30), name="Memcpy HtoD (nccl)", stream=COPIES)
    t.launch(20, 25, (30, 35), call="cudaMemsetAsync", name="Memset", category="gpu_memset")
    graph = t.graph()
    kinds = {
        graph.labels[node]: NodeKind(graph.nodes_.kind[node]).name
        for node in np.flatnonzero(graph.on_device)
    }
    assert kinds == {
        "ncclDevKernel_AllReduce": "COLLECTIVE",
        "void vllm::cross_device_reduce_1stage<half, 8>": "COLLECTIVE",
        "Memcpy HtoD (nccl)": "COPY",
        "Memset": "COPY",
    }

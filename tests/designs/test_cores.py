"""Cores of a CPU: a thread of an asynchronous trainer has one, one process those of all sockets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perfmodel.designs.baselines import one_process, with_cores
from perfmodel.hardware import cluster, device

CPUS = ("xeon-e5-2698-v4", "epyc-7742", "xeon-platinum-8480c")


@given(st.sampled_from(CPUS), st.integers(1, 256))
def test_each_core_has_an_even_share(name: str, cores: int) -> None:
    socket = device(name)
    found = with_cores(socket, cores)
    assert found.sm_count == cores
    for figure in ("fp32_tflop_per_s", "hbm_gb_per_s"):
        each, of_socket = getattr(found, figure) / cores, getattr(socket, figure) / socket.sm_count
        assert abs(each / of_socket - 1) < 1e-12
    assert found.l2_bytes <= socket.l2_bytes * cores / socket.sm_count
    assert found.hbm_bytes >= socket.hbm_bytes


def test_all_cores_are_the_socket() -> None:
    socket = device("epyc-7742")
    found = with_cores(socket, socket.sm_count)
    assert (found.l2_bytes, found.llc_bytes) == (socket.l2_bytes, socket.llc_bytes)


def test_one_process_has_all_sockets() -> None:
    found = one_process(cluster("hotline-cpus"))
    assert (found.gpus, found.node.sockets) == (1, 1)
    assert found.node.device.sm_count == 2 * 12
    assert found.node.device.hbm_gb_per_s == 2 * 38.4
    assert found.node.device.hbm_bytes == 2 * 96 * 2**30

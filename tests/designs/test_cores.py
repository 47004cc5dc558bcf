"""A core of a CPU, where a thread of an asynchronous trainer runs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perfmodel.designs.cpu_only import core_of
from perfmodel.hardware import device

CPUS = ("xeon-e5-2698-v4", "epyc-7742", "xeon-platinum-8480c")


@given(st.sampled_from(CPUS))
def test_all_cores_together_are_the_socket(name: str) -> None:
    socket = device(name)
    core = core_of(socket)
    assert core.sm_count == 1
    assert abs(core.fp32_tflop_per_s * socket.sm_count / socket.fp32_tflop_per_s - 1) < 1e-12
    assert abs(core.hbm_gb_per_s * socket.sm_count / socket.hbm_gb_per_s - 1) < 1e-12
    assert core.l2_bytes * socket.sm_count <= socket.l2_bytes
    assert core.hbm_bytes == socket.hbm_bytes

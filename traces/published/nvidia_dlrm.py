"""NVIDIA's DLRM on the CPUs of a node: one process of TensorFlow, in the operators of PyTorch."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.published.designs import Study
from perfmodel.cost.durations import durations_of
from perfmodel.cost.tiers.host_memory import cpu_share
from perfmodel.designs.baselines import hosts_of
from perfmodel.hardware import Device
from perfmodel.ops.rows import Rows
from perfmodel.prediction import predict


def million_samples_per_s(study: Study, step: str) -> tuple[float, str]:
    """The step of one process on all sockets of a node, its batched products on one core.

    TensorFlow deals out the rows of each product, not the products, where one has more than
    128 x 128 multiplications (27 x 27 x 128 here), and each is too small to deal out: one core does
    all, in the backward pass two, one for each operand. Source: `kMaxCostOuterParallelism`,
    tensorflow/core/kernels/matmul_op_impl.h.
    """
    start = study.deployment(step)
    node = start.machine.node
    every = replace(cpu_share(node, 1), hbm_bytes=node.host_memory_bytes or 0)
    hosts = hosts_of(start.machine, sockets=1)
    hosts = replace(hosts, node=replace(hosts.node, device=every))
    workload = start.workload
    found = predict(workload, hardware=[hosts], batch=start.batch).results[0]
    features, dim = len(workload.tables) + 1, workload.dim
    forward = {"op": "bmm", "b": start.batch, "m": features, "n": features, "k": dim}
    backward = forward | {"n": dim, "k": features}
    products = [forward, backward, backward]
    one = replace(every, sm_count=1, fp32_tflop_per_s=every.fp32_tflop_per_s / every.sm_count)
    dealt_out, on_one = (_taken_us(products, device) for device in (every, one))
    serial_us = on_one[0] + on_one[1]
    step_us = found.step_us - sum(dealt_out) + serial_us
    detail = (
        f"{step_us / 1e6:.2f} s a step, {serial_us / 1e6:.2f} s of it batched products on one core"
    )
    return start.batch / step_us, detail


def _taken_us(products: list[dict[str, object]], device: Device) -> list[float]:
    rows = Rows.of([each | {"dtype": "fp32"} for each in products])
    return [float(us) for us in durations_of(rows, device).duration_us]

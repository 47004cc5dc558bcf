"""What TorchInductor makes one kernel of: answers by hand."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from perfmodel.hardware import cluster
from perfmodel.lowering import lower
from perfmodel.ops.edits.compiled import CALL, CALL_US, INPUT_US, MAX_ROW, compiled
from perfmodel.ops.graph import BACKWARD, Argument, Op, OpGraph, Tensor, tensors_in
from perfmodel.ops.read.module import COMPILED, EAGER
from perfmodel.prediction import predict
from perfmodel.prediction.shapes import PASS_SPREAD, predict_passes

IDS = count()


def tensor(*shape: int) -> Tensor:
    at = next(IDS)
    return Tensor(shape, tensor_id=at, storage_id=at, device="cuda:0")


def call(name: str, *inputs: Argument, out: Tensor, phase: str = "forward") -> Op:
    return Op(f"aten::{name}", inputs, (out,), phase=phase)


def kernels(*ops: Op) -> list[Op]:
    """Without what the host does first."""
    first, *others = compiled(OpGraph(ops)).ops
    assert first.name == CALL
    return others


def names(*ops: Op) -> list[str]:
    return [op.name.partition("_fused_")[2] or op.name for op in kernels(*ops)]


def test_chain_of_pointwise_ops_reads_its_inputs_and_writes_its_end_once() -> None:
    x, y, a, b, c = (tensor(64, 32) for _ in range(5))
    found = kernels(call("relu", x, out=a), call("mul", a, y, out=b), call("sigmoid", b, out=c))
    assert [op.name for op in found] == ["triton_poi_fused_mul_relu_sigmoid"]
    assert set(found[0].inputs) == {x, y}
    assert found[0].outputs == (c,)


def test_of_a_table_only_rows_that_are_looked_up_are_read() -> None:
    """Three million rows, of which 64 are read; of four rows no more than these."""
    ids, large, small, a, b, c = (
        tensor(*sizes) for sizes in ((64,), (3_000_000, 32), (4, 32), (64, 32), (64, 32), (64, 32))
    )
    found = kernels(
        call("embedding", large, ids, out=a),
        call("embedding", small, ids, out=b),
        call("add", a, b, out=c),
    )
    assert [each.name for each in found] == ["triton_poi_fused_add_embedding"]
    read = {each.storage_id: each.elements for each in found[0].tensors}
    assert read == {ids.storage_id: 64, large.storage_id: 64 * 32, small.storage_id: 4 * 32}


def test_what_is_read_elsewhere_is_written_too() -> None:
    x, w, a, b, c = tensor(64, 64), tensor(64, 64), tensor(64, 64), tensor(64, 64), tensor(64, 64)
    found = kernels(call("relu", x, out=a), call("exp", a, out=b), call("mm", a, w, out=c))
    assert set(found[0].outputs) == {a, b}


def test_no_kernel_reaches_across_a_product() -> None:
    """The sum reads the first op and what a product made of it: joined with the first, each would
    wait for the other."""
    x, w, a, b, c = (tensor(64, 64) for _ in range(5))
    found = names(call("relu", x, out=a), call("mm", a, w, out=b), call("add", a, b, out=c))
    assert found == ["relu", "aten::mm", "add"]


def test_product_with_a_pointwise_op_behind_it_stays_a_call_of_a_library() -> None:
    x, w, a, b = (tensor(64, 64) for _ in range(4))
    assert names(call("mm", x, w, out=a), call("relu", a, out=b)) == ["aten::mm", "relu"]


@pytest.mark.parametrize(("cols", "kernel_count"), [(MAX_ROW, 1), (2 * MAX_ROW, 2)])
def test_softmax_of_short_rows_is_one_kernel_with_its_neighbours(
    cols: int, kernel_count: int
) -> None:
    x, a, b, c = (tensor(8, cols) for _ in range(4))
    found = kernels(
        call("relu", x, out=a), call("_softmax", a, 1, False, out=b), call("exp", b, out=c)
    )
    assert len(found) == kernel_count


def test_reduction_joins_what_makes_its_input_and_its_few_results() -> None:
    x, a, s, t = tensor(8, 100), tensor(8, 100), tensor(8), tensor(8)
    found = kernels(call("relu", x, out=a), call("sum", a, (1,), out=s), call("sqrt", s, out=t))
    assert len(found) == 1
    assert found[0].name == "triton_red_fused_relu_sqrt_sum"
    assert (found[0].inputs, found[0].outputs) == ((x,), (t,))


def test_batch_norm_is_two_kernels_that_each_read_its_input() -> None:
    x, g, y, z = tensor(4, 8, 64, 64), tensor(8), tensor(4, 8, 64, 64), tensor(4, 8, 64, 64)
    norm = call("cudnn_batch_norm", x, g, g, g, g, True, 0.1, 1e-5, out=y)
    first, second = kernels(norm, call("relu", y, out=z))
    assert x in first.inputs
    assert x in second.inputs
    assert second.outputs == (z,)


def test_batch_norm_with_settled_statistics_is_pointwise_and_its_vectors_cost_nothing() -> None:
    """In inference: one kernel that reads the image once and writes it once, wherever its channels
    lie; eager's kernels divide to find each element's own."""
    x, g, y, z = tensor(4, 8, 64, 64), tensor(8), tensor(4, 8, 64, 64), tensor(4, 8, 64, 64)
    norm = call("native_batch_norm", x, g, g, g, g, False, 0.1, 1e-5, out=y)
    (kernel,) = kernels(norm, call("relu", y, out=z))
    assert (kernel.inputs, kernel.outputs) == ((x, g), (z,))
    (piece,) = lower(OpGraph((kernel,)), "cuda").pieces
    assert "broadcast" not in piece.dims
    assert piece.dims["reads"] + piece.dims["writes"] == pytest.approx(2.0, abs=1e-3)


def test_bias_of_a_convolution_goes_with_what_follows_it() -> None:
    x, w, bias = tensor(2, 3, 8, 8), tensor(4, 3, 1, 1), tensor(4)
    y, z = tensor(2, 4, 8, 8), tensor(2, 4, 8, 8)
    side = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    order, conv, rest = kernels(
        call("convolution", x, w, bias, *side, out=y), call("relu", y, out=z)
    )
    assert order.inputs[0] == x
    assert conv.inputs[0].strides == (192, 1, 24, 3)
    assert conv.inputs[2] is None
    assert bias in rest.inputs
    assert rest.outputs == (z,)


def test_images_of_groups_of_channels_keep_their_layout() -> None:
    x, w, y = tensor(2, 8, 8, 8), tensor(8, 4, 3, 3), tensor(2, 8, 8, 8)
    conv = call("convolution", x, w, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 2, out=y)
    (kernel,) = kernels(conv)
    assert kernel.inputs[0] == x


def test_a_call_takes_longer_for_each_tensor_that_it_is_given() -> None:
    x, w, y, z = (tensor(64, 64) for _ in range(4))
    one = compiled(OpGraph((call("relu", x, out=y),)))
    two = compiled(OpGraph((call("mm", x, w, out=y), call("relu", y, out=z))))
    first, second = (float(graph.ops[0].attributes["host_us"]) for graph in (one, two))
    assert (first, second) == pytest.approx((CALL_US + INPUT_US, CALL_US + 2 * INPUT_US))


def test_views_and_allocations_go_and_phases_stay_apart() -> None:
    x, a, b = tensor(8, 8), tensor(8, 8), tensor(64)
    seen = Tensor((64,), tensor_id=next(IDS), storage_id=a.storage_id, device="cuda:0")
    ops = (
        call("empty", 8, out=tensor(8)),
        call("relu", x, out=a),
        call("view", a, (64,), out=seen),
    )
    assert names(*ops, call("exp", seen, out=b)) == ["exp_relu"]
    assert names(*ops, call("exp", seen, out=b, phase=BACKWARD)) == ["relu", "exp"]


def test_unknown_operator_stays_as_it_is() -> None:
    x, a = tensor(8, 8), tensor(8, 8)
    op = call("sort", x, out=a)
    assert kernels(op) == [op]


def test_every_read_of_a_kernel_was_written_before_it() -> None:
    """Of many ops at random: whatever is fused, nothing is read too early."""
    from random import Random

    random = Random(3)
    held, ops, made = [tensor(16, 16) for _ in range(3)], [], set()
    for _ in range(200):
        name = random.choice(["relu", "add", "mm", "exp"])
        ins = random.choices(held, k=2 if name in ("add", "mm") else 1)
        out = tensor(16, 16)
        ops.append(call(name, *ins, out=out))
        held.append(out)
        made.add(out)
    written: set[Tensor] = set()
    for op in kernels(*ops):
        outputs = set(tensors_in(op.outputs))
        assert not (set(op.tensors) - outputs) & made - written
        written |= outputs


def test_compiled_module_pays_its_call_once_and_moves_less() -> None:
    x, y, z = (tensor(4096, 4096) for _ in range(3))
    graph = OpGraph((call("relu", x, out=y), call("exp", y, out=z)), source="two")
    fused = compiled(graph)
    assert len(lower(fused, "cuda").pieces) == 1
    eager, faster = (predict(g, hardware="h100-sxm").results[0] for g in (graph, fused))
    assert faster.rank.gpu_active_us == pytest.approx(eager.rank.gpu_active_us / 2, rel=0.2)
    small = OpGraph((call("relu", tensor(8), out=tensor(8)),), source="small")
    alone, called = (predict(g, hardware="h100-sxm").results[0] for g in (small, compiled(small)))
    assert called.step_us - alone.step_us > 20


def test_a_calls_interval_is_that_of_its_device_and_its_host_by_mode() -> None:
    graph = OpGraph((call("relu", tensor(4096, 4096), out=tensor(4096, 4096)),), source="one")
    for how, each in ((EAGER, graph), (COMPILED, compiled(graph))):
        found = predict_passes(each, [cluster("h100-sxm")], (), None)
        (result,) = found.results
        active_us = result.rank.gpu_active_us
        parts_us = np.array([active_us, result.step_us - active_us])
        ends = np.transpose(PASS_SPREAD[how]) @ parts_us
        assert (result.low_us, result.high_us) == pytest.approx(tuple(ends))
        assert "without a profiler" in found.warnings[0]

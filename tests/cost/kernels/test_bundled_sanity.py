"""Physical sanity of the models that come with the package, on devices seen and unseen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perfmodel import hardware
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.contract import KERNELS
from perfmodel.cost.durations import default_models, durations_of, explanations_of
from perfmodel.cost.learned.features import FEATURES, describe, matmul_features
from perfmodel.cost.learned.lattice import Lattice, monotone_midway
from perfmodel.errors import ModelError
from perfmodel.ops.rows import Rows

DEVICES = ("p4", "v100-pcie-32gb", "a100-sxm-80gb", "h100-sxm", "mi300x")


def us(device: str, *rows: dict[str, object]) -> np.ndarray:
    return durations_of(Rows.of(rows), hardware.device(device)).duration_us


@given(
    st.sampled_from(("layer_norm", "softmax")),
    st.sampled_from(DEVICES),
    st.sampled_from(("profiler_kernel", "event_single_call")),
    st.integers(1, 1 << 16),
    st.integers(5, 1 << 10),
)
def test_norms_and_softmax_of_twice_a_dim_never_take_less(
    op: str, device: str, timing: str, rows: int, vectors: int
) -> None:
    cols = 8 * vectors
    small = {"op": op, "timing": timing, "rows": rows, "cols": cols}
    found = us(device, small, small | {"rows": 2 * rows}, small | {"cols": 2 * cols})
    assert found[0] <= found[1:].min() * (1 + 1e-9)


@pytest.mark.parametrize("device", ["v100-pcie-32gb", "p100-pcie-16gb", "a100-pcie-40gb"])
@pytest.mark.parametrize("op", ["relu", "mul", "add_scalar"])
def test_kernels_that_the_floor_of_their_measurements_hid_take_what_physics_says(
    device: str, op: str
) -> None:
    """Event timings of 24 us and more tell nothing of kernels of 2 us, which wait for a load."""
    target = hardware.device(device)
    row = Rows.of([{"op": op, "dtype": "fp32", "rows": 3, "cols": 16}])
    physics = KERNELS["gpu/vector/heuristic"].estimate(row, target).duration_us[0]
    waited_us = 0.5 * coefficients("gpu.program").wait_us
    assert durations_of(row, target).duration_us[0] == pytest.approx(physics + waited_us, rel=0.3)


@pytest.mark.parametrize("device", ["rtx-3090", "h20", "gtx-1080-ti", "mi300x"])
def test_fp16_takes_what_bf16_takes_where_neither_was_measured(device: str) -> None:
    """vLLM's lookups on an A100 took 4 times as long."""
    row = {"op": "embedding", "rows": 771, "cols": 2304}
    fp16, bf16 = us(device, row | {"dtype": "fp16"}, row | {"dtype": "bf16"})
    assert fp16 == pytest.approx(bf16)


def test_convolutions_in_fp16_take_what_trees_say_on_unlike_boards_too() -> None:
    """A layer of a ResNet-50 on an RTX 4090: physics alone is a tenth longer."""
    image = {"in_channels": 256, "out_channels": 256, "input_size": 14, "kernel_size": 3}
    row = {"op": "conv2d", "batch": 256, "dtype": "fp16", "padding": 1, "channels_last": 1, **image}
    learned = default_models()["convolution"]
    assert learned.parts[0].answers_for("conv2d", "fp16", hardware.device("rtx-4090"))
    by_physics = learned.heuristic.estimate(Rows.of([row]), hardware.device("rtx-4090"))
    assert us("rtx-4090", row)[0] != pytest.approx(by_physics.duration_us[0], rel=0.01)


def test_products_too_short_to_be_measured_start_cold_in_a_program() -> None:
    """16 x 16 x 16 on a V100, whose tables begin at 4 us."""
    target, sides = hardware.device("v100-sxm2-32gb"), {"m": 16, "n": 16, "k": 16}
    row = Rows.of([{"op": "mm", "dtype": "fp32", **sides}])
    alone_us = default_models()["matmul"].estimate(row, target).duration_us[0]
    started_us = coefficients("gpu.program")["product_us"]["cuda"]
    assert durations_of(row, target).duration_us[0] == pytest.approx(alone_us + started_us)


def support(name: str, device: str, *records: dict[str, object]) -> list[float]:
    """How far rows of the part `name` lie within what was measured."""
    part = next(each for each in default_models()["matmul"].parts if each.fitted.name == name)
    rows, target = Rows.of(records), hardware.device(device)
    columns = FEATURES[part.fitted.family](rows, target)
    return part.kernels(columns, target, part.cell(rows, describe(target)))[1].tolist()


def test_products_that_start_anywhere_or_loop_once_are_left_to_physics() -> None:
    """Linear layers in bf16 were measured on an L40S with sides that are multiples of 32."""
    sides = {"whole": (1024, 4096), "odd": (1023, 4096), "shallow": (1024, 1)}
    rows = [{"op": "linear", "dtype": "bf16", "m": 2048, "n": n, "k": k} for n, k in sides.values()]
    assert support("matmul_half", "l40s", *rows) == pytest.approx([1.0, 0.0, 0.0])
    wide, narrow = (
        durations_of(Rows.of([row | {"k": 4096}]), hardware.device("l40s"))
        for row in (rows[1], rows[0])
    )
    assert wide.high_us / wide.low_us > narrow.high_us / narrow.low_us


@pytest.mark.parametrize(("dtype", "others"), [("fp32", 1), ("bf16", 1), ("fp8", 2)])
def test_a_product_is_a_layer_without_bias(dtype: str, others: int) -> None:
    """In fewer bits than 16 so is a batch of one."""
    dims = {"m": 384, "n": 8000, "k": 320, "dtype": dtype}
    alone = [{"op": "linear", "bias": 0.0}, {"op": "mm"}, {"op": "bmm", "b": 1}][: others + 1]
    asked = Rows.of([each | dims for each in alone])
    for name in ("h200-sxm", "l40s" if dtype == "fp8" else "a100-pcie-40gb"):
        layer_us, *found_us = durations_of(asked, hardware.device(name)).duration_us
        assert found_us == pytest.approx([layer_us] * others)


_ATTENTION = {"op": "attention", "b": 8, "heads": 16, "s": 2048, "head_dim": 128, "causal": 1}
_CONVOLUTION = {"op": "conv2d", "batch": 8, "in_channels": 64, "out_channels": 64}
_CONVOLUTION |= {"kernel_size": 3, "input_size": 56, "stride": 1, "padding": 1}


@pytest.mark.parametrize("row", [{"op": "mm", "m": 8, "n": 8, "k": 8}, _ATTENTION, _CONVOLUTION])
def test_a_product_without_units_is_refused(row: dict[str, object]) -> None:
    rows = Rows.of([row | {"dtype": "fp8"}])
    with pytest.raises(ModelError, match="a100-sxm-80gb: no units for products in fp8"):
        durations_of(rows, hardware.device("a100-sxm-80gb"))
    assert (durations_of(rows, hardware.device("h100-sxm")).duration_us > 0).all()


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "h100-sxm", "b200", "rtx-4090", "mi300x"])
def test_attention_in_16_bits_takes_as_long_in_either_type(name: str) -> None:
    """The units multiply both alike, and only bf16 was measured."""
    of_each = (us(name, _ATTENTION | {"dtype": dtype})[0] for dtype in ("fp16", "bf16"))
    assert next(of_each) == pytest.approx(next(of_each))


def test_a_layer_norm_takes_the_loop_of_a_block_over_its_row() -> None:
    """16 rows of 4,194,304 values are 8,192 steps of 512, 8.1 ms on an H200 and on H100."""
    found_us = us("h200-sxm", {"op": "layer_norm", "rows": 16, "cols": 4_194_304})
    assert found_us[0] == pytest.approx(8081, rel=0.05)


@pytest.mark.parametrize(("name", "tflop_per_s"), [("a100-sxm-80gb", 19.5), ("t4", 0.254)])
def test_products_in_fp64_stay_below_the_rate_of_the_boards_units(
    name: str, tflop_per_s: float
) -> None:
    row = {"op": "mm", "dtype": "fp64", "m": 4096, "n": 4096, "k": 4096}
    reached = 2 * 4096**3 / us(name, row)[0] / 1e6
    assert 0.5 * tflop_per_s < reached <= 1.01 * tflop_per_s


def test_backward_attention_says_that_it_was_not_measured() -> None:
    """Its interval is at least as wide as that of physics alone."""
    row = {"op": "attention", "dtype": "bf16", "b": 8, "s": 2048, "heads": 16, "head_dim": 128}
    rows = Rows.of([row, row | {"direction": "bwd"}])
    found, spread = durations_of(rows, hardware.device("h100-sxm")), coefficients("gpu.heuristic")
    assert [text.split()[0] for text in found.source] == ["measurements", "physics"]
    assert found.high_us[1] / found.duration_us[1] >= spread.spread * (1 - 1e-9)


def test_an_impossible_product_is_named_as_it_was_asked() -> None:
    with pytest.raises(ModelError, match=r"mm \(row 0\): k is missing"):
        durations_of(Rows.of([{"op": "mm", "m": 8, "n": 8}]), hardware.device("t4"))


def test_pytorch_rounds_in_a_kernel_of_its_own() -> None:
    """Serving libraries' layers begin with it; 4 MiB of activations take 3 us and more."""
    rows = [{"op": "linear", "dtype": "fp8", "m": 1024, "n": 1024, "k": 4096}] * 2
    asked = Rows.of([{**rows[0], "framework": "vllm"}, {**rows[1], "framework": "torch"}])
    whole, product = (
        KERNELS["gpu/matmul/heuristic"].estimate(asked, hardware.device("h200-sxm")).duration_us
    )
    assert whole > product + 3.0


def test_a_layer_that_rounds_tells_nothing_of_a_product_alone() -> None:
    """On an L40S fp8 was measured in serving libraries: PyTorch's product is physics."""
    row = {"op": "linear", "dtype": "fp8", "m": 512, "n": 4096, "k": 4096}
    rows = [row | {"framework": name} for name in ("torch", "sglang")]
    assert support("matmul_quantised", "l40s", *rows) == pytest.approx([0.0, 1.0])


@given(
    st.sampled_from(["bmm", "linear"]),
    st.sampled_from(["fp32", "fp16", "bf16"]),
    st.sampled_from(DEVICES),
    *(st.integers(1, 512) for _ in range(3)),
)
def test_products_are_never_faster_than_the_roofline(
    op: str, dtype: str, device: str, m: int, n: int, k: int
) -> None:
    rows = Rows.of([{"op": op, "dtype": dtype, "b": 1, "m": 8 * m, "n": 8 * n, "k": 8 * k}])
    why = explanations_of(rows, hardware.device(device))[0]
    assert why.duration_us >= why.terms["bound_us"] * (1 - 1e-9)


@given(
    st.sampled_from(["fp32", "fp16", "bf16", "fp8", "int8"]),
    st.sampled_from(["m", "n", "k"]),
    st.sampled_from(DEVICES),
    *(st.integers(4, 256) for _ in range(3)),
)
def test_twice_a_dim_takes_no_less(
    dtype: str, name: str, device: str, m: int, n: int, k: int
) -> None:
    """Within a hundredth, of rows of whole vectors: others are slower, and twice them are whole."""
    assume(hardware.device(device).multiplies(dtype))
    small = {"op": "linear", "dtype": dtype, "m": m, "n": 16 * n, "k": 16 * k}
    one, more = us(device, small, small | {name: 2 * small[name]})  # type: ignore[operator]
    assert more >= 0.99 * one


@given(
    st.sampled_from(["fp32", "bf16"]),
    st.sampled_from(["b", "m", "n", "k"]),
    st.sampled_from(DEVICES),
    st.integers(1, 64),
    *(st.integers(8, 256) for _ in range(3)),
)
def test_twice_a_dim_of_a_batch_takes_no_less(
    dtype: str, name: str, device: str, b: int, m: int, n: int, k: int
) -> None:
    small = {"op": "bmm", "dtype": dtype, "b": b, "m": 8 * m, "n": 8 * n, "k": 8 * k}
    one, more = us(device, small, small | {name: 2 * small[name]})  # type: ignore[operator]
    assert more >= one * (1 - 1e-9)


def test_a_lattice_rises_midway_between_what_lies_above_and_below() -> None:
    values = np.array([[1.0, 5.0], [2.0, 3.0]])
    assert monotone_midway(values).tolist() == [[1.0, 4.0], [2.0, 4.0]]


def test_a_lattice_is_exact_at_its_points_and_bounds_between_them() -> None:
    axes = (np.array([0.0, 1.0, 2.0]), np.array([0.0, 2.0]))
    log_us = np.array([[0.0, 2.0], [1.0, 3.0], [2.0, 4.0]])
    known = Lattice(axes, log_us)
    sizes = np.array([[1.0, 0.5, 1.5], [0.0, 1.0, 1.0]])
    assert known.at(sizes).tolist() == [1.0, 1.5, 2.5]
    least, most = known.limits(sizes)
    assert least == pytest.approx([0.75, 1.25, 2.25])  # no less than the edge
    assert most == pytest.approx([1.25, 1.75, 2.75])
    assert known.limits(np.array([[1.9], [1.0]]))[1].tolist() == [np.inf]


def test_linear_layers_in_a_batch_are_not_held_to_the_time_of_one() -> None:
    one = {"op": "linear", "m": 1024, "n": 1024, "k": 1024}
    alone, together = us("a100-sxm-80gb", one, one | {"b": 16})
    assert together > 10 * alone


def test_small_weights_come_from_the_cache_when_a_graph_is_replayed() -> None:
    """16 MB lie five times in an L40S's 96 MB, not in an A100's 40."""
    row = {"op": "linear", "dtype": "bf16", "m": 4, "n": 2048, "k": 4096}
    for name, is_less in (("l40s", True), ("a100-sxm-80gb", False)):
        device = hardware.device(name)
        rows = Rows.of([row | {"timing": "cuda_graph_replay"}])
        from_memory_us = 2048 * 4096 * 2 / (device.stream_gb_per_s * 1e3)
        assert (matmul_features(rows, device).base_us[0] < from_memory_us) == is_less

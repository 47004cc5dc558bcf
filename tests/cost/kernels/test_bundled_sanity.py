"""Physical sanity of the models that come with the package, on devices seen and unseen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel import hardware
from perfmodel.arrays import Floats
from perfmodel.cost.contract import KERNELS
from perfmodel.cost.durations import durations_of, explanations_of
from perfmodel.cost.learned import lattice
from perfmodel.cost.learned.features import matmul_features
from perfmodel.cost.learned.lattice import has_curve, may_be_widened, monotone_midway
from perfmodel.cost.learned.model import Learned
from perfmodel.cost.learned.store import default_models
from perfmodel.errors import ModelError
from perfmodel.hardware import Device
from perfmodel.ops.rows import KERNEL, Rows

DEVICES = ("p4", "v100-pcie-32gb", "a100-sxm-80gb", "h100-sxm", "mi300x")
FLAT = sorted(
    (op, dtype)
    for part in default_models()["vector"].parts
    for op in part.ops
    for dtype in part.dtypes
    if has_curve(part, op)
)


def us(device: str, *rows: dict[str, object]) -> np.ndarray:
    return durations_of(Rows.of(rows), hardware.device(device)).duration_us


@given(
    st.sampled_from(FLAT),
    st.sampled_from(DEVICES),
    st.sampled_from(("profiler_kernel", "cuda_graph_replay", "event_single_call")),
    st.integers(1, 1 << 18),
    st.integers(1, 1 << 12),
    st.floats(1.0, 9.0),
)
def test_elementwise_ops_never_take_less_for_more(
    kind: tuple[str, str], device: str, timing: str, rows: int, cols: int, by: float
) -> None:
    small = {"op": kind[0], "dtype": kind[1], "timing": timing, "rows": rows, "cols": cols}
    found = us(device, small, small | {"rows": int(rows * by)}, small | {"cols": int(cols * by)})
    assert found[0] <= found[1:].min() * (1 + 1e-9)


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


@given(st.sampled_from(FLAT), st.sampled_from(DEVICES), st.floats(10.0, 30.0))
def test_elementwise_times_are_continuous(
    kind: tuple[str, str], device: str, log2_elements: float
) -> None:
    size = int(2**log2_elements)
    rows = [{"op": kind[0], "dtype": kind[1], "rows": size + more, "cols": 1} for more in (0, 1)]
    one, next_to_it = us(device, *rows)
    assert next_to_it == pytest.approx(one, rel=20 / size + 1e-9)


@pytest.mark.parametrize("device", ["v100-pcie-32gb", "p100-pcie-16gb", "a100-pcie-40gb"])
@pytest.mark.parametrize("op", ["relu", "mul", "add_scalar"])
def test_kernels_that_the_floor_of_their_measurements_hid_take_what_physics_says(
    device: str, op: str
) -> None:
    """Event timings of 24 us and more tell nothing of kernels of 2 us."""
    target = hardware.device(device)
    row = Rows.of([{"op": op, "dtype": "fp32", "rows": 3, "cols": 16}])
    physics = KERNELS["gpu/vector/heuristic"].estimate(row, target).duration_us[0]
    assert durations_of(row, target).duration_us[0] == pytest.approx(physics, rel=0.3)


def test_products_that_start_anywhere_or_loop_once_are_left_to_physics() -> None:
    """Linear layers in bf16 were measured on an L40S with sides that are multiples of 32."""
    l40s = hardware.device("l40s")
    part = next(each for each in default_models()["matmul"].parts if each.name == "matmul_half")
    sides = {"whole": (1024, 4096), "odd": (1023, 4096), "shallow": (1024, 1)}
    rows = Rows.of([{"op": "linear", "m": 2048, "n": n, "k": k} for n, k in sides.values()])
    columns = matmul_features(rows, l40s, part.tiles)
    sources = part.standing(part.known_to("linear", "bf16"), l40s).sources
    support = part.support("linear", "bf16", columns, np.arange(3), sources)
    assert support.tolist() == pytest.approx([1.0, 0.0, 0.0])
    wide, narrow = (
        durations_of(
            Rows.of([{"op": "linear", "dtype": "bf16", "m": 2048, "n": n, "k": 4096}]),
            l40s,
        )
        for n in (1023, 1024)
    )
    assert wide.high_us / wide.low_us > 1.2 * narrow.high_us / narrow.low_us


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "tf32", "fp8"])
def test_a_product_is_a_layer_without_bias(dtype: str) -> None:
    dims = {"m": 384, "n": 8000, "k": 320, "dtype": dtype}
    alone = [{"op": "mm"}, {"op": "bmm", "b": 1}, {"op": "linear", "bias": 0.0}]
    asked = Rows.of([each | dims for each in alone])
    for name in ("h200-sxm", "a100-pcie-40gb"):
        product_us, batch_us, layer_us = durations_of(asked, hardware.device(name)).duration_us
        assert [product_us, batch_us] == pytest.approx([layer_us] * 2)


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
    row = {"op": "linear", "dtype": "fp8", "m": 512, "n": 4096, "k": 4096, "framework": "torch"}
    part = next(
        each for each in default_models()["matmul"].parts if each.name == "matmul_quantised"
    )
    rows, l40s = Rows.of([row, {**row, "framework": "sglang"}]), hardware.device("l40s")
    columns = matmul_features(rows, l40s, part.tiles)
    sources = part.standing(part.known_to("linear", "fp8"), l40s).sources
    support = part.support("linear", "fp8", columns, np.arange(2), sources)
    assert support.tolist() == pytest.approx([0.0, 1.0])


def test_indices_are_not_a_matter_of_elements() -> None:
    assert all(op != "embedding" for op, _ in FLAT)
    assert {"add", "relu"} <= {op for op, _ in FLAT}


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
    small = {"op": "linear", "dtype": dtype, "m": m, "n": 8 * n, "k": 8 * k}
    one, more = us(device, small, small | {name: 2 * small[name]})  # type: ignore[operator]
    assert more >= one * (1 - 1e-9)


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


@given(
    st.sampled_from(["bmm", "linear", "mm"]),
    st.sampled_from(["fp16", "bf16"]),
    st.sampled_from(("a100-sxm-80gb", "h100-sxm", "l40s", "b200", "mi300x")),
    st.integers(1, 64),
    *(st.integers(1, 512) for _ in range(3)),
)
def test_aligned_products_take_no_longer_in_16_bits_than_in_fp32(
    op: str, dtype: str, device: str, b: int, m: int, n: int, k: int
) -> None:
    sizes = {"op": op, "b": b if op == "bmm" else 1, "m": m, "n": 8 * n, "k": 8 * k}
    rows = Rows.of([sizes | {"dtype": dtype}, sizes | {"dtype": "fp32"}])
    found = durations_of(rows, hardware.device(device))
    narrow, wide = found.duration_us
    assert narrow <= wide * (1 + 1e-9)
    assert found.low_us[0] <= narrow <= found.high_us[0]


def test_fp16_on_a_v100_is_held_to_fp32_and_bf16_which_it_lacks_is_not() -> None:
    small = {"op": "linear", "m": 64, "n": 64, "k": 64}
    half, brain, single = us(
        "v100-pcie-32gb", *(small | {"dtype": d} for d in ("fp16", "bf16", "fp32"))
    )
    assert half <= single < brain


def test_explanations_of_16_bit_products_say_what_fp32_would_take() -> None:
    row = Rows.of([{"op": "linear", "dtype": "fp16", "m": 64, "n": 64, "k": 64}])
    wide = Rows.of([{"op": "linear", "dtype": "fp32", "m": 64, "n": 64, "k": 64}])
    target = hardware.device("h100-sxm")
    why = explanations_of(row, target)[0]
    assert "fp32_us" in why.formula
    assert why.duration_us <= why.terms["fp32_us"] * (1 + 1e-9)
    assert why.terms["fp32_us"] == pytest.approx(durations_of(wide, target).duration_us[0])
    assert "fp32_us" not in explanations_of(wide, target)[0].terms


def test_fp32_bears_on_aligned_products_in_16_bits() -> None:
    device = hardware.device("h100-sxm")
    rows = [
        {"op": "linear", "dtype": "bf16", "m": 64, "n": 64, "k": 64},
        {"op": "linear", "dtype": "bf16", "m": 64, "n": 63, "k": 64},
        {"op": "linear", "dtype": "fp32", "m": 64, "n": 64, "k": 64},
        {"op": "add", "dtype": "bf16", "rows": 64, "cols": 64},
    ]
    assert may_be_widened(Rows.of(rows), device).tolist() == [0]


def test_what_is_not_asked_about_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches take what they would take if fp32 and single products were asked about for all."""
    sides = 8.0 * np.ceil(2.0 ** np.random.default_rng(0).uniform(2.0, 6.0, (3, 30)))
    dims = dict(zip("mnk", sides, strict=True)) | {"b": np.full(30, 2.0)}
    rows = Rows(("bmm",) * 30, ("fp16",) * 30, ("fwd",) * 30, (KERNEL,) * 30, dims)
    v100, learned = hardware.device("v100-sxm2-16gb"), default_models()["matmul"]
    held_us = learned.estimate(rows, v100).duration_us

    def no_limits(_: Learned, rows: Rows, device: Device) -> tuple[Floats, Floats]:
        return np.zeros(len(rows)), np.full(len(rows), np.inf)

    monkeypatch.setattr(Learned, "_limits_us", no_limits)
    assert learned.estimate(rows, v100).duration_us == pytest.approx(held_us, rel=1e-12)


def test_a_lattice_rises_midway_between_what_lies_above_and_below() -> None:
    values = np.array([[1.0, 5.0], [2.0, 3.0]])
    assert monotone_midway(values).tolist() == [[1.0, 4.0], [2.0, 4.0]]


def test_a_lattice_is_exact_at_its_points_and_bounds_between_them() -> None:
    axes = (np.array([0.0, 1.0, 2.0]), np.array([0.0, 2.0]))
    log_us = np.array([[0.0, 2.0], [1.0, 3.0], [2.0, 4.0]])
    known = lattice.Lattice(axes, log_us)
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


def test_few_products_of_a_batch_do_not_tell_of_linear_layers() -> None:
    """fp16 on V100: 152 products of a batch; the A100's many linear layers tell of both."""
    part = next(each for each in default_models()["matmul"].parts if "fp16" in each.dtypes)
    chips = [
        {place for place in part.known_to(op, "bf16") if part.devices[place]["capability"] == 7.0}
        for op in ("bmm", "linear")
    ]
    assert chips[0]
    assert not chips[1]
    assert set(part.known_to("bmm", "fp16")) > set(part.known_to("linear", "fp16"))
    assert part.known_to("mm", "fp16") == part.known_to("bmm", "fp16")


def test_small_weights_come_from_the_cache_when_a_graph_is_replayed() -> None:
    """16 MB lie five times in an L40S's 96 MB, not in an A100's 40."""
    row = {"op": "linear", "dtype": "bf16", "m": 4, "n": 2048, "k": 4096}
    timings = ("profiler_kernel", "cuda_graph_replay")
    inside, replayed = (
        matmul_features(Rows.of([row | {"timing": timing}]), hardware.device("l40s"), {}).base_us[0]
        for timing in timings
    )
    assert replayed < 0.6 * inside
    inside, replayed = (
        matmul_features(
            Rows.of([row | {"timing": timing}]), hardware.device("a100-sxm-80gb"), {}
        ).base_us[0]
        for timing in timings
    )
    assert replayed == pytest.approx(inside, rel=0.02)


def test_intervals_of_a_board_against_its_power_limit_reach_towards_its_peak() -> None:
    row = Rows.of([{"op": "linear", "m": 8192, "n": 8192, "k": 8192}])
    t4, v100 = (durations_of(row, hardware.device(name)) for name in ("t4", "v100-pcie-32gb"))
    assert t4.low_us[0] / t4.duration_us[0] < 0.75 < v100.low_us[0] / v100.duration_us[0]

"""Low precision: what budgets allow, what it buys, what cannot be."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from perfmodel.cost.durations import durations_of
from perfmodel.designs import Deployment, deployment_of
from perfmodel.designs.low_precision import (
    ROUNDING_ERRORS,
    LowPrecision,
    error_of,
    within,
)
from perfmodel.designs.smartnic import SmartNic
from perfmodel.errors import WorkloadError
from perfmodel.hardware import cluster, device, load, node
from perfmodel.ops.rows import Rows
from perfmodel.prediction import predict
from perfmodel.workload import load_workload, op_graph

MINE = load_workload("smartnic-rm").with_(interaction__pad_to=16)
"""Padded: tensor cores read rows of whole 16 bytes."""
MACHINE = cluster("dgx-a100-80gb")


def deployed(*, train: bool = False, batch: int = 16_384) -> Deployment:
    return deployment_of(MINE, MACHINE, batch, train=train)


def step_us(deployment: Deployment) -> float:
    return predict(deployment).results[0].step_us


def test_rounding_errors_by_hand() -> None:
    assert error_of("int8") == pytest.approx(1 / 255)
    assert error_of("int4") == pytest.approx(1 / 15)
    assert error_of("fp16") == pytest.approx(2**-11 / 3**0.5)
    assert within(0.005, ("fp16", "int8", "int4")) == ("fp16", "int8")
    assert within(0.0, ("fp16", "int8")) == ()


def test_int8_where_it_is_borne_and_faster() -> None:
    found = LowPrecision().search(deployed())
    by_name = {choice.name: choice for choice in found.layers}
    assert by_name["top[0]"].dtype == "int8"
    assert by_name["bottom[0]"].dtype == by_name["top[3]"].dtype == "fp16"
    assert by_name["top[3]"].bytes == 256 * 1 * 2
    assert sum(each.us for each in found.layers) < sum(each.wide_us for each in found.layers)
    assert {choice.dtype for choice in found.tables} == {"int8"}
    assert "bottom[0]" in found.higher
    assert "top[0]" not in found.higher


@pytest.mark.slow
@pytest.mark.parametrize("train", [False, True])
def test_no_other_types_of_layers_make_a_faster_step(*, train: bool) -> None:
    """All sixteen ways through four layers, each scheduled as a whole."""
    small = MINE.with_(
        model__bottom_mlp=[512, 128],
        model__top_mlp=[512, 1],
        implementation__cuda_graphs=True,
        implementation__precision="fp32",
    )
    plain = deployment_of(small, MACHINE, 65_536, train=train)
    chosen = LowPrecision(layer_dtypes=("fp16",)).search(plain)
    ways = {
        types: step_us(
            plain.with_(
                workload=small.with_(
                    implementation__name="torchrec", implementation__layer_precisions=list(types)
                )
            )
        )
        for types in product(("fp32", "fp16"), repeat=4)
    }
    taken = ways[tuple(choice.dtype for choice in chosen.layers)]
    assert taken < min(ways.values()) * 1.005
    assert taken < 0.95 * max(ways.values())


def test_rows_that_tensor_cores_read_slowly_gain_less() -> None:
    gains = []
    for workload in (load_workload("smartnic-rm"), MINE):
        wide = deployment_of(workload, MACHINE, 16_384, train=False)
        half, narrow = (
            LowPrecision(layer_dtypes=dtypes).search(wide).layers[3]
            for dtypes in (("fp16",), ("fp16", "int8"))
        )
        assert half.name == "top[0]"
        gains.append((half.wide_us / half.us, half.us / narrow.us))
    (half, narrow), (padded_half, padded_narrow) = gains
    assert half < padded_half
    assert narrow < padded_narrow


def test_a_budget_of_its_own_keeps_a_layer_in_higher_precision() -> None:
    budgets = (0.005, 0.005, 0.005, 0.0005, 0.005, 0.005, 0.005)
    found = LowPrecision(layer_errors=budgets).search(deployed())
    kept = found.layers[3]
    assert (kept.name, kept.dtype, kept.held_by) == ("top[0]", "fp16", "error budget")
    faster = LowPrecision().search(deployed()).layers[3]
    assert faster.us < kept.us


def test_wider_budgets_never_take_longer_or_more_bytes() -> None:
    plain = deployed()
    found = [
        LowPrecision(
            layer_errors=(budget,),
            table_errors=(budget,),
            ends_error=budget,
            row_dtypes=("fp16", "int8", "int4"),
        ).search(plain)
        for budget in (1e-5, 1e-3, 5e-3, 0.1)
    ]
    times = [sum(choice.us for choice in each.layers) for each in found]
    sizes = [sum(choice.bytes for choice in each.tables) for each in found]
    assert times == sorted(times, reverse=True)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0] / 6


def test_it_buys_time_and_memory() -> None:
    plain = deployed()
    low = LowPrecision(row_dtypes=("fp16", "int8", "int4"), table_errors=(0.07,)).apply(plain)
    assert step_us(low) < step_us(plain)
    memory = [predict(each).results[0].to_dict()["memory"]["tables_bytes"] for each in (plain, low)]
    assert memory[0] / memory[1] == pytest.approx(512 / 80)


def test_training_takes_sixteen_bits_at_the_least() -> None:
    low = LowPrecision().apply(deployed(train=True))
    assert {table.dtype for table in low.placement.tables} == {"fp16"}
    assert set(low.workload.implementation.layer_precisions) <= {"fp16", "tf32"}
    assert step_us(low) < step_us(deployed(train=True))


def test_the_exchange_carries_what_its_type_takes() -> None:
    sent = {}
    for wire in ("fp32", "fp16", "int8"):
        low = LowPrecision(exchange=wire).apply(deployed())
        graph = op_graph(low.workload, low.batch, ranks=8, train=False, placement=low.placement)
        call = [op for op in graph.ops if op.name == "c10d::alltoall_base_"][-1]
        size = {"fp32": 4, "fp16": 2, "uint8": 1}[call.attributes["dtype"]]
        sent[wire] = int(call.attributes["in_elements"]) * size
    assert sent["fp32"] == 2 * sent["fp16"]
    assert sent["int8"] / sent["fp32"] == pytest.approx((128 + 8) / 512)


@pytest.mark.parametrize(("train", "precision"), [(False, "fp32"), (True, "fp32"), (True, "fp16")])
@pytest.mark.parametrize("kept", ["budgets", "types"])
def test_what_may_not_be_narrowed_is_the_step_without_it(
    *, train: bool, precision: str, kept: str
) -> None:
    """No type but the own has an error below 1e-9, that of fp32 being 2^-24 / 3^0.5 = 3.4e-8."""
    plain = deployment_of(
        MINE.with_(implementation__precision=precision), MACHINE, 4_096, train=train
    )
    tiny = dict.fromkeys(("layer_errors", "table_errors", "exchange_errors"), (1e-9,))
    none = {
        "budgets": LowPrecision(**tiny, ends_error=1e-9),  # type: ignore[arg-type]
        "types": LowPrecision(layer_dtypes=("keep",), row_dtypes=("keep",), exchange="keep"),
    }[kept]
    low = none.apply(plain)
    assert low.workload == plain.workload
    assert low.placement == plain.placement
    assert "no budget bears" in low.without_gain[0]
    assert step_us(low) == step_us(plain)


@pytest.mark.parametrize(
    ("errors", "wire"),
    [((0.005,), "int8"), ((0.005, 0.005), "int8"), ((0.005, 0.001), "fp32"), ((0.001,), "fp32")],
)
def test_the_exchange_is_as_narrow_as_both_ways_bear(errors: tuple[float, ...], wire: str) -> None:
    """int8 rounds by 1 / 255 = 0.0039 of the range."""
    low = LowPrecision(exchange="int8", exchange_errors=errors)
    assert low.apply(deployed()).workload.implementation.exchange_precision == wire


def test_it_goes_with_a_smartnic_in_that_order_alone() -> None:
    nic = load("u280")
    machine = cluster(replace(node("a100-sxm-40gb"), gpus=1, nics=1, nic=nic), 8)  # type: ignore[arg-type]
    plain = deployment_of(MINE.with_(table__pooling=1), machine, 8192, train=False)
    low = LowPrecision().apply(plain)
    both = SmartNic(cache_gib=0.5).apply(low)
    assert step_us(both) < step_us(plain)
    with pytest.raises(WorkloadError, match="before theirs"):
        LowPrecision().apply(SmartNic(cache_gib=0.5).apply(plain))


@pytest.mark.parametrize(
    ("design", "message"),
    [
        (LowPrecision(layer_errors=(0.1, 0.1)), "2 error budgets for 7 layers"),
        (LowPrecision(exchange_errors=(0.1,) * 3), "3 error budgets for 2 ways of the exchange"),
    ],
)
def test_what_cannot_be_is_refused(design: LowPrecision, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        design.apply(deployed())


def test_an_exchange_in_no_known_type_is_refused() -> None:
    with pytest.raises(WorkloadError, match="unknown exchange 'int2': one of fp32, fp16"):
        LowPrecision(exchange="int2")


@pytest.mark.parametrize("budget", [-1.0, float("nan")])
@pytest.mark.parametrize("name", ["layer_errors", "table_errors", "exchange_errors", "ends_error"])
def test_error_budgets_that_cannot_be(name: str, budget: float) -> None:
    each = (budget,) if name.endswith("errors") else budget
    with pytest.raises(WorkloadError, match=f"{name}.*got {budget}"):
        LowPrecision(**{name: each})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings_", [{"layer_dtypes": ("int3",)}, {"layer_dtypes": ("int4",)}, {"row_dtypes": ("x",)}]
)
def test_unknown_types_are_refused(settings_: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(WorkloadError, match="low_precision"):
        LowPrecision(**settings_)  # type: ignore[arg-type]


def test_quantised_rows_and_layers_are_not_trained() -> None:
    for changes in (
        {"implementation__table_precision": "int8"},
        {"implementation__layer_precisions": ["int8"] * 7},
    ):
        with pytest.raises(WorkloadError, match="trained"):
            op_graph(MINE.with_(**changes), 512)
        assert op_graph(MINE.with_(**changes), 512, train=False).ops


def test_precisions_of_layers_are_checked() -> None:
    with pytest.raises(WorkloadError, match="2 entries for 7 layers"):
        MINE.with_(implementation__layer_precisions=["int8", "fp16"])
    with pytest.raises(WorkloadError, match="expected one of"):
        MINE.with_(implementation__layer_precisions=["int3"] * 7)
    with pytest.raises(WorkloadError, match="expected one of"):
        MINE.with_(implementation__table_precision="int3")


@pytest.mark.parametrize(("name", "most"), [("xeon-platinum-8380", 4.0), ("xeon-4116", 2.0)])
def test_int8_products_on_a_cpu_are_at_most_as_much_faster_as_its_units(
    name: str, most: float
) -> None:
    rows = [
        {"op": "linear", "dtype": dtype, "b": 1, "m": 2048, "n": 1024, "k": 1024, "bias": 1}
        for dtype in ("fp32", "int8")
    ]
    taken = durations_of(Rows.of(rows), device(name)).duration_us
    assert 0.8 * most < taken[0] / taken[1] <= most


def test_errors_grow_as_bits_shrink() -> None:
    order = ("fp32", "fp16", "bf16", "int8", "fp8", "int4")
    assert [ROUNDING_ERRORS[dtype] for dtype in order] == sorted(
        ROUNDING_ERRORS[dtype] for dtype in order
    )

"""A sequential recommender's step: what grows with lengths, what ranks wait for, what travels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.designs import DESIGNS, deployment_of
from perfmodel.embedding import Placement, RowCache, TablePlacement
from perfmodel.errors import ModelError, WorkloadError
from perfmodel.hardware import cluster
from perfmodel.lowering import lower
from perfmodel.lowering.lower import Lowered
from perfmodel.ops.spec import OPS
from perfmodel.prediction import predict
from perfmodel.workload import Workload, load_workload, op_graph
from perfmodel.workload.sequences import ALIGNED, slowest_lengths


@pytest.fixture(scope="module")
def equal() -> Workload:
    """All sequences equally long, every row another."""
    return load_workload("dlrm-v4-hstu").with_(
        sequence__length_std=0.0, sequence__unique_frac=[1.0] * 11, sequence__index_dedup=False
    )


def frame_of(lowered: Lowered) -> pd.DataFrame:
    """A line for each piece: the operator that it is of, its row op and dims."""
    owners = [lowered.graph.ops[at].name for at in lowered.owner.tolist()]
    return pd.DataFrame({"owner": owners, "op": lowered.rows.op, **lowered.rows.dims})


def longer(workload: Workload, times: int) -> Workload:
    """Every history `times` as long."""
    changed = workload.with_(sequence__max_length=100_000)
    tables = tuple(
        replace(table, pooling=times * table.pooling) if table.pooling > 1 else table
        for table in changed.tables
    )
    return replace(changed, tables=tables)


def families(workload: Workload, batch: int) -> dict[str, float]:
    found = predict(workload, hardware="hgx-mi350x", nodes=1, batch=batch).results[0].families
    return {each["family"]: each["time_us"] for each in found}


def test_longer_histories_cost_quadratically_in_attention_and_linearly_elsewhere(
    equal: Workload,
) -> None:
    once, twice = (families(longer(equal, times), 512) for times in (1, 2))
    assert twice["attention"] / once["attention"] == pytest.approx(4.0, rel=0.05)
    for other in ("matmul", "elementwise"):
        assert twice[other] / once[other] == pytest.approx(2.0, rel=0.15)


def test_equal_lengths_leave_no_imbalance(equal: Workload) -> None:
    assert slowest_lengths(equal, 1024, 1) == slowest_lengths(equal, 1024, 32)


def test_the_slowest_of_more_ranks_has_more(equal: Workload) -> None:
    """Against sums drawn of as many independent histories, each of several samples."""
    uneven = equal.with_(sequence__length_std=350.0, sequence__samples_per_user=32.0)
    found = [slowest_lengths(uneven, 1024, ranks).tokens for ranks in (1, 8, 32)]
    assert found[0] < found[1] < found[2]
    drawn = np.random.default_rng(0).normal(2636.0, 350.0, (2000, 32, 32)).sum(2) * 32.0
    for ranks, tokens in zip((8, 32), found[1:], strict=True):
        assert tokens == pytest.approx(drawn[:, :ranks].max(1).mean(), rel=0.002)


def test_squares_spread_by_more_than_lengths(equal: Workload) -> None:
    """Against sums drawn of lengths between 0 and 4,096 that are all as likely."""
    tables = tuple(
        replace(table, pooling=2040.0) if table.pooling > 1 else table for table in equal.tables
    )
    flat = replace(equal, tables=tables).with_(
        sequence__length_std=4096 / 12**0.5, sequence__samples_per_user=1.0
    )
    drawn = np.random.default_rng(3).uniform(0.0, 4096.0, (2000, 16, 32))
    worst = (drawn * (drawn + 1) / 2).sum(2).max(1).mean()
    assert slowest_lengths(flat, 32, 16).pairs == pytest.approx(worst, rel=0.02)


@given(st.floats(0.0, 900.0), st.integers(2, 64), st.integers(1, 64))
@settings(max_examples=40, deadline=None)
def test_balanced_sequences_are_never_more(std: float, batch: int, ranks: int) -> None:
    workload = load_workload("dlrm-v4-hstu").with_(sequence__length_std=std)
    even = slowest_lengths(workload.with_(sequence__balanced=True), batch, ranks)
    uneven = slowest_lengths(workload, batch, ranks)
    assert even.tokens <= uneven.tokens
    assert even.pairs <= uneven.pairs * (1 + 1e-12)
    assert uneven.pairs <= batch * (4096.0**2 + 4096.0) / 2


def test_balancing_equal_lengths_costs_and_gains_nothing(equal: Workload) -> None:
    plain, balanced = (
        predict(each, hardware="hgx-mi350x", nodes=1, batch=512).results[0]
        for each in (equal, equal.with_(sequence__balanced=True))
    )
    assert balanced.rank.comm_us > plain.rank.comm_us
    assert balanced.step_us >= plain.step_us * (1 - 1e-9)


def test_balancing_gains_where_lengths_differ() -> None:
    uneven = load_workload("dlrm-v4-hstu")
    plain, balanced = (
        predict(each, hardware="hgx-mi350x", nodes=1, batch=8192).results[0].step_us
        for each in (uneven, uneven.with_(sequence__balanced=True))
    )
    assert balanced < 0.99 * plain


def test_kernels_that_overlap_are_faster_and_need_nvidia() -> None:
    workload = load_workload("dlrm-v4-hstu")
    cutlass = workload.with_(sequence__kernels="cutlass")
    steps = [
        predict(each, hardware="hgx-b200", nodes=1, batch=1024).results[0].step_us
        for each in (cutlass, workload)
    ]
    assert steps[0] < steps[1]
    with pytest.raises(WorkloadError, match='kernels: "cutlass" needs an NVIDIA GPU'):
        predict(cutlass, hardware="hgx-mi350x", nodes=1)


def test_products_in_fp8_are_those_of_the_layers(equal: Workload) -> None:
    """Two forward, one of them again, and four backward, of each of three layers."""
    narrow = equal.with_(implementation__precision="fp8")
    ops = op_graph(narrow, 8).ops
    products = [op for op in ops if op.name == "quantised::linear"]
    assert len(products) == 3 * (2 + 1 + 4)
    assert {op.tensors[1].dtype for op in products} == {"fp8"}
    assert sum(op.name == "hstu::to_fp8" for op in ops) == len(products)
    assert {op.attributes["framework"] for op in products} == {"trtllm"}
    plain = [op.tensors for op in op_graph(equal, 8).ops if op.name == "aten::mm"]
    flop = sum(x.shape[0] * x.shape[1] * y.shape[1] for x, y in plain)
    narrow_flop = sum(op.tensors[0].elements * op.tensors[1].shape[0] for op in products)
    assert 0.9 < narrow_flop / flop <= 1.0


def test_fp8_needs_its_software_and_its_devices(equal: Workload) -> None:
    with pytest.raises(WorkloadError, match='"fp8" needs "hstu", got "torchrec"'):
        load_workload("dlrm-dcnv2").with_(
            implementation__name="torchrec", implementation__precision="fp8"
        )
    with pytest.raises(ModelError, match="a100-sxm-80gb: no units for products in fp8"):
        predict(
            equal.with_(implementation__precision="fp8"),
            hardware="dgx-a100-80gb",
            nodes=1,
            batch=64,
        )


def test_pairs_are_half_the_sum_of_squares(equal: Workload) -> None:
    uneven = equal.with_(sequence__length_std=350.0)
    drawn = np.random.default_rng(1).normal(2636.0, 350.0, 100_000)
    assert slowest_lengths(uneven, 1024, 1).pairs == pytest.approx(
        1024 * (drawn * (drawn + 1) / 2).mean(), rel=0.002
    )


def test_work_of_attention_by_hand() -> None:
    """Ten pairs, 2 heads of 4 and 3: 2 x 10 x 2 x (4 + 3); backward 3 x 4 + 2 x 3."""
    dims = {
        name: np.array([value])
        for name, value in {
            "tokens": 4.0,
            "pairs": 10.0,
            "heads": 2.0,
            "head_dim": 4.0,
            "value_dim": 3.0,
        }.items()
    }
    spec = OPS["jagged_attention"]
    assert spec.of("fwd").flop(dims) == 280.0
    assert spec.of("bwd").flop(dims) == 720.0
    assert spec.of("fwd").read_bytes(dims, np.array([2.0])) == 2 * 4 * 2 * (2 * 4 + 3)


def test_distinct_rows_alone_travel(equal: Workload) -> None:
    """Rows in fp16, forward and back, of what each table is asked for."""
    few = equal.with_(sequence__unique_frac=[0.25] * 11, sequence__index_dedup=True)
    sent = [rows_sent(each) for each in (equal, few)]
    assert sent[1] / sent[0] == pytest.approx(0.25, rel=0.01)
    positions = slowest_lengths(equal, 16, 4).tokens - 16 * 8
    assert sent[0] == pytest.approx(2 * 512 * (3 * positions + 8 * 16), rel=0.01)


def rows_sent(workload: Workload) -> int:
    return sum(
        int(op.attributes["in_elements"])
        for op in op_graph(workload, 64, ranks=4).ops
        if op.name == "record_param_comms"
        and op.attributes["collective"] == "all_to_all"
        and op.attributes["dtype"] == "fp16"
    )


def test_exchanged_rows_are_sorted_by_rank_and_selected(equal: Workload) -> None:
    """A pass before and one after the exchange; rows of tables in row-wise parts are selected."""
    for sharding, selected in (("row_wise", 11), ("table_wise", 0)):
        ops = op_graph(equal.with_(implementation__sharding=sharding), 64, ranks=4).ops
        assert sum(op.name == "hstu::rows_by_rank" for op in ops) == 2
        assert sum(op.name == "aten::index_add" for op in ops) == selected


def test_sorting_out_repeats_gains_nothing_where_there_are_none(equal: Workload) -> None:
    plain, sorted_out = (
        predict(each, hardware="hgx-mi350x", nodes=1, batch=512).results[0].step_us
        for each in (equal, equal.with_(sequence__index_dedup=True))
    )
    assert sorted_out > plain


def test_without_training_there_is_no_dropout(equal: Workload) -> None:
    names = {op.name for op in op_graph(equal, 16, train=False).ops}
    assert "hstu::attention" in names
    assert not [name for name in names if "backward" in name or "mask" in name]


def test_positions_are_whole_blocks(equal: Workload) -> None:
    assert slowest_lengths(equal.with_(sequence__length_std=77.0), 100, 3).tokens % ALIGNED == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence__length_std": 2000.0}, "length_std 2000: lengths from 0 to max_length 4096"),
        ({"sequence__max_length": 2000}, "max_length 2000 is below the mean length 2636"),
        ({"sequence__unique_frac": [0.5]}, "unique_frac has 1 entries for 11 tables"),
        ({"implementation__name": "torchrec"}, 'sequence.layers needs "hstu", got "torchrec"'),
        ({"table__pooling": 1.0}, "need one number of positions"),
        ({"table__pooling": 0.5}, "tables\\[0\\]: pooling 0.5: a table of sequences"),
        ({"sequence__layers": 0}, "layers"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        load_workload("dlrm-v4-hstu").with_(**changes)


def test_tables_whole_on_a_rank_send_as_many_rows(equal: Workload) -> None:
    """Each rank is sent all rows that it asked for, however tables are laid out."""
    found = {
        layout: [
            int(op.attributes["out_elements"])
            for op in op_graph(
                equal.with_(implementation__sharding=layout), 64, ranks=4, train=False
            ).ops
            if op.name == "record_param_comms" and op.attributes["dtype"] == "fp16"
        ]
        for layout in ("row_wise", "table_wise")
    }
    assert found["table_wise"] == pytest.approx(found["row_wise"], rel=1e-3)
    with pytest.raises(WorkloadError, match='row_wise, table_wise, balanced, got "planned"'):
        op_graph(equal.with_(implementation__sharding="planned"), 64, ranks=4)


def test_the_rank_with_a_large_table_sends_most(equal: Workload) -> None:
    """Of eleven tables the three that are read position by position are on three of four ranks."""
    whole = equal.with_(implementation__sharding="table_wise")
    sent = []
    for rank in range(4):
        ops = op_graph(whole, 64, ranks=4, rank=rank, train=False).ops
        sent += [
            int(op.attributes["in_elements"])
            for op in ops
            if op.name == "record_param_comms" and op.attributes["dtype"] == "fp16"
        ]
    positions = slowest_lengths(equal, 16, 4).tokens - 16 * 8
    assert sorted(sent)[1:] == pytest.approx([4 * positions * 512] * 3, rel=0.01)


def test_parameters_are_those_that_are_trained(equal: Workload) -> None:
    """What is counted is what the ranks sum: buckets of all dense gradients."""
    summed = sum(
        int(op.attributes["in_elements"])
        for op in op_graph(equal, 64, ranks=4).ops
        if op.name == "record_param_comms" and op.attributes["collective"] == "all_reduce"
    )
    assert equal.dense_parameters == summed


def placed(workload: Workload, sharding: str = "row_wise", **changes: object) -> Placement:
    table = TablePlacement(sharding, tuple(range(4)), **changes)  # type: ignore[arg-type]
    return Placement(tuple(table for _ in workload.tables))


def test_a_placement_in_device_memory_is_the_workloads_own(equal: Workload) -> None:
    plain = op_graph(equal, 64, ranks=4)
    moved = op_graph(equal, 64, ranks=4, placement=placed(equal))
    sent = [
        [op.attributes for op in each.ops if op.name == "record_param_comms"]
        for each in (plain, moved)
    ]
    assert sent[0] == sent[1]


def test_a_placement_that_pools_or_repeats_is_refused(equal: Workload) -> None:
    with pytest.raises(WorkloadError, match="whose rows are not summed on their way"):
        op_graph(equal, 64, ranks=4, placement=placed(equal, tier="host", pooled_on="host"))
    with pytest.raises(WorkloadError, match="table 0 on every rank"):
        op_graph(equal, 64, ranks=4, placement=placed(equal, "data_parallel"))


def rows_over_the_bus(workload: Workload, capacity_bytes: float, alpha: float) -> float:
    """Of the distinct rows that a rank asks for, those that its cache fetches."""
    tables = tuple(replace(table, rows=10**10, alpha=alpha) for table in workload.tables)
    cache = RowCache("rows", "hbm", capacity_bytes)
    table = TablePlacement("row_wise", tuple(range(4)), "host", caches=("rows",))
    placement = Placement((table,) * len(workload.tables), (cache,))
    ops = op_graph(replace(workload, tables=tables), 16, ranks=4, placement=placement).ops
    about = [op.attributes for op in ops if op.name == "fbgemm::lru_cache_populate"]
    found = [sum(float(each[name]) for each in about) for name in ("missed_rows", "unique_rows")]
    return found[0] / found[1]


def test_a_cache_over_host_memory_gains_by_reuse_alone(equal: Workload) -> None:
    """All rows as popular: however large the cache, next to every row is fetched."""
    assert [rows_over_the_bus(equal, size, 0.0) for size in (1e9, 1e10)] == [
        pytest.approx(1.0, abs=0.01)
    ] * 2
    small, large = (rows_over_the_bus(equal, size, 1.05) for size in (1e9, 1e10))
    assert large < small < 0.9


def test_a_design_with_a_cache_keeps_the_step_of_sequences() -> None:
    """Rows lie on hosts; what else runs is as before."""
    workload = load_workload("dlrm-v4-hstu")
    start = deployment_of(workload, cluster("hgx-mi350x", 1), 8192)
    cached = predict(DESIGNS["software_cache"]().apply(start)).results[0]
    plain = predict(workload, hardware="hgx-mi350x", nodes=1, batch=8192).results[0]
    times = [{f["family"]: f["time_us"] for f in each.families} for each in (plain, cached)]
    for family in ("attention", "matmul"):
        assert times[1][family] == pytest.approx(times[0][family], rel=1e-9)
    assert cached.step_us > plain.step_us
    assert cached.memory
    assert plain.memory
    assert cached.memory["tables_bytes"] < 0.3 * plain.memory["tables_bytes"]


def test_repeated_rows_and_their_gradients(equal: Workload) -> None:
    """NVIDIA's GPUs copy repeats by vectors, each read again; gradients of the position and of the
    time embedding are read once, in the order of their rows."""
    few = equal.with_(sequence__unique_frac=[0.25] * 11, sequence__index_dedup=True)
    pieces = {
        target: frame_of(lower(op_graph(few, 64, target=target), target))
        for target in ("cuda", "rocm")
    }
    copies = {target: found[found["op"] == "index_select"] for target, found in pieces.items()}
    assert [len(found) for found in copies.values()] == [0, 11]
    by_vectors = pieces["cuda"][pieces["cuda"]["owner"] == "hstu::index_select"]
    assert (by_vectors["reads"] == 1.0).all()
    assert (by_vectors["writes"] == 1.0).all()
    for found in pieces.values():
        sums = found[found["owner"] == "hstu::add_sorted_rows"]
        assert len(sums) == 2
        assert sums["reads"].to_list() == pytest.approx([1.0 + 8 / 1024] * 2)


def test_rows_of_joins_have_a_block_each_on_amds_gpus(equal: Workload) -> None:
    """Three tables' rows, contextual ones, the split after the stack, forward and backward."""
    for target in ("cuda", "rocm"):
        found = frame_of(lower(op_graph(equal, 64, target=target), target))
        moved = found[found["owner"].str.contains("_jagged")]
        assert (len(moved), "by_rows" in moved) == (10, target == "rocm")
    assert (moved["elements"] / moved["by_rows"]).to_list() == [512.0] * 10


def test_random_numbers_are_drawn_once(equal: Workload) -> None:
    """Ahead, once a layer, three bits of a byte each. The backward pass makes in one kernel what
    the product's gradient needs again."""
    drawn = frame_of(lower(op_graph(equal, 64), "cuda"))
    assert drawn[drawn["random"] > 0]["owner"].unique().tolist() == ["hstu::dropout_mask"]
    masks = drawn[drawn["owner"] == "hstu::dropout_mask"]
    backward = drawn[drawn["owner"] == "hstu::norm_mul_dropout_backward"]
    assert len(masks) == 3
    assert (3 * masks["elements"]).to_list() == backward["elements"].to_list()
    assert backward["reads"].to_list() == pytest.approx([(3 + 1 + 1 + 0.5) / 3] * 3)
    assert backward["writes"].to_list() == pytest.approx([(1 + 1 + 3) / 3] * 3)

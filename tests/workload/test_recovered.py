"""A workload that ran is recovered from its ops: of recorded steps, traces and modules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from slow import slow_but
from workload.captured import TRACES, workload_of

from perfmodel import predict
from perfmodel.cli import main
from perfmodel.errors import PerfmodelError, WorkloadError
from perfmodel.hardware import node, with_settings
from perfmodel.ops.graph import Op, OpGraph, Tensor
from perfmodel.ops.lookups import PREFIX
from perfmodel.workload import Table, Workload, load_workload, op_graph
from perfmodel.workload import load as loading
from perfmodel.workload.load import workloads
from perfmodel.workload.model import toml_of
from perfmodel.workload.recorded_layers import AS_RECORDED
from perfmodel.workload.recovered import Recovered, recovered
from perfmodel.workload.recovered_layers import NoDlrm, dense_part
from perfmodel.workload.recovered_tables import (
    SUMS,
    UNSEEN,
    RecordedRanks,
    SeenTable,
    held_tables,
    tables_seen,
)


def steps(workload: Workload, ranks: int, *, train: bool = True) -> list[OpGraph]:
    return [op_graph(workload, ranks=ranks, rank=rank, train=train) for rank in range(ranks)]


def sizes(workload: Workload) -> list[tuple[float, ...]]:
    return [(each.rows, each.dim, round(each.pooling, 6), each.alpha) for each in workload.tables]


def again(workload: Workload, ranks: int, *, train: bool = True) -> Recovered:
    return recovered(steps(workload, ranks, train=train), workload.name, workload.name)


CASES = [
    *((name, software) for name in ("criteo-kaggle", "hotline-rm1", "lin-dlrm-ddp")
      for software in ("reference", "pytorch", "fbgemm", "torchrec")),
    *((name, "torchrec") for name in ("torchrec-golden", "cached-avazu", "smartnic-rm", "neo-f")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "software"), CASES)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_step_of_the_catalogue_is_its_workload(name: str, software: str, ranks: int) -> None:
    asked = load_workload(name).with_(implementation__name=software)
    found = again(asked, ranks).workload
    assert (found.model, found.batch, found.training) == (asked.model, asked.batch, asked.training)
    assert (found.interaction.kind, found.top_width) == (asked.interaction.kind, asked.top_width)
    in_order = list if software != "torchrec" else sorted  # which deals tables out by their work
    assert in_order(sizes(found)) == in_order(sizes(asked))
    own, other = found.implementation, asked.implementation
    assert (own.name, own.key_dtype) == (software, other.key_dtype)
    assert own.ddp_bucket_bytes == other.ddp_bucket_bytes
    if software == "torchrec":
        assert own.prefetch == other.prefetch
        if ranks > 1:
            assert own.exchange_precision == other.exchange_precision
            assert own.sharding == other.sharding


@pytest.mark.parametrize(("software", "precision"), [("reference", "fp32"), ("torchrec", "tf32")])
def test_the_recovered_step_takes_as_long(software: str, precision: str) -> None:
    asked = load_workload("criteo-kaggle").with_(
        implementation__name=software, implementation__precision=precision
    )
    found = again(asked, 8).workload
    assert found.implementation.precision == precision
    before, after = (
        predict(each, hardware="dgx-a100-80gb").results[0].step_us for each in (asked, found)
    )
    assert after == pytest.approx(before, rel=1e-6)


def test_cross_layers_copies_and_parts_of_tables_on_eight_ranks() -> None:
    """DLRM-DCNv2 as its planner lays it out: 13 small tables everywhere, the largest in parts; rows
    that come by key are told by how many are distinct."""
    asked = load_workload("dlrm-dcnv2").with_(implementation__name="torchrec", batch=16384)
    found = again(asked, 8)
    assert found.workload.interaction == asked.interaction
    plain = [(each.rows, each.dim, round(each.pooling, 6)) for each in asked.tables]
    assert sorted(each[:3] for each in sizes(found.workload)) == sorted(plain)
    assert sum(each.replicated for each in found.held) == 13
    limit = found.workload.implementation.data_parallel_max_bytes
    assert limit == max(each.rows for each in asked.tables if each.rows < 8000) * 128 * 4
    before, after = (
        predict(each, hardware="dgx-a100-80gb").results[0].step_us
        for each in (asked, found.workload)
    )
    assert after == pytest.approx(before, rel=0.02)


def test_ranks_without_a_record_hold_as_much_as_the_others_where_nothing_tells() -> None:
    """One rank of four is recorded, no exchange, no interaction: 7 tables on each."""
    asked = load_workload("torchrec-golden").with_(batch=64)
    seen = {0: tables_seen(steps(asked, 4)[0].ops, "one")}
    held, sharding = held_tables(RecordedRanks(4, 16, seen, None))
    assert sharding == "table_wise"
    assert len(held) == 4 * len(seen[0]) == 28
    assert sum(each.told == UNSEEN for each in held) == 21


def test_inference_is_recovered_and_said() -> None:
    found = again(load_workload("criteo-kaggle"), 1, train=False)
    assert not found.train
    taken = {each.setting: each.by for each in found.facts}
    assert taken["training.dense_optimizer"] == "default"


def test_without_figures_of_each_table_sums_are_kept() -> None:
    """One call looks up 8 tables, of which its arguments tell sums: rows and lookups come out equal
    in sum, and each is the mean."""
    asked = load_workload("lin-dlrm-mlperf")
    graph = op_graph(asked)
    bare = tuple(
        replace(op, attributes={k: v for k, v in op.attributes.items() if not k.startswith(PREFIX)})
        for op in graph.ops
    )
    found = recovered([replace(graph, ops=bare)], "bare", "bare")
    total = sum(each.rows for each in asked.tables)
    assert sum(each.rows for each in found.workload.tables) == pytest.approx(total, abs=26)
    assert {each.told for each in found.held} == {SUMS}
    assert {each.pooling for each in found.workload.tables} == {1.0}


def test_tables_of_ranks_without_a_record_are_as_many_as_the_exchange_tells() -> None:
    asked = load_workload("torchrec-golden").with_(batch=64)
    found = recovered(steps(asked, 4)[:2], "half", "half")
    assert (found.ranks, found.workload.batch) == (4, 64)
    assert sizes(found.workload) == sizes(asked)  # its 26 tables are alike
    assert sum(each.told == UNSEEN for each in found.held) == 12  # 7 + 7 are seen, 6 + 6 are not


def test_many_small_buckets_tell_their_size() -> None:
    """Layers of 1,048,576 elements: 4 MiB each, so that buckets of 8 MiB close behind two."""
    wide = load_workload("criteo-kaggle").with_(
        implementation__name="torchrec",
        implementation__ddp_bucket_bytes=8 << 20,
        model__top_mlp=(*(1024,) * 16, 1),
    )
    found = again(wide, 2).workload.implementation.ddp_bucket_bytes
    assert (8 << 20) <= found <= (13 << 20)


def test_parts_with_unequal_lookups_are_one_table() -> None:
    """Rows of a table of 1,000 x 16 in halves: 48 lookups fall to the first rank, 32 to the second,
    of 32 samples: pooling 2.5. Beside them the first rank has a whole table of 500 rows with a
    third of its part's lookups."""
    seen = {
        0: [SeenTable(500, 16, 48, 32), SeenTable(500, 16, 16, 32)],
        1: [SeenTable(500, 16, 32, 32)],
    }
    held, sharding = held_tables(RecordedRanks(2, 16, seen, 32))
    assert sharding == "balanced"
    assert [(each.table.rows, each.table.pooling, each.ranks) for each in held] == [
        (1000, 2.5, (0, 1)),
        (500, 0.5, (0,)),
    ]


TRACED = [
    "cpu_dlrm_truth/one_rank_base/trace",
    "cpu_dlrm_truth/one_rank_tables1/trace",
    "cpu_dlrm_26_tables/dlrm26",
]


@pytest.mark.parametrize("stem", TRACED)
def test_a_captured_trace_is_the_workload_that_was_written_down(stem: str) -> None:
    asked, batch, ranks = workload_of(TRACES / f"{stem}.json")
    found = loading.workload_of(TRACES / f"{stem}_et.json.gz")
    assert sizes(found.workload) == sizes(asked)
    assert found.workload.model == asked.model
    assert (found.workload.batch, found.ranks) == (batch * ranks, ranks)
    assert found.workload.implementation.name == "pytorch"
    asked = replace(asked, batch=batch)
    before, after = (
        predict(each, hardware="cpu-epyc").results[0].step_us for each in (asked, found.workload)
    )
    assert after == pytest.approx(before, rel=0.02)


def test_a_folder_of_ranks_is_one_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks of TorchRec's DLRM, 8 tables in two calls."""
    asked, batch, _ = workload_of(TRACES / "cpu_dlrm_2rank/dlrm_rank0.json")
    found = loading.workload_of(TRACES / "cpu_dlrm_2rank")
    assert (found.ranks, found.workload.batch) == (2, 2 * batch)
    assert sizes(found.workload) == sizes(asked)
    assert [each.ranks for each in found.held] == [(0,), (1,)] * 4
    assert found.workload.training.table_optimizer == "rowwise_adagrad"
    assert load_workload(TRACES / "cpu_dlrm_2rank") is found.workload  # read once
    monkeypatch.chdir(TRACES / "cpu_dlrm_2rank")
    assert sizes(load_workload(".")) == sizes(asked)


def test_a_trace_of_eight_v100_of_which_four_are_here(reference: Path) -> None:
    """26 tables of dim 16 that look up 214 rows a sample (3, 2, 1, … 27, 10, 3, 1, 1: the multi-hot
    sizes of DLRM-DCNv2), 16 samples a rank, MLPs 256-128-16 and 512-512-256-1, Adagrad."""
    found = loading.workload_of(reference / "traces" / "dlrm_v100x8")
    asked = found.workload
    assert (found.ranks, asked.batch, len(asked.tables)) == (8, 128, 26)
    assert asked.model.bottom_mlp == (256, 128, 16)
    assert asked.model.top_mlp == (512, 512, 256, 1)
    assert sum(each.pooling for each in asked.tables) == pytest.approx(214)
    assert asked.implementation.prefetch
    assert asked.training.dense_optimizer == asked.training.table_optimizer == "adagrad"


def test_one_old_profile_of_eight_tells_how_many_tables_there_are(reference: Path) -> None:
    """It lacks dims and splits: the interaction tells the one, even parts stand for the other."""
    found = loading.workload_of(reference / "traces" / "dlrm_v100x8" / "kineto_rank0.json.gz")
    assert (found.ranks, len(found.workload.tables)) == (8, 26)
    assert {each.dim for each in found.workload.tables} == {16}


@pytest.mark.parametrize("stem", ["h100/dlrm/dlrm_ddp_b512", "h200/dlrm/dlrm_mlperf_b512"])
def test_the_recovered_step_of_a_gpu_trace_takes_what_was_measured(
    stem: str, tmp_path: Path
) -> None:
    """With the host costs of the trace itself: its host was slowed by the profiler. A profile alone
    tells that rows are added to tables of gigabytes one by one: the additions launch nothing else.
    """
    path, profile = TRACES / f"{stem}_kineto.json.gz", tmp_path / "host.json"
    assert main(["fit", "overheads", str(path), "-o", str(profile)]) == 0
    device = f"{stem[:4]}-sxm"
    truth = predict(path).results[0].step_us
    for source, mode in ((load_workload(path), None), (path, "model")):
        asked = predict(source, mode=mode, hardware=device, overheads=profile)  # type: ignore[arg-type]
        assert asked.results[0].step_us == pytest.approx(truth, rel=0.05)


MACHINES: dict[str, tuple[Any, int | None]] = {
    "traces/dlrm_v100x8": ("dgx-1", None),
    "traces/dlrm_meta/a100x8_trace_diff_control.json.gz": ("dgx-a100-40gb", None),
    "traces_2/dlrm_meta/v100x2_trace_diff_test.json.gz": (
        with_settings(node("dgx-1"), ["node.gpus=2"]),
        None,
    ),
    "traces_2/dlrm_meta/a100x16_negative_queue_rank0.json.gz": ("dgx-a100-80gb", 2),
}
"""The machine of each trace, and its nodes."""


@pytest.mark.parametrize("name", slow_but(1, MACHINES))
def test_the_recovered_step_takes_what_was_measured(
    reference: Path, tmp_path: Path, name: str
) -> None:
    """A data loader on the training thread runs 157 operators, on the step's 8.9 ms beyond; ranks
    without a record of Meta's model hold as much as the one that is here. On two V100, compiled
    regions make 29 % of the device time: 33 of 120 ms are matrix products that no op calls. On
    eight A100 the host waits for keys until the rows' update leaves room for a small kernel: 4 of
    77 ms. On sixteen 140 of 216 ms are waits without a recorded reason."""
    path, profile = reference / name, tmp_path / "host.json"
    hardware, nodes = MACHINES[name]
    assert main(["fit", "overheads", str(path), "-o", str(profile)]) == 0
    asked = loading.workload_of(path).workload
    answer = predict(asked, hardware=hardware, nodes=nodes, overheads=profile)
    assert answer.results[0].step_us == pytest.approx(predict(path).results[0].step_us, rel=0.1)
    assert any(AS_RECORDED in each for each in answer.warnings) == (asked.recorded is not None)
    assert asked.training.host_ops > 157 or name != "traces/dlrm_v100x8"
    waited_us = {"a100x8": 4.3e3, "a100x16": 140e3, "v100x2": 0.8e3, "dlrm_v100x8": 0.0}
    told = next(us for key, us in waited_us.items() if f"{key}_" in name or name.endswith(key))
    assert asked.training.waited_us == pytest.approx(told, rel=0.05, abs=50.0)


@pytest.mark.parametrize("name", workloads())
def test_a_written_workload_is_read_as_it_was(name: str, tmp_path: Path) -> None:
    asked = load_workload(name)
    path = tmp_path / f"{name}.toml"
    path.write_text(toml_of(asked, ["a comment"]))
    assert load_workload(path) == asked


def bag(storage: int, rows: int, dim: int) -> Op:
    weight = Tensor((rows, dim), tensor_id=storage, storage_id=storage)
    keys = Tensor((64,), "int64"), Tensor((32,), "int64")
    return Op("aten::embedding_bag", (weight, *keys), (Tensor((32, dim)),))


def layer(samples: int, given: int, made: int) -> Op:
    shapes = (made,), (samples, given), (given, made)
    return Op("aten::addmm", tuple(map(Tensor, shapes)), (Tensor((samples, made)),))


def test_one_table_in_two_places_is_refused() -> None:
    ops = [bag(7, 100, 16), bag(7, 200, 16)]
    with pytest.raises(
        WorkloadError, match="one table in two places: 100 x 16, and 200 x 16 in op 1"
    ):
        tables_seen(ops, "here")


def test_calls_on_one_table_are_summed() -> None:
    """64 lookups for 32 samples, twice: 128 for 64, pooling 2."""
    (found,) = tables_seen([bag(7, 100, 16), bag(7, 100, 16)], "here")
    assert (found.lookups, found.bags) == (128, 64)


TOP = [layer(32, 24, 8), layer(32, 8, 1)]


@pytest.mark.parametrize(
    ("ops", "told"),
    [
        ([], "no linear layer"),
        ([layer(32, 13, 8), layer(640, 24, 8)], "given 640 rows of 32 samples"),
        ([layer(32, 13, 8), *TOP, Op("aten::_softmax", ())], "calls aten::_softmax"),
        ([layer(32, 13, 8), layer(32, 24, 8)], "last layer has 8 outputs"),
        ([layer(32, 13, 8), layer(32, 8, 1)], "no layer gets rows of tables"),
    ],
)
def test_what_is_no_dlrm_says_why(ops: list[Op], told: str) -> None:
    with pytest.raises(NoDlrm, match=told):
        dense_part(ops)


def test_rows_side_by_side_and_a_step_among_several() -> None:
    """13-8, beside 16 features of one table, 24-8-1; the second of two steps is the larger."""
    ops = [layer(32, 13, 8), bag(7, 100, 16), *TOP, Op("BceBackward0", phase="backward")]
    graph = OpGraph((*ops, *ops, Op("aten::add_", phase="optimizer")))
    found = recovered([graph], "here", "two")
    assert (found.workload.interaction.kind, found.workload.joined_width) == ("cat", 24)
    assert found.workload.tables == (Table(100, 16, 2.0),)


def test_ops_without_tables_and_files_that_are_not_there_are_one_line() -> None:
    with pytest.raises(WorkloadError, match="here: none of its ops looks up an embedding table"):
        recovered([OpGraph((layer(32, 13, 8),))], "here", "none")
    with pytest.raises(PerfmodelError, match=r"none_such.json.gz") as problem:
        load_workload("none_such.json.gz")
    assert "\n" not in str(problem.value)


def test_a_trace_without_shapes_says_what_to_record(reference: Path) -> None:
    folder = reference / "traces" / "torchrec_v100x4" / "sst_long_a2a_optimizer_3_29220"
    with pytest.raises(WorkloadError, match="record_shapes=True, or give its execution trace"):
        load_workload(folder)

"""TorchRec's own planner with perfmodel's estimators: on the meta device, with FBGEMM for CPUs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import perfmodel
import perfmodel.torchrec as rec
from perfmodel.designs import deployment_of
from perfmodel.designs.layouts.problem import ways
from perfmodel.designs.layouts.surrogate import timed
from perfmodel.embedding import Placement, RowCache, TablePlacement
from perfmodel.errors import PerfmodelError, UsageError, WorkloadError
from perfmodel.explore.torchrec import read_plan
from perfmodel.hardware import cluster
from perfmodel.torchrec import plans
from perfmodel.torchrec.shards import key_of
from perfmodel.workload import load_workload
from perfmodel.workload.tables import Table

MACHINE, BATCH = "dgx-h100", 64
PAGE = Path(__file__).parents[2] / "docs" / "torchrec.md"
TABLES = (Table(1000, 64, 3.0), Table(200_000, 128, 5.0), Table(50_000, 32, 1.0))
KERNELS = ("fused", "fused_uvm_caching", "fused_uvm")
pytestmark = pytest.mark.filterwarnings("ignore")  # TorchRec's own


@pytest.fixture(scope="module")
def torchrec() -> Any:
    try:
        import torchrec.distributed.planner
    except (ImportError, OSError):  # OSError: FBGEMM's libraries
        pytest.skip("needs TorchRec and FBGEMM for CPUs")
    return torchrec


def asked(kinds: Any = None, kernels: Any = None, tables: Any = TABLES, **given: Any) -> Any:
    """TorchRec's enumerator and what it takes, and the two estimators."""
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
    from torchrec.distributed.planner.types import ParameterConstraints

    limits = {
        f"table_{number}": ParameterConstraints(
            sharding_types=kinds, compute_kernels=kernels, pooling_factors=[table.pooling]
        )
        for number, table in enumerate(tables)
    }
    configs = [
        EmbeddingBagConfig(
            name=f"table_{number}",
            num_embeddings=table.rows,
            embedding_dim=table.dim,
            feature_names=[f"feature_{number}"],
        )
        for number, table in enumerate(tables)
    ]
    topology = rec.topology(MACHINE)
    perf, storage = rec.estimators(MACHINE, topology, **given)
    made = EmbeddingEnumerator(topology, BATCH, constraints=limits, estimator=[perf, storage])
    module = EmbeddingBagCollection(device="meta", tables=configs)
    return made, (module, [EmbeddingBagCollectionSharder()]), perf, topology, limits


def options(*about: Any, **given: Any) -> tuple[Any, list[Any]]:
    made, module, perf, _, _ = asked(*about, **given)
    return perf, made.enumerate(*module)


def planned(*about: Any, **given: Any) -> tuple[Any, Any]:
    from torchrec.distributed.planner import EmbeddingShardingPlanner

    made, module, perf, topology, limits = asked(*about, **given)
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=BATCH,
        enumerator=made,
        constraints=limits,
        performance_model=perf,
        debug=False,
    )
    return perf, planner.plan(*module)


def total(option: Any) -> float:
    return float(option.shards[0].perf.total)


def test_the_page_says_what_works(torchrec: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (example, *_) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    names: dict[str, Any] = {}
    exec(compile(example, str(PAGE), "exec"), names)
    shards = names["perf"].shards(names["plan"])
    assert (shards.low_ms <= shards.total_ms).all()
    assert (shards.total_ms <= shards.high_ms).all()
    assert names["prediction"].results[0].step_us > 0
    assert rec.sharding_plan(names["laid"], module="") == names["plan"]


def test_every_option_gets_times_and_bytes(torchrec: Any) -> None:
    perf, found = options()
    assert {each.sharding_type for each in found} >= {"row_wise", "column_wise", "data_parallel"}
    for option in found:
        for shard in option.shards:
            times = perf.times[key_of(option.fqn, option, shard.offset)]
            assert shard.perf.total * 1e3 == pytest.approx(times.parts_us[:-1].sum())
            assert 0 < times.low_us <= shard.perf.total * 1e3 <= times.high_us
            assert shard.storage.hbm > 0


def test_bytes_of_a_table_by_hand(torchrec: Any) -> None:
    samples = BATCH * 8
    (option,) = options(["table_wise"], ["fused"], tables=TABLES[:1])[1]
    rows = 1000 * (64 * 4 + 4)  # rowwise Adagrad: a float per row
    ids = samples * 3 * 8 * 2  # of two batches under way
    assert option.shards[0].storage.hbm == rows + ids + samples * 64 * 4 * 2
    (cached,) = options(["table_wise"], ["fused_uvm_caching"], tables=TABLES[:1])[1]
    assert cached.shards[0].storage.ddr == rows
    assert cached.shards[0].storage.hbm == pytest.approx(option.shards[0].storage.hbm - 0.8 * rows)
    (once,) = options(["table_wise"], ["fused"], tables=TABLES[:1], pipeline="none", train=False)[1]
    assert once.shards[0].storage.hbm == 1000 * 64 * 4 + ids / 2 + samples * 64 * 4


def test_a_shard_takes_what_our_own_planner_has_it_take(torchrec: Any) -> None:
    model = load_workload("torchrec-golden")
    kinds = ["table_wise", "row_wise"]
    _, found = options(kinds, ["fused"], tables=model.tables, workload=model)
    own = deployment_of(model, cluster(MACHINE), BATCH * 8)
    problem = timed(own, tuple(ways(own)))
    expected = {
        way.sharding: problem.work_us[at]
        for at, way in enumerate(problem.ways)
        if way.number == 0 and way.sharding in kinds
    }
    for option in found[:2]:
        work_ms = option.shards[0].perf.fwd_compute + option.shards[0].perf.bwd_compute
        assert work_ms * 1e3 == pytest.approx(expected[option.sharding_type], rel=1e-6)


def test_times_follow_memory_skew_and_pipeline(torchrec: Any) -> None:
    of = {"tables": TABLES[1:2]}
    ((hbm,), (cached,), (bus,)) = (options(["table_wise"], [kernel], **of)[1] for kernel in KERNELS)
    assert total(hbm) < total(cached) < total(bus)
    small = [options(["row_wise"], [kernel], tables=TABLES[:1])[1] for kernel in KERNELS]
    assert total(small[0][0]) <= min(total(small[1][0]), total(small[2][0]))
    (skewed,) = options(["table_wise"], ["fused_uvm_caching"], skew=1.2, **of)[1]
    assert total(skewed) < total(cached)
    (by_name,) = options(["table_wise"], ["fused_uvm_caching"], skew={"table_0": 1.2}, **of)[1]
    assert total(by_name) == total(skewed)
    types = torchrec.distributed.types.PipelineType
    (ahead,) = options(
        ["table_wise"],
        ["fused_uvm_caching"],
        pipeline=types.TRAIN_PREFETCH_SPARSE_DIST,
        **of,
    )[1]
    perf, before = ahead.shards[0].perf, cached.shards[0].perf
    assert perf.total == pytest.approx(before.total)
    moved = before.fwd_compute + before.bwd_compute - perf.fwd_compute - perf.bwd_compute
    assert 0 < perf.prefetch_compute == pytest.approx(moved)
    estimator, (base,) = options(["table_wise"], ["fused"], pipeline="train_base", **of)
    keys_us = estimator.times[key_of(base.fqn, base, [0, 0])].parts_us[-1]
    shown_ms = base.shards[0].perf.fwd_comms - hbm.shards[0].perf.fwd_comms
    assert 0 < shown_ms == pytest.approx(keys_us / 1e3)


def test_a_plan_on_one_rank_is_rated_slower(torchrec: Any) -> None:
    perf, found = options(["table_wise"], ["fused"])
    rates = []
    for ranks in ((0, 0, 0), (0, 1, 2)):
        for option, rank in zip(found, ranks, strict=True):
            option.shards[0].rank = rank
        rates.append(perf.rate(found))
    assert rates[0] > rates[1]


def test_plans_of_torchrec_come_back(torchrec: Any, tmp_path: Path) -> None:
    tables = (*TABLES, Table(200, 256, 1.0))
    model = replace(load_workload("torchrec-golden"), tables=tables).with_(interaction__kind="cat")
    for kinds in (None, ["row_wise"], ["table_row_wise"], ["column_wise"], ["data_parallel"]):
        _, plan = planned(kinds, None, tables=tables, workload=model)
        laid = rec.deployment(plan, model, MACHINE, batch=BATCH * 8)
        again = rec.sharding_plan(laid, module="")
        assert again == plan or kinds is None
        assert rec.deployment(again, model, MACHINE, batch=BATCH * 8) == laid
        file = tmp_path / "plan.json"
        file.write_text(json.dumps(rec.document(plan, model)))
        assert read_plan(file, model, laid.machine) == laid.placement


def test_our_plans_come_back(torchrec: Any) -> None:
    own = perfmodel.plan("torchrec-golden", MACHINE, batch=BATCH * 8)
    names = [f"user_{chr(ord('a') + number)}" for number in range(26)]
    plan = rec.sharding_plan(own, names=names, module="model.sparse")
    assert list(plan.plan) == ["model.sparse"]
    assert list(plan.plan["model.sparse"]) == names
    back = rec.deployment(plan, "torchrec-golden", MACHINE, names=names)
    assert back.placement == own.placement
    with pytest.raises(WorkloadError, match=r"^user_a: torchrec-golden has no such table"):
        rec.deployment(plan, "torchrec-golden", MACHINE)


def test_caches_come_back(torchrec: Any) -> None:
    model = load_workload("torchrec-golden")
    table = TablePlacement("table_wise", (3,), "host", caches=("uvm",))
    size = 26 * 2**20 * 128 * 4 * 0.25 / 8
    placement = Placement((table,) * 26, (RowCache("uvm", "hbm", size),))
    plan = rec.sharding_plan(deployment_of(model, cluster(MACHINE)).with_(placement=placement))
    (about, *_) = plan.plan["sparse.embedding_bags"].values()
    assert about.cache_params.load_factor == 0.25
    assert rec.deployment(plan, model, MACHINE).placement == placement


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: rec.estimators(MACHINE, None), "^topology: missing: .*makes one$"),
        (
            lambda: rec.estimators(MACHINE, rec.topology("dgx-h100", 2)),
            r"^topology: \(ranks, of a node\) \(16, 8\), but dgx-h100 has \(8, 8\)$",
        ),
        (lambda: options(pipeline="semi_sync"), "^pipeline 'semi_sync': expected one of none, "),
        (lambda: options(names=["a"], workload="torchrec-golden"), "^names: 1, .* has 26 tables$"),
        (
            lambda: options(workload="torchrec-golden"),
            "^.table_0: 1000 x 64, but torchrec-golden has 1048576 x 128$",
        ),
        (
            lambda: options(skew={"tabel_0": 1.0}),
            "^skew: tabel_0: the planner's module has no such",
        ),
        (lambda: options(kernels=["key_value"]), "compute_kernel 'key_value': expected one of "),
        (lambda: odd(sharding_type="by_moon"), "sharding_type 'by_moon': expected one of "),
        (
            lambda: planned(["column_wise"])[0].shards(planned(["row_wise"])[1]),
            "was not estimated here$",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    torchrec: Any, wrong: Callable[[], Any], message: str
) -> None:
    with pytest.raises(PerfmodelError, match=message) as error:
        wrong()
    assert "\n" not in str(error.value)


def odd(**changes: Any) -> None:
    perf, found = options(["table_wise"], ["fused"])
    for name, value in changes.items():
        setattr(found[0], name, value)
    perf.estimate(found)


@pytest.mark.parametrize(
    ("found", "message"),
    [(None, r"needs TorchRec 1\.1 or later: pip install"), ("1.0.0", "TorchRec 1.0.0 is too old")],
)
def test_without_torchrec_a_line_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, found: str | None, message: str
) -> None:
    def installed(_: str) -> str:
        if found is None:
            raise plans.PackageNotFoundError("torchrec")
        return found

    monkeypatch.setattr(plans, "version", installed)
    topology = SimpleNamespace(world_size=8, local_world_size=8)
    with pytest.raises(UsageError, match=message) as error:
        rec.estimators(MACHINE, topology)
    assert "pip install torchrec" in str(error.value)

"""Bytes of a placement in each tier: exact, shared out over ranks and nodes, and too many."""

import pytest

from perfmodel.embedding import Placement, RowCache, TablePlacement
from perfmodel.errors import WorkloadError
from perfmodel.hardware import Cluster, cluster
from perfmodel.workload import Workload, load_workload
from perfmodel.workload.memory_tiers import TierUse, require_tiers, tier_use

ROWS, DIM, TABLES = 10_000, 16, 26
ALL = tuple(range(16))


def workload(optimizer: str = "sgd") -> Workload:
    found = load_workload("criteo-kaggle").with_(
        implementation__name="torchrec", training__table_optimizer=optimizer
    )
    return found.with_(table__rows=ROWS, table__dim=DIM)


def machine(nodes: int = 2) -> Cluster:
    return cluster("dgx-a100-80gb", nodes)


def uses(placement: Placement, optimizer: str = "sgd", *, train: bool = True) -> dict[str, TierUse]:
    found = tier_use(workload(optimizer), placement, machine(), train=train)
    return {use.tier: use for use in found}


def test_whole_tables_on_the_fullest_rank() -> None:
    placement = Placement(tuple(TablePlacement("table_wise", (n % 16,)) for n in range(TABLES)))
    found = uses(placement)
    assert found["hbm"].tables_bytes == 2 * ROWS * DIM * 4
    assert set(found) == {"hbm"}


@pytest.mark.parametrize(
    ("optimizer", "state"), [("sgd", 0), ("rowwise_adagrad", 4), ("adagrad", 64), ("adam", 128)]
)
def test_the_optimizers_state_lies_with_the_rows(optimizer: str, state: int) -> None:
    placement = Placement((TablePlacement("row_wise", ALL, tier="host"),) * TABLES)
    trained = uses(placement, optimizer)["host"].tables_bytes
    assert trained == pytest.approx(TABLES * ROWS * (DIM * 4 + state) / 2)
    alone = uses(placement, optimizer, train=False)["host"].tables_bytes
    assert alone == pytest.approx(TABLES * ROWS * DIM * 4 / 2)


def test_what_all_ranks_of_a_node_share_is_there_once_per_node() -> None:
    shared = Placement((TablePlacement("data_parallel", ALL, tier="host"),) * TABLES)
    assert uses(shared, train=False)["host"].tables_bytes == TABLES * ROWS * DIM * 4
    with pytest.raises(WorkloadError, match=r"tables\[0\]: trained in the host memory of 2 nodes"):
        uses(shared)
    replicas = Placement((TablePlacement("data_parallel", ALL),) * TABLES)
    for optimizer in ("sgd", "adam"):  # the dense optimizer steps them, as other parameters
        assert uses(replicas, optimizer)["hbm"].tables_bytes == TABLES * ROWS * DIM * 4


def test_caches_and_hot_rows_count_where_they_lie() -> None:
    caches = (
        RowCache("near", "hbm", 1e6),
        RowCache("far", "host", 1e7),
        RowCache("idle", "hbm", 9e9),
    )
    table = TablePlacement("row_wise", ALL, tier="host", caches=("near", "far"), hot_rows=100)
    found = uses(Placement((table,) * TABLES, caches))
    assert found["hbm"].caches_bytes == 1e6 + TABLES * 100 * DIM * 4
    assert found["host"].caches_bytes == 8e7


def test_a_tier_that_is_too_small_is_named() -> None:
    big = workload().with_(table__rows=10_000_000_000)
    placement = Placement((TablePlacement("row_wise", ALL, tier="host"),) * TABLES)
    with pytest.raises(
        WorkloadError, match=r"node needs 8,320.0 GB of host memory, 6,320.0 GB more"
    ):
        require_tiers(tier_use(big, placement, machine()))
    everywhere = placement.edited(lambda _number, _table: {"tier": "hbm"})
    with pytest.raises(WorkloadError, match=r"rank needs .* of device memory"):
        require_tiers(tier_use(big, everywhere, machine()))
    nowhere = placement.edited(lambda _number, _table: {"tier": "storage"})
    with pytest.raises(WorkloadError, match=r"0\.0 GB of dgx-a100-80gb"):
        require_tiers(tier_use(big, nowhere, machine()))

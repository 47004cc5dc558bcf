"""Where tables go, and what is exchanged for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.workload import Table, Workload, load_workload, op_graph
from perfmodel.workload.settings import Implementation, Model, Training
from perfmodel.workload.sharding import Shard, plan


def workload(tables: tuple[Table, ...], **settings: object) -> Workload:
    software = Implementation("torchrec", **settings)  # type: ignore[arg-type]
    model = Model(4, (8,), (1,))
    return Workload(
        "sharded", model, tables, training=Training("bce_with_logits"), implementation=software
    )


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 50)), min_size=1, max_size=30),
    st.integers(1, 16),
    st.sampled_from(["row_wise", "balanced"]),
    st.sampled_from([0, 10_000]),
)
def test_every_table_is_held_once(
    tables: list[tuple[int, int]], ranks: int, sharding: str, limit: int
) -> None:
    described = tuple(Table(rows, 8, pooling) for rows, pooling in tables)
    layout = plan(workload(described, sharding=sharding, data_parallel_max_bytes=limit), ranks)
    held = [shard for shards in layout.shards for shard in shards]
    for number in range(len(described)):
        parts = [shard.parts for shard in held if shard.table == number]
        assert number in layout.replicated or len(parts) == parts[0]
    assert all(len(set(shards)) == len(shards) for shards in layout.shards)


def test_a_heavy_table_is_parted() -> None:
    layout = plan(workload((Table(100, 8, 90), Table(100, 8, 1)), sharding="balanced"), 4)
    assert sum(shard == Shard(0, 4) for shards in layout.shards for shard in shards) == 4
    part = Shard(0, 4).of((Table(100, 8, 90),))
    assert (part.rows, part.pooling) == (25, 22.5)


@pytest.mark.parametrize("software", ["torchrec", "fbgemm", "pytorch"])
def test_wire_volume_of_whole_tables(software: str) -> None:
    """Forward, all ranks together send batch x dims elements; backward the same."""
    tables = (Table(100, 8, 4),) * 6
    model = workload(tables)
    model = Workload(
        "wire",
        model.model,
        tables,
        implementation=Implementation(software),  # type: ignore[arg-type]
    )
    ranks, batch = 3, 12
    sent = []
    for rank in range(ranks):
        graph = op_graph(model, batch, ranks=ranks, rank=rank)
        sent.append(
            sum(
                int(op.attributes["in_elements"])
                for op in graph.ops
                if op.name == "c10d::alltoall_base_"
                and op.attributes["dtype"] == "fp32"
                and op.phase != "input"
            )
        )
    assert sum(sent) == 2 * batch * 6 * 8


def test_dense_gradients_are_reduced_once() -> None:
    graph = op_graph(load_workload("dlrm-dcnv2"), 1024, ranks=8, rank=3)
    reduced = [op for op in graph.ops if op.name == "c10d::allreduce_"]
    small = sum(table.rows for table in load_workload("dlrm-dcnv2").tables if table.rows <= 7812)
    dense = int(reduced[0].attributes["in_elements"]) - small * 128
    assert len(reduced) == 1
    assert dense == pytest.approx(16.04e6, rel=0.001)
    assert {op.attributes["group_size"] for op in reduced} == {"8"}


def test_prefetched_and_graph_launched_ops_say_so() -> None:
    graph = op_graph(load_workload("dlrm-mlperf"), 1024, ranks=8)
    assert {op.attributes.get("pipeline") for op in graph.ops if op.phase == "input"} == {
        "prefetch"
    }
    assert graph.cuda_graphs
    on_cpu = op_graph(load_workload("dlrm-mlperf"), 1024, ranks=8, target="cpu")
    assert not on_cpu.cuda_graphs
    assert on_cpu.notes == ("implementation.cuda_graphs changes nothing: a CPU launches no graphs",)


def test_of_several_groups_larger_tables_are_replicated() -> None:
    """11,938 rows of 512 bytes are above 4 MB and below 6.25: a plan of 12 tables and not 13, of
    which 16 groups have one part each."""
    described = load_workload("dlrm-dcnv2")
    one, many = plan(described, 8), plan(described, 128, 8)
    assert set(many.replicated) - set(one.replicated) == {14}
    assert described.tables[14].rows == 11_938
    assert [len(own) for own in many.shards] == [1] * 128

"""One of 8 ranks as one of 128: collectives are among more, each rank's work stays."""

from __future__ import annotations

import pytest

from perfmodel.errors import UsageError, WorkloadError
from perfmodel.ops.edits.named import NamedEdit, apply_edits
from perfmodel.ops.graph import Op, OpGraph


def collective(kind: str, size: int = 8, **about: int) -> Op:
    known = {"collective": kind, "group_size": size, "in_elements": 80, "out_elements": 80, **about}
    return Op("record_param_comms", attributes={key: str(text) for key, text in known.items()})


def among(count: int, *ops: Op) -> tuple[OpGraph, list[str]]:
    given = OpGraph(ops, world_size=8)
    (graph,), skipped = apply_edits([given], [NamedEdit.parse(f"ranks={count}")])
    return graph, skipped


@pytest.mark.parametrize(
    ("kind", "given", "made"),
    [
        ("all_to_all", 80, 80),
        ("all_reduce", 80, 80),
        ("all_gather", 80, 1280),
        ("reduce_scatter", 1280, 80),
    ],
)
def test_what_a_rank_gives_or_gets_stays(kind: str, given: int, made: int) -> None:
    graph, skipped = among(128, collective(kind))
    about = graph.ops[0].attributes
    assert (about["group_size"], about["in_elements"]) == ("128", str(given))
    assert about["out_elements"] == str(made)
    assert graph.world_size == 128
    assert not skipped


def test_exchanges_become_even() -> None:
    uneven = Op("x", attributes={**collective("all_to_all").attributes, "in_split": "1,79"})
    graph, _ = among(16, uneven)
    assert "in_split" not in graph.ops[0].attributes


def test_groups_of_some_ranks_stay() -> None:
    graph, skipped = among(16, collective("all_reduce"), collective("all_reduce", 2))
    assert [op.attributes["group_size"] for op in graph.ops] == ["16", "2"]
    assert skipped == ["ranks=16: 1 calls of all_reduce are among some ranks only"]


def test_a_graph_without_collectives_cannot_grow() -> None:
    with pytest.raises(WorkloadError, match="no collective among all ranks"):
        among(16, Op("aten::relu"))


@pytest.mark.parametrize("count", ["1", "many", "-8", "1.5"])
def test_counts_that_cannot_be(count: str) -> None:
    with pytest.raises(UsageError, match="ranks=COUNT"):
        apply_edits(
            [OpGraph((collective("all_reduce"),), world_size=8)],
            [NamedEdit.parse(f"ranks={count}")],
        )

"""Collectives and process groups of execution traces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from et_documents import A, comms, flat, nested, node, read

from perfmodel.trace.columns import NONE


def test_collectives_before_1_1_0() -> None:
    types = ["Tensor(float)", "Int", "Int", "Int", "String"] + ["GenericList[Int,Int]"] * 2
    one = comms(types, [A, 147, 94594108284448, 1, "all_to_allv", [6, 2], [3, 5]])
    trace = read(flat(one, node(1, "root", 1)))
    ((row, said),) = trace.collectives.items()
    assert (said.collective_name, str(said.pg_name)) == ("all_to_allv", "94594108284448")
    assert (row, said.pg_size, said.dtype) == (1, -1, "float")
    assert (said.in_msg_nelems, said.out_msg_nelems) == (8, NONE)
    assert (said.in_split, said.out_split) == ([6, 2], [3, 5])
    assert trace.group_ranks(said) == ()


@pytest.mark.parametrize("sequence", [(9, "Int"), ([9, False], "Tuple[Int,Bool]")])
def test_collectives_from_1_1_0(sequence: tuple[Any, str]) -> None:
    types = ["Tensor(float)", sequence[1], "Tuple[String,String]", "Int", "String"]
    types += ["GenericList[]"] * 2 + ["Int"] * 3
    values = [A, sequence[0], ["3", "tp"], 0, "allreduce", [], [], 4, 2, 2]
    attributes = {
        "collective_name": "allreduce",
        "dtype": "Float",
        "in_msg_nelems": 8,
        "out_msg_nelems": 8,
        "in_split_size": "[]",
        "out_split_size": "[1, 2, ...]",
        "global_rank_start": 4,
        "global_rank_stride": 2,
        "pg_name": "3",
        "pg_desc": "tp",
        "pg_size": 2,
    }
    trace = read(nested(comms(types, values, **attributes), node(1, "root", 1)))
    (said,) = trace.collectives.values()
    assert (said.pg_name, said.pg_size, said.out_msg_nelems) == ("3", 2, 8)
    assert trace.group_ranks(said) == (4, 6)


def test_process_groups() -> None:
    groups = [
        {"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 4},
        {"pg_name": "1", "backend_config": "cuda:nccl", "ranks": [0, 2], "group_size": 2},
    ]
    one = node(
        3,
        "## process_group:init ##",
        1,
        (json.dumps(groups),),
        input_types=["String"],
        input_shapes=[[]],
    )
    trace = read(flat(one, node(1, "root", 1)))
    assert [(g.name, g.ranks, g.size) for g in trace.process_groups] == [
        ("0", (), 4),
        ("1", (0, 2), 2),
    ]
    one["inputs"] = ["[{"]
    assert "process groups" in read(flat(one, node(1, "root", 1))).warnings[0]

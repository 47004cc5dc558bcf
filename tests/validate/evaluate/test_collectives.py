"""Errors per curve: what is scored, what calibration leaves out, tables that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.collective_model import read_measured
from benchmarks.published.collectives import evaluate_collectives
from perfmodel.errors import ModelError

CURVES = """\
curve_id,collective,gpu,n_gpus,n_nodes,intra_link,intra_gb_per_s_per_gpu,node_nic_gb_per_s,network
a,all_reduce,H100-SXM5-80GB,8,1,NVLink4+NVSwitch 8xGPU,450,,none
b,sendrecv,A100-SXM4-80GB,2,2,none,300,25,infiniband
c,all_gather,A100-SXM4-80GB,1,1,none,300,,none
"""
POINTS = """\
curve_id,size_bytes,time_us
a,1024,20
a,65536,30
a,1048576,31
a,33554432,230
b,1048576,90
b,33554432,0
d,33554432,10
"""


def tables(folder: Path, curves: str = CURVES, points: str = POINTS) -> tuple[str, str]:
    (folder / "curves.csv").write_text(curves)
    (folder / "points.csv").write_text(points)
    return str(folder / "curves.csv"), str(folder / "points.csv")


def test_a_row_per_curve_from_64_kb_on(tmp_path: Path) -> None:
    found = evaluate_collectives(*tables(tmp_path))
    assert [(row["curve_id"], row["n"], row["level"]) for row in found.rows] == [
        ("a", 3, "specs"),
        ("b", 1, "specs"),
    ]
    assert any("curve c: n_gpus is 1" in warning for warning in found.warnings)
    assert any("1 curves that" in warning for warning in found.warnings)
    assert found.to_dict()["schema"] == "perfmodel.evaluation/1"


def test_calibration_sizes_are_not_scored(tmp_path: Path) -> None:
    found = evaluate_collectives(*tables(tmp_path), calibrate=[33554432, 7])
    assert [(row["n"], row["level"]) for row in found.rows] == [(2, "calibrated"), (1, "specs")]


def test_what_a_curve_measured_does_not_enter_from_specs(tmp_path: Path) -> None:
    one, other = (
        evaluate_collectives(
            *tables(tmp_path, points=f"curve_id,size_bytes,time_us\na,33554432,{time_us}\n")
        ).rows[0]
        for time_us in (230, 460)
    )
    assert 100 + other["bias_pct"] == pytest.approx((100 + one["bias_pct"]) / 2)


def test_bad_tables_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"curves\.csv: lacks the columns n_gpus"):
        evaluate_collectives(*tables(tmp_path, "curve_id,collective,n_nodes\n"))
    with pytest.raises(ModelError, match="no points of the curves"):
        evaluate_collectives(*tables(tmp_path, points="curve_id,size_bytes,time_us\n"))
    with pytest.raises(ModelError, match=r"none\.csv: cannot be read"):
        evaluate_collectives(str(tmp_path / "none.csv"), str(tmp_path / "none.csv"))


@pytest.mark.parametrize(
    ("cells", "nodes"),
    [(",,,,none", 1), (",,,,infiniband", 2), (",,4,,infiniband", 4), (",,4,,none", 4)],
)
def test_a_curve_without_nodes_has_the_usual_ones(tmp_path: Path, cells: str, nodes: int) -> None:
    """Of 16 GPUs: by the GPUs of a node, else 8 of each where a network is named, else one."""
    head = "curve_id,collective,gpu,n_gpus,n_nodes,gpus_per_node,node_nic_gb_per_s,network\n"
    points = "curve_id,size_bytes,time_us\na,33554432,900\n"
    (found,) = evaluate_collectives(
        *tables(tmp_path, f"{head}a,all_reduce,H100,16{cells}\n", points)
    ).rows
    assert found["nodes"] == nodes
    assert found["note"] == f"n_nodes not given: taken as {nodes}"


def test_kernels_of_a_framework_are_left_out_by_name(tmp_path: Path) -> None:
    head = CURVES.splitlines()[0]
    wires = "all_reduce,H100-SXM5-80GB,2,1,NVLink4+NVSwitch 8xGPU,450,,none"
    variants = ("nccl", "custom_vllm_graph")
    curves = [f"{head},variant", *(f"{each},{wires},{each}" for each in variants)]
    points = ["curve_id,size_bytes,time_us", *(f"{each},1048576,10" for each in variants)]
    found = evaluate_collectives(*tables(tmp_path, "\n".join(curves), "\n".join(points)))
    assert [row["curve_id"] for row in found.rows] == ["nccl"]
    assert found.warnings == [
        "curve custom_vllm_graph: kernels of a framework, not of a library: not modelled"
    ]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("a,1024,20", "a,1024,fast", r"points\.csv: row 0: time_us is 'fast'; expected a number"),
        ("a,1024,20", "a,-4,20", r"points\.csv: row 0: size_bytes is -4; expected a number from 0"),
        ("a,65536,30", "a,65536,inf", r"points\.csv: row 1: time_us is inf; expected"),
        ("a,65536,30", "a,65536,", r"points\.csv: row 1: time_us is nan; expected"),
        ("a,65536,30", "a,65536," + "9" * 400, r"points\.csv: row 1: time_us|points\.csv: column"),
        ("\na,65536,30", "\n,65536,30", r"points\.csv: row 1: curve_id is missing"),
        ("\nb,sendrecv", "\n,sendrecv", r"curves\.csv: row 1: curve_id is missing"),
        ("b,sendrecv", "a,sendrecv", r"curves\.csv: curve 'a' is there twice"),
    ],
)
def test_no_point_is_passed_over_without_a_word(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    assert old in CURVES + POINTS
    paths = tables(tmp_path, CURVES.replace(old, new), POINTS.replace(old, new))
    for read in (evaluate_collectives, lambda *pair: read_measured([pair])):
        with pytest.raises(ModelError, match=words):
            read(*paths)


def test_a_fit_knows_the_wires_of_every_point(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"points\.csv: .*curves\.csv does not describe 'd'"):
        read_measured([tables(tmp_path)])
    points = POINTS.replace("\nd,", "\na,")
    for rate in ("-450", "inf", "many"):
        curves = CURVES.replace(",450,", f",{rate},")
        with pytest.raises(ModelError, match=rf"curves\.csv: curve a: .*'{rate}'"):
            read_measured([tables(tmp_path, curves, points)])

"""Clusters whose nodes are of several kinds are read, and refused where they would be predicted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfmodel.errors import HardwareError
from perfmodel.hardware import Cluster, cluster, load
from perfmodel.hardware.catalogue import equal_nodes
from perfmodel.hardware.reads import figure_values
from perfmodel.prediction import predict

A100 = replace(cluster("dgx-a100-80gb").node, gpus=1)


def test_a_prediction_takes_equal_nodes() -> None:
    last = Cluster(name="mixed", node=load("dgx-h100"), nodes=1)
    machine = Cluster(name="mixed", node=load("dgx-a100-80gb"), nodes=2, others=last)
    with pytest.raises(HardwareError, match="mixed: nodes of several kinds: a workload needs"):
        predict("dlrm-dcnv2", hardware=[machine])


FILE = """kind = "cluster"
node = "dgx-a100-80gb"
nodes = 4
[others]
"""


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ('node = "dgx-h100"\nnodes = 4', "nodes, which counts all, to be more than others.nodes"),
        ('nodes = 2\n[others.node]\nextends = "dgx-h100"\ngpus = 4', "as many devices per node"),
        (
            'node = "hotline-cpus"\nnodes = 2',
            "as many devices per node as node, of the same target",
        ),
        ('node = "p4d"\nnodes = 2', "adapters of one network"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, others: str, said: str) -> None:
    path = tmp_path / "my.toml"
    path.write_text(FILE + others + "\n")
    with pytest.raises(HardwareError, match=said) as caught:
        load(path)
    assert "my.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_two_kinds(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text(FILE + 'node = "dgx-h100"\nnodes = 1\n')
    machine = cluster(path)
    assert [len(ranks) for _, ranks in machine.kinds] == [24, 8]
    seen = machine.seen_by(24)
    assert (seen.node.name, seen.gpus, seen.kinds[1][0].name) == ("dgx-h100", 32, "dgx-a100-80gb")
    assert figure_values(machine)["device.hbm_gb_per_s"] == A100.device.hbm_gb_per_s
    with pytest.raises(HardwareError, match="a trace needs equal ones"):
        equal_nodes(machine, "a trace")
    with pytest.raises(HardwareError, match="my: expected nodes, which counts all"):
        cluster(path, 1)

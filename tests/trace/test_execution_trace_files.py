"""Real execution traces of every published schema."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from perfmodel.trace.columns import NONE
from perfmodel.trace.execution_trace import decode_execution_trace, looks_like_execution_trace

NODES = {
    "execution_graphs/alexnet_et_2023": ("1.0.0", 400),
    "execution_graphs/dlrm_default_1024_et_v1.0.0": ("1.0.0", 528),
    "traces/dlrm_v100x8/et_rank0": ("1.0.1", 1675),
    "traces/dlrm_v100x8/et_rank1": ("1.0.1", 1675),
    "traces/dlrm_v100x8/et_rank2": ("1.0.1", 1675),
    "traces/dlrm_v100x8/et_rank3": ("1.0.1", 1675),
    "traces/et_kineto_pairs/a100_simple_add_et": ("1.0.1", 38),
    "traces/et_kineto_pairs/rtx2080ti_linear_et": ("1.0.1", 931),
    "traces/et_only/pt2_et_1.1.1": ("1.1.1-chakra.0.0.4", 20),
    "traces/et_only/resnet_1gpu_1.1.1-chakra.0.0.4": ("1.1.1-chakra.0.0.4", 14392),
    "traces/et_only/resnet_et_1.1.0-chakra.0.0.4": ("1.1.0-chakra.0.0.4", 14392),
}


def content_of(reference: Path, name: str) -> bytes:
    return gzip.decompress((reference / f"{name}.json.gz").read_bytes())


@pytest.mark.parametrize("name", NODES)
def test_reference_files(reference: Path, name: str) -> None:
    content = content_of(reference, name)
    assert looks_like_execution_trace(content)
    trace = decode_execution_trace(content, name)
    assert (trace.schema, len(trace)) == NODES[name]
    assert trace.warnings == []
    assert np.count_nonzero(trace.parent == NONE) == 1
    producer, consumer = trace.data_dependencies()
    assert len(producer)
    assert (producer != consumer).all()
    ancestors = trace.parent[consumer]
    assert (producer != ancestors).all()


def test_no_kineto_file_looks_like_an_execution_trace(reference: Path) -> None:
    for path in (reference / "traces").rglob("*.json.gz"):
        if path.relative_to(reference).as_posix().removesuffix(".json.gz") not in NODES:
            with gzip.open(path) as file:
                head = file.read(1 << 16)
            assert not looks_like_execution_trace(head), path


@pytest.mark.parametrize("rank", range(4))
def test_dlrm_threads_agree_with_the_golden_linkage(reference: Path, rank: int) -> None:
    golden = reference / "golden/dlrm_v100x8_linkage_ranks0-3.json"
    trace = decode_execution_trace(content_of(reference, f"traces/dlrm_v100x8/et_rank{rank}"), "t")
    expected = json.loads(golden.read_text())["per_rank"][str(rank)]
    counts = {str(t): len(rows) for t, rows in trace.linkable().items()}
    assert counts == expected["et_nodes_per_tid"]
    without = np.flatnonzero(trace.rf_id == 0)
    assert sorted(trace.names(without)) == sorted(expected["et_rfid_zero"])


def test_dlrm_collectives(reference: Path) -> None:
    trace = decode_execution_trace(content_of(reference, "traces/dlrm_v100x8/et_rank0"), "t")
    table = [*trace.collectives.values()]
    names = [said.collective_name for said in table]
    assert names.count("wait") == 5
    assert names.count("allreduce") == 3
    assert names.count("all_to_all") + names.count("all_to_allv") == 5
    first = names.index("all_to_allv")
    assert table[first].in_split == [768] * 8
    assert table[first].in_msg_nelems == 6144


def test_resnet_collectives(reference: Path) -> None:
    trace = decode_execution_trace(
        content_of(reference, "traces/et_only/resnet_et_1.1.0-chakra.0.0.4"), "t"
    )
    names = [said.collective_name for said in trace.collectives.values()]
    assert {name: names.count(name) for name in names} == {
        "broadcast": 6,
        "allreduce": 15,
        "wait": 6,
    }
    assert trace.process_groups[0].name == "0"
    assert trace.group_ranks(next(iter(trace.collectives.values()))) == (0,)

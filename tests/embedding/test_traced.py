"""Indices that an execution trace saved: found, checked and put to their table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from et_documents import nested, node, tensor

from perfmodel.embedding import traced_lookups
from perfmodel.errors import WorkloadError

INDICES = {4: [5, 1, 1], 5: [9, 0, 5], 6: [2, 2]}


def lookup(node_id: int, storage: int, count: int, kind: str = "long int") -> dict[str, Any]:
    return node(
        node_id,
        "aten::embedding_bag",
        3,
        inputs=(tensor(20, storage, 40), tensor(30 + node_id, 40 + node_id, count)),
        input_types=["Tensor(float)", f"Tensor({kind})"],
        input_shapes=[[10, 4], [count]],
        output_types=[],
    )


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two calls on one table and one on another."""
    nodes = [node(1, "process", 1), node(2, "thread", 1), node(3, "step", 2)]
    nodes += [lookup(4, 30, 3), lookup(5, 30, 3), lookup(6, 31, 2, "int")]
    path = tmp_path / "rank0.et.json"
    path.write_text(json.dumps(nested(*nodes)))
    folder = tmp_path / "rank0.et_resources"
    folder.mkdir()
    for number, rows in INDICES.items():
        kind = np.int32 if number == 6 else np.int64
        (folder / f"nid_{number}_tid_1.dat").write_bytes(np.array(rows, kind).tobytes())
        (folder / f"nid_{number}_tid_2.dat").write_bytes(b"offsets")
    return path


def test_calls_on_one_table_are_one_stream(trace: Path) -> None:
    first, second = traced_lookups(trace)
    assert (first.table_rows, first.dim) == (10, 4)
    assert first.rows.tolist() == INDICES[4] + INDICES[5]
    assert second.rows.tolist() == INDICES[6]


def test_calls_without_a_file_are_left_out(trace: Path) -> None:
    (trace.parent / "rank0.et_resources" / "nid_4_tid_1.dat").unlink()
    assert traced_lookups(trace)[0].rows.tolist() == INDICES[5]


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"1234567", "7 bytes for 3 indices"), (np.array([1, 2, 10]).tobytes(), "outside")],
)
def test_files_that_do_not_fit_are_named(trace: Path, content: bytes, says: str) -> None:
    (trace.parent / "rank0.et_resources" / "nid_5_tid_1.dat").write_bytes(content)
    with pytest.raises(WorkloadError, match=rf"nid_5_tid_1.*{says}"):
        traced_lookups(trace)


def test_a_trace_that_saved_none(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(nested(node(1, "process", 1), node(2, "thread", 1))))
    with pytest.raises(WorkloadError, match="a_resources: holds no indices"):
        traced_lookups(path)

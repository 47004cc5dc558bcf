"""Against an independent study of the same real traces."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from lowering.host.handmade import REFERENCE, reference

from perfmodel.base.files import read_bytes
from perfmodel.lowering.host import TYPES
from perfmodel.lowering.host.measure import measure
from perfmodel.trace import link
from perfmodel.trace.kineto import decode_kineto

GOLDEN = {
    "dlrm_v100x8 ranks0-3": "dlrm_v100x8/kineto_rank*.json.gz",
    "torchrec_v100x4/sst_long_a2a_optimizer_3_29220": None,
    "torchrec_v100x4/sst_long_a2a_optimizer_5_qcomm_54105": None,
    "dlrm_meta/a100x8_trace_diff_control": None,
    "train/v100_resnet50_workers0_a": None,
    "inference/h100_qwen1.5-0.5b": None,
    "inference/mi300x_qwen1.5-0.5b": None,
}
VARIANTS = {"raw": "raw", "no_blocking": "no_sync"}


@cache
def totals(key: str) -> dict[tuple[str, str, str], tuple[float, float]]:
    """Count and sum over all ranks by variant, thread and type."""
    found: dict[tuple[str, str, str], tuple[float, float]] = {}
    for path in files(key):
        rank = decode_kineto(read_bytes(path), str(path))
        for thread, tables in measure(rank, link(rank)).table().items():
            for variant, table in tables.items():
                for kind, cell in table.items():
                    count, total = found.get((variant, thread, kind), (0, 0.0))
                    found[variant, thread, kind] = (
                        count + cell["count"],
                        total + cell["total_us"],
                    )
    return found


def files(key: str) -> list[Path]:
    folder = reference("traces")
    paths = sorted(folder.glob(GOLDEN[key] or f"{key}/rank*.json.gz"))
    paths = paths or [folder / f"{key}.json.gz"]
    assert all(path.exists() for path in paths), paths
    return paths


def golden() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(
        reference("golden/overheads_T1_T5.json").read_text(encoding="utf-8")
    )
    return {key: value for key, value in content.items() if key != "definition"}


def test_every_golden_trace_is_compared() -> None:
    assert set(golden()) == set(GOLDEN)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("key", GOLDEN)
def test_counts_equal_and_means_within_one_percent(key: str, variant: str) -> None:
    want = golden()[key][VARIANTS[variant]]
    have = totals(key)
    compared = 0
    for thread in ("main", "autograd"):
        cells = {kind: cell for kind, cell in want[thread].items() if kind in TYPES}
        mine = {kind for which, role, kind in have if (which, role) == (variant, thread)}
        assert mine == set(cells), (thread, mine)
        for kind, cell in cells.items():
            count, total = have[variant, thread, kind]
            assert count == cell["count"], (thread, kind)
            assert total == pytest.approx(cell["sum"], rel=0.01), (thread, kind)
            compared += 1
    assert compared >= len(TYPES)


def test_dlrm_counts_and_sums() -> None:
    path = REFERENCE / "../checks/limits/dlrm_overheads.json"
    if not path.exists():
        pytest.skip(f"limits not found: {path}; set PERFMODEL_REFERENCE")
    have = totals("dlrm_v100x8 ranks0-3")
    for thread, cells in json.loads(path.read_text(encoding="utf-8")).items():
        for kind, cell in cells.items():
            assert have["raw", thread, kind] == (cell["count"], pytest.approx(cell["sum"])), (
                thread,
                kind,
            )


def test_a_process_without_a_gpu_has_gaps_and_operators_only() -> None:
    path = reference("traces/edge/cpu_only_rank_non_gpu.json.gz")
    rank = decode_kineto(read_bytes(path), str(path))
    table = measure(rank, link(rank)).table()
    assert set(table["main"]["raw"]) == {"T1", "op_without_launch"}


def test_old_traces_name_no_autograd_thread() -> None:
    path = reference("traces/train/v100_resnet50_workers0_a.json.gz")
    rank = decode_kineto(read_bytes(path), str(path))
    assert set(measure(rank, link(rank)).table()) == {"main", "other:0"}

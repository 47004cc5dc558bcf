"""TorchRec's formulas: equal to its own functions' outputs, and by hand."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from benchmarks.published.torchrec_formulas import Topology, shard_cost

RATES = {
    "defaults": {},
    "A100-80G": {
        "hbm_bytes_per_s": 2039e9,
        "intra_bytes_per_s": 300e9,
        "inter_bytes_per_s": 25e9,
    },
    "H100-SXM": {
        "hbm_bytes_per_s": 3350e9,
        "intra_bytes_per_s": 450e9,
        "inter_bytes_per_s": 50e9,
    },
}


def test_equal_to_torchrecs_own_functions(reference: Path) -> None:
    path = reference / "torchrec_planner" / "golden.csv"
    groups = defaultdict(list)
    with path.open() as lines:
        for row in csv.DictReader(lines):
            key = row["config"].partition(" ")[0], row["world_size"], row["local_world_size"]
            groups[key].append(row)
    assert sum(map(len, groups.values())) == 168
    for (config, ranks, local), rows in groups.items():
        kinds = [row["sharding"] for row in rows]
        width = np.array([float(row["dim"]) for row in rows])
        width = np.where(np.array(kinds) == "column_wise", width / 2, width)
        found = shard_cost(
            [float(row["rows"]) for row in rows],
            width,
            [float(row["pooling"]) for row in rows],
            kinds,
            [row["kernel"] for row in rows],
            Topology(int(ranks), int(local), **RATES[config]),
        )
        for name, values in {
            "fwd_compute_ms": found.forward_ms,
            "fwd_comms_ms": found.forward_comms_ms,
            "bwd_compute_ms": found.backward_ms,
            "bwd_comms_ms": found.backward_comms_ms,
            "total_ms": found.total_ms,
        }.items():
            expected = [float(row[name]) for row in rows]
            np.testing.assert_allclose(values, expected, rtol=1e-5, atol=0)


def test_a_table_by_hand() -> None:
    found = shard_cost([1e6], [64], [20], ["table_wise"], ["fused"], Topology())
    bytes_moved = (655_360 + 20_971_520 + 1_048_576) * 1.15
    assert found.forward_ms[0] == pytest.approx(bytes_moved / (897 * 2**30 / 1e3))
    assert found.backward_ms[0] == 2 * found.forward_ms[0]

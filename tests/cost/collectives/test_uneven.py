"""Uneven all-to-all, sharing, payloads and the curve of Lin et al. against known answers."""

from __future__ import annotations

import csv
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfmodel.cost.collectives.calls import calls_of, fabric_of
from perfmodel.cost.collectives.durations import (
    busiest_bytes,
    collective_durations,
    uneven_all_to_all,
)
from perfmodel.cost.collectives.learned import calibrated, shipped
from perfmodel.errors import ModelError
from perfmodel.hardware import node
from perfmodel.ops.rows import Rows

REFERENCE = Path(
    os.environ.get("PERFMODEL_REFERENCE", Path(__file__).parents[2] / "../shared/data")
)


def test_an_even_matrix_takes_what_the_even_collective_takes() -> None:
    machine = node("dgx-h100")
    for ranks, nodes in ((8, 1), (16, 2)):
        sends = np.full((ranks, ranks), 1e6)
        even = Rows.of(
            [{"op": "all_to_all", "size_bytes": ranks * 1e6, "ranks": ranks, "nodes": nodes}]
        )
        found = uneven_all_to_all(sends, machine, nodes).duration_us
        assert found == pytest.approx(collective_durations(even, machine).duration_us)


def test_the_busiest_rank_decides() -> None:
    sends = np.full((4, 4), 1.0)
    sends[2] = 5.0
    by_rank, by_domain = busiest_bytes(sends, domains=2)
    assert by_rank.tolist() == [7.0, 7.0, 15.0, 7.0]
    assert by_domain.tolist() == [12.0, 12.0]
    machine = node("dgx-h100")
    even = np.full((4, 4), sends.mean())
    assert (
        uneven_all_to_all(sends * 1e7, machine).duration_us
        > uneven_all_to_all(even * 1e7, machine).duration_us
    )


def test_impossible_matrices_are_one_line() -> None:
    with pytest.raises(ModelError, match=r"shape \(2, 3\)"):
        busiest_bytes(np.ones((2, 3)))
    with pytest.raises(ModelError, match=r"rank 1 sends -1\.0 bytes to rank 0"):
        busiest_bytes([[0, 1], [-1, 0]])


def test_uneven_samples_of_lin_after_an_even_sweep() -> None:
    """As Lin et al.: a curve of even exchanges of the same machine; they report 5.4 % GMAE."""
    folder = REFERENCE / "lin2022"
    if not folder.is_dir():
        pytest.skip("reference data not found (PERFMODEL_REFERENCE)")
    machine = replace(node("dgx-1"), gpus=4)
    with (folder / "collective_curves_4xV100_digitised.csv").open() as file:
        sweep = [
            (float(row["size_B"]), float(row["value"]))
            for row in csv.DictReader(file)
            if (row["collective"], row["quantity"]) == ("all_to_allv", "latency_us")
        ]
    even = [{"op": "all_to_all", "size_bytes": size, "ranks": 4, "nodes": 1} for size, _ in sweep]
    calls = calls_of(Rows.of(even), fabric_of(machine))
    model = calibrated(shipped(), calls, np.array([us for _, us in sweep]), "sweep")
    with (folder / "a2a_general_samples.csv").open() as file:
        samples = list(csv.DictReader(file))
    errors = []
    for row in samples:
        tables = np.array(row["tables_per_gpu"].split("-"), float)
        each = tables * float(row["batch_size"]) / 4 * float(row["dim"]) * 4
        sends = np.repeat(each[:, None], 4, axis=1)
        found = uneven_all_to_all(sends, machine, model=model).duration_us[0]
        errors.append(abs(found / float(row["latency_us"]) - 1))
    assert np.exp(np.mean(np.log(np.array(errors) + 4e-4))) < 0.054

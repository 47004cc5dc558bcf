"""How popular rows of recovered tables are, by ids that were looked up."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from workload.captured import TRACES

from perfmodel.collect.models.dlrm import zipf_indices
from perfmodel.embedding.index_streams import stream_alpha
from perfmodel.errors import WorkloadError
from perfmodel.trace.execution_trace import decode_execution_trace
from perfmodel.workload import Table, load_workload, op_graph
from perfmodel.workload import load as loading
from perfmodel.workload.model import toml_of
from perfmodel.workload.recovered_tables import SUMS, HeldTable, SeenTable


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.05, 1.3])
@pytest.mark.parametrize("rows", [100, 50_000])
def test_ids_tell_their_skew(rows: int, alpha: float) -> None:
    ids = zipf_indices(np.random.default_rng(1), rows, 200_000, alpha)
    assert stream_alpha(ids, rows) == pytest.approx(alpha, rel=0.05, abs=0.02)


def written_ids(tmp_path: Path, rows: list[int], alpha: float) -> Path:
    generator, path = np.random.default_rng(2), tmp_path / "ids.npz"
    streams = {
        f"table_{number}": zipf_indices(generator, each, 30_000, alpha)
        for number, each in enumerate(rows)
    }
    np.savez(path, **streams)  # type: ignore[arg-type]
    return path


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    tables = (Table(5000, 16), Table(400, 16))
    path.write_text(toml_of(replace(load_workload("criteo-kaggle"), tables=tables), []))
    return path


def test_ids_of_a_file_become_the_skew_of_each_table(mine: Path, tmp_path: Path) -> None:
    found = loading.workload_of(mine, ids=written_ids(tmp_path, [5000, 400], 1.05))
    assert [each.alpha for each in found.workload.tables] == pytest.approx([1.05] * 2, rel=0.05)


def test_ids_that_no_zipf_law_draws_become_a_histogram(mine: Path, tmp_path: Path) -> None:
    """Ten rows take all lookups, evenly: ten distinct rows are expected in any batch."""
    generator, path = np.random.default_rng(3), tmp_path / "ten.npz"
    np.savez(path, a=generator.integers(0, 10, 20_000), b=generator.integers(0, 10, 20_000))
    for table in loading.workload_of(mine, ids=path).workload.tables:
        assert table.histogram
        assert table.unique_rows(10_000) == pytest.approx(10, rel=0.01)


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([5000], "ids of 1 tables, the workload has 2"),
        ([5000, 90_000], r"table table_1: row \d+, of 400 rows from 0"),
    ],
)
def test_ids_of_other_tables_are_refused(
    rows: list[int], told: str, mine: Path, tmp_path: Path
) -> None:
    with pytest.raises(WorkloadError, match=told):
        loading.workload_of(mine, ids=written_ids(tmp_path, rows, 0.5))


def test_ids_tell_rows_of_which_a_call_tells_the_sum(tmp_path: Path) -> None:
    """Tables 0, 2, 4 and 6 of 100,000 rows on average are in one call: of 400,000 the first has
    300,000, the others 20,000 and a quarter of what is left each; those of the other call stay."""
    path = TRACES / "cpu_dlrm_2rank"
    ids = written_ids(tmp_path, [300_000, *[100_000, 20_000] * 3, 100_000], 0.0)
    found = loading.workload_of(path, ids=ids)
    tables = found.workload.tables
    assert [each.rows for each in tables[::2]] == pytest.approx([310_000, *[30_000] * 3], rel=0.01)
    assert sum(each.rows for each in tables[::2]) == pytest.approx(400_000, abs=4)
    assert {each.rows for each in tables[1::2]} == {100_000}
    assert ("tables.rows", 4) in [(each.setting, each.value) for each in found.facts]
    ids = written_ids(tmp_path, [300_000, *[100_000] * 7], 0.0)
    with pytest.raises(
        WorkloadError, match=r"ids of 4 tables need 599,\d+ rows, and these have 400"
    ):
        loading.workload_of(path, ids=ids)


def test_rows_stay_within_their_call() -> None:
    """Two calls of one rank: the 100 rows of the first are too few, whatever the second has."""
    held = [
        HeldTable(Table(rows, dim, 1.0), (0,), SeenTable(rows, dim, 8.0, 8, (call, n)), SUMS)
        for call, rows, dim in (("a", 50, 32), ("b", 500_000, 64))
        for n in range(2)
    ]
    with pytest.raises(WorkloadError, match="ids of 2 tables need 510 rows, and these have 100 in"):
        loading._rows(held, [500, 10, 10, 10], "ids.npz")
    assert loading._rows(held, [80, 10, 10, 10], "ids.npz") == {0: 85, 1: 15}


def test_ids_that_contradict_the_recorded_skew_are_refused(tmp_path: Path) -> None:
    asked = replace(load_workload("criteo-kaggle"), tables=(Table(5000, 16, 1.0, 1.05),) * 2)
    ids = written_ids(tmp_path, [5000, 5000], 0.3)
    with pytest.raises(WorkloadError, match=r"alpha 0\.\d+, those that were recorded 1"):
        loading.workload_of(op_graph(asked), ids=ids)


def test_ids_saved_beside_an_execution_trace_tell_the_skew(tmp_path: Path) -> None:
    """As PyTorch saves them: of each lookup a file of row numbers, drawn with exponent 1.05."""
    stem, generator = TRACES / "cpu_dlrm_truth/one_rank_base/trace", np.random.default_rng(4)
    raw, path = gzip.decompress(Path(f"{stem}_et.json.gz").read_bytes()), tmp_path / "run.json"
    path.write_bytes(raw)
    folder = tmp_path / "run_resources"
    folder.mkdir()
    trace = decode_execution_trace(raw, "run.json")
    for row, name in enumerate(trace.names(np.arange(len(trace)))):
        if name == "aten::embedding_bag":
            (rows, _), (count,), *_ = trace.input_shapes(row)
            ids = zipf_indices(generator, rows, count, 1.05)
            (folder / f"nid_{trace.node_id[row]}_tid_1.dat").write_bytes(ids.tobytes())
    found = loading.workload_of(path)
    assert all(each.skew_told for each in found.held)
    assert [each.alpha for each in found.workload.tables] == pytest.approx([1.05] * 8, rel=0.05)

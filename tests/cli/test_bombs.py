"""Files that grow when they are read: refused at a limit, in one line, without their memory."""

from __future__ import annotations

import gzip
import io
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from cli.conftest import Run
from slow import slow_but

from perfmodel.base.frames import read_frame
from perfmodel.errors import PerfmodelError

MB = 1_000_000
LIMIT_GB = "0.002"
VERBS = (
    ("breakdown", "{}"),
    ("predict", "{}"),
    ("predict", "--et", "{}"),
    ("export", "{}", "-o", "{out}/x.json"),
    ("report", "{}", "-o", "{out}/x.html"),
    ("diff", "{}", "{}"),
    ("evaluate", "traces", "{}"),
    ("check", "{}", "--baseline", "{out}/none.json"),
    ("fit", "overheads", "{}", "-o", "{out}/o.json"),
)


@pytest.fixture(scope="module")
def bombs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Gzip, gzip twice as an archive, and JSON that is one list in another."""
    folder = tmp_path_factory.mktemp("bombs")
    head = b'{"traceEvents": ['
    content = {
        "space": gzip.compress(head + b" " * (60 * MB) + b"]}"),
        "nested": gzip.compress(head + b'{"x": ' + b"[" * (4 * MB)),
        "name": gzip.compress(head + b'{"ph": "X", "name": "' + b"a" * (40 * MB) + b'"}]}'),
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("rank0.json.gz")
        member.size = len(content["space"])
        archive.addfile(member, io.BytesIO(content["space"]))
    content["archive"] = gzip.compress(packed.getvalue())
    paths = {name: folder / f"{name}.json.gz" for name in content}
    for name, path in paths.items():
        path.write_bytes(content[name])
    return paths


@pytest.mark.parametrize(
    "verb", slow_but(1, [(words,) for words in VERBS]), ids=lambda words: " ".join(words[:2])
)
def test_bombs_stop_at_the_limit(
    run: Run, bombs: dict[str, Path], tmp_path: Path, verb: tuple[str, ...]
) -> None:
    for path in bombs.values():
        words = [word.replace("{out}", str(tmp_path)).replace("{}", str(path)) for word in verb]
        tracemalloc.start()
        ran = run(*words, "--max-memory", LIMIT_GB)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert ran.status == 2, ran
        assert ran.err.count("\n") == 1
        assert "internal error" not in ran.err
        assert peak_bytes < 30 * MB
    assert not list(tmp_path.iterdir())


def test_archives_name_no_path_to_write(run: Run, tmp_path: Path) -> None:
    packed = tmp_path / "evil.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        for name in ("../outside.json", "/tmp/outside.json"):
            member = tarfile.TarInfo(name)
            member.size = 2
            archive.addfile(member, io.BytesIO(b"{}"))
    assert run("breakdown", packed).status == 2
    assert [each.name for each in tmp_path.iterdir()] == [packed.name]
    assert not (tmp_path.parent / "outside.json").exists()


def test_parquet_of_many_equal_cells_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "cells.parquet"
    pq.write_table(pa.table({"a": pa.array([1.0] * MB)}), path)
    assert path.stat().st_size < MB / 4
    with pytest.raises(PerfmodelError, match=r"cells\.parquet: .* above the limit"):
        read_frame(path, max_bytes=MB)
    assert len(read_frame(path, max_bytes=10 * MB)) == MB

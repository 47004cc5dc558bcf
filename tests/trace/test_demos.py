"""Traces that come with the package: their names work in any folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.base.files import located
from perfmodel.errors import UsageError
from perfmodel.trace import read

TRACES = Path(__file__).parents[2] / "traces"


@pytest.mark.parametrize(
    ("name", "device", "ranks"),
    [("demo:", "cpu", 1), ("demo:2rank", "cpu", 2), ("demo:gpu", "NVIDIA H100 80GB HBM3", 1)],
)
def test_a_name_is_read_from_any_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, device: str, ranks: int
) -> None:
    monkeypatch.chdir(tmp_path)
    found = read(name)
    assert (found.source, found.device, len(found.ranks)) == (name, device, ranks)


def test_an_unknown_name_is_told_what_there_is() -> None:
    with pytest.raises(UsageError, match="demo:tpu: no such demo; there are demo:, demo:2rank"):
        read("demo:tpu")


@pytest.mark.skipif(not TRACES.is_dir(), reason="traces/ is in a checkout")
@pytest.mark.parametrize(("folder", "kept"), [("2rank", "cpu_dlrm_2rank"), ("gpu", "h100")])
def test_they_are_the_files_of_the_checkout(folder: str, kept: str) -> None:
    own = sorted((located("demo:").parent / folder).iterdir())
    assert own
    for file in own:
        (other,) = (TRACES / kept).rglob(file.name)
        assert other.read_bytes() == file.read_bytes()

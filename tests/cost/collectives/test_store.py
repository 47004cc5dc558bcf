"""Files of the collective model: read back as written, and refused where damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.collective_model import model_to_dict
from perfmodel.cost.collectives.learned import load, shipped
from perfmodel.errors import ModelError


def written(folder: Path, content: object) -> Path:
    path = folder / "model.json"
    path.write_text(json.dumps(content))
    return path


def test_a_model_is_read_as_it_was_written(tmp_path: Path) -> None:
    content = model_to_dict(shipped(), {})
    assert model_to_dict(load(written(tmp_path, content)), {}) == content


@pytest.mark.parametrize("section", ["constants", "spreads", "trees", "fitted"])
@pytest.mark.parametrize("value", [None, {}, 3, "text"])
def test_a_damaged_section_is_refused(tmp_path: Path, section: str, value: Any) -> None:
    path = written(tmp_path, model_to_dict(shipped(), {}) | {section: value})
    with pytest.raises(ModelError, match=r"model\.json: a damaged collective model"):
        load(path)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 1e300, "fast", None])
def test_a_constant_that_cannot_be_is_refused(tmp_path: Path, value: Any) -> None:
    content = model_to_dict(shipped(), {})
    content["constants"]["base.call_us"] = value
    with pytest.raises(ModelError, match=r"model\.json: a damaged collective model"):
        load(written(tmp_path, content))


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"[]", b"{}", b"\0\1", b'{"schema": 1}'])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.json: "):
        load(path)

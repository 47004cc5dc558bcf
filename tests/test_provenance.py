"""What made an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import perfmodel
from perfmodel.base import answers
from perfmodel.base.answers import answered_by, made_by
from perfmodel.cost.durations import using_kernels
from perfmodel.hardware import cluster
from perfmodel.prediction.step import Step
from perfmodel.prediction.types import Prediction
from perfmodel.workload import load_workload


def test_fingerprints_move_with_the_files_and_with_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "hardware" / "catalogue"
    folder.mkdir(parents=True)
    (folder / "one.toml").write_text("a = 1")
    monkeypatch.setattr(answers, "_HERE", tmp_path)

    def found() -> dict[str, str]:
        answers._fingerprint.cache_clear()
        return made_by()

    before = found()
    (folder / "notes.md").write_text("more")
    assert found() == before
    (folder / "one.toml").write_text("a = 2")
    after = found()
    assert after["catalogue"] != before["catalogue"]
    assert after["models"] == before["models"]
    answers._fingerprint.cache_clear()


def test_own_models_are_named_also_later(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text("{}")
    with answered_by(manifest):
        prediction = Prediction({}, [])
        with answered_by(None):
            assert made_by()["own_models"] == made_by(prediction.own_models)["own_models"]
    assert len(prediction.to_dict()["made_by"]["own_models"]) == 12
    assert "own_models" not in made_by()
    assert made_by()["perfmodel"] == perfmodel.__version__


def test_steps_by_other_models_are_other_steps(tmp_path: Path) -> None:
    """Steps that are known are known with what timed them."""
    manifest = tmp_path / "manifest.json"
    manifest.write_text("{}")
    about: Any = (load_workload("criteo-kaggle"), cluster("dgx-a100-80gb"), 64, True)
    plain = Step(*about)
    assert plain == Step(*about)
    with answered_by(manifest):
        assert Step(*about) != plain
    with using_kernels("matmul=heuristic"):
        assert Step(*about) != plain

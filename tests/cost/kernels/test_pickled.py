"""A user's regressor in a model directory: used where it is trusted, else nothing of it runs."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from cost.kernels.test_learned_store import measured
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor

import perfmodel
from perfmodel.calibrate.kernels import fit_kernels
from perfmodel.cost.learned.pickled import Pickled
from perfmodel.cost.learned.store import (
    MANIFEST,
    _digest_of,
    default_models,
    load_models,
    save,
    using_models,
)
from perfmodel.errors import ModelError, PerfmodelError

NEIGHBOURS = "sklearn.neighbors:KNeighborsRegressor"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("fit")
    table = measured(100)
    table[table["op"] == "mm"].to_csv(place / "data.csv", index=False)
    fitted = fit_kernels([place / "data.csv"], rows_per_group=100, estimator=NEIGHBOURS)
    save(place / "models", fitted.models, fitted.about)
    return place / "models"


def copied(folder: Path, place: Path) -> Path:
    place.mkdir()
    for path in folder.iterdir():
        (place / path.name).write_bytes(path.read_bytes())
    return place


def with_manifest(folder: Path, place: Path, edit: object) -> Path:
    """A copy whose manifest was edited by someone who knows how to make its checksum."""
    copy = copied(folder, place)
    content = json.loads((copy / MANIFEST).read_text())
    del content["sha256"]
    edit(content)  # type: ignore[operator]
    (copy / MANIFEST).write_text(json.dumps(content | {"sha256": _digest_of(content)}))
    return copy


def test_it_predicts_what_it_was_fitted_on(folder: Path) -> None:
    table = pd.read_csv(folder.parent / "data.csv")
    models = load_models(folder, trusted=True)
    for name, own in table.groupby("device"):
        found = perfmodel.durations(own, name, models=models)
        assert np.median(np.abs(found["duration_us"] / own["duration_us"] - 1)) < 0.05
        assert set(found["model"]) == {"gpu/matmul/learned"}


def test_without_trust_nothing_of_it_is_loaded(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"runs code.*trusted=True") as error:
        load_models(folder)
    assert "KNeighborsRegressor" in str(error.value)
    with pytest.raises(ModelError, match="trusted=True"):
        perfmodel.durations(measured(1), "t4", models=folder)


class Trap:
    """Unpickling it makes a folder."""

    def __init__(self, made: Path) -> None:
        self.made = str(made)

    def __reduce__(self) -> object:
        return os.mkdir, (self.made,)


def test_a_manifest_that_hides_the_regressor_does_not_get_it_run(
    folder: Path, tmp_path: Path
) -> None:
    sprung = tmp_path / "sprung"

    def plant(content: dict) -> None:
        del content["about"]["estimator"]
        for part in content["families"]["matmul"]["parts"]:
            file = tmp_path / "copy" / part["trees"]["file"]
            joblib.dump(Trap(sprung), file)
            part["trees"]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()

    copy = with_manifest(folder, tmp_path / "copy", plant)
    with pytest.raises(ModelError, match="trusted=True"):
        load_models(copy)
    nameless = with_manifest(
        copy,
        tmp_path / "nameless",
        lambda content: [
            part["trees"].pop("class") for part in content["families"]["matmul"]["parts"]
        ],
    )
    row = measured(1).query("op == 'mm'")
    with pytest.raises(PerfmodelError, match=r"\.joblib: damaged gzip"):
        perfmodel.durations(row, "t4", models=nameless)  # read as trees, which it is not
    assert not sprung.exists()
    with pytest.raises(ModelError):
        perfmodel.durations(row, "t4", models=load_models(copy, trusted=True))
    assert sprung.exists(), "the trap works where it is trusted"


def test_damage_is_seen_before_anything_is_loaded(folder: Path, tmp_path: Path) -> None:
    copy = copied(folder, tmp_path / "copy")
    path = next(copy.glob("*.joblib"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"\.joblib: cut, or changed"):
        load_models(copy, trusted=True)


def test_answers_are_bounded_and_must_be_numbers() -> None:
    matrix = np.array([[0.0], [1.0]])
    steep = Ridge(alpha=1e-9).fit(matrix, [0.0, 1.0])
    found = Pickled.of(steep, "part", (0.0, 1.0))
    assert found.predict(np.array([[-50.0], [0.5], [50.0]])) == pytest.approx([0.0, 0.5, 1.0])
    steep.coef_ = np.array([np.nan])
    with pytest.raises(ModelError, match="one finite number per row"):
        Pickled.of(steep, "part", (0.0, 1.0)).predict(matrix)


def test_a_regressor_that_fails_is_one_line() -> None:
    unfitted = Pickled.of(KNeighborsRegressor(), "part", (0.0, 1.0))
    with pytest.raises(ModelError, match=r"part: .*KNeighborsRegressor: .*not fitted") as error:
        unfitted.predict(np.zeros((1, 1)))
    assert "\n" not in str(error.value)
    nothing = Pickled(b"no pickle", "part", {"class": "a:B", "low": 0.0, "high": 1.0})
    with pytest.raises(ModelError, match="part: a:B: "):
        nothing.predict(np.zeros((1, 1)))


def test_models_in_use_come_before_the_bundled_ones_and_leave_again(folder: Path) -> None:
    before = default_models()
    with using_models(folder, trusted=True):
        inside = default_models()
        assert inside["matmul"] is not before["matmul"]
        assert inside["vector"] is before["vector"]
    assert default_models()["matmul"] is before["matmul"]
    with using_models(None):
        assert default_models()["matmul"] is before["matmul"]

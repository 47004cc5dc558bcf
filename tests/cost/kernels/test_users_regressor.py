"""Kernel models by a regressor of a user's: run only where trusted, bounded, one-line errors."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from cost.kernels.test_learned_store import measured, resealed
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor

import perfmodel
from perfmodel.cost.durations import default_models, using_models
from perfmodel.cost.learned.model import File
from perfmodel.cost.learned.store import Stored, load_models, save
from perfmodel.errors import ModelError, PerfmodelError
from perfmodel.validate.calibrate.kernel_part import stored
from perfmodel.validate.calibrate.kernels import fit_kernels


@pytest.fixture(scope="module")
def of_a_user(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models by a regressor of a user's."""
    place = tmp_path_factory.mktemp("fit")
    table = measured(100)
    table[table["op"] == "mm"].to_csv(place / "data.csv", index=False)
    fitted = fit_kernels([place / "data.csv"], rows_per_group=100, estimator=NEIGHBOURS)
    save(place / "models", fitted.models, fitted.about)
    return place / "models"


NEIGHBOURS = "sklearn.neighbors:KNeighborsRegressor"


def test_a_users_regressor_predicts_what_it_was_fitted_on(of_a_user: Path) -> None:
    table = pd.read_csv(of_a_user.parent / "data.csv")
    models = load_models(of_a_user, trusted=True)
    for name, own in table.groupby("device"):
        found = perfmodel.durations(own, name, models=models)
        # These times know no power limit; a T4's physics does, and neighbours lie on both sides.
        most = 0.15 if name == "t4" else 0.06
        assert np.median(np.abs(found["duration_us"] / own["duration_us"] - 1)) < most
        assert set(found["model"]) == {"gpu/matmul/learned"}


def test_without_trust_nothing_of_it_is_loaded(of_a_user: Path) -> None:
    with pytest.raises(ModelError, match=r"runs code.*trusted=True") as error:
        load_models(of_a_user)
    assert "KNeighborsRegressor" in str(error.value)
    with pytest.raises(ModelError, match="trusted=True"):
        perfmodel.durations(measured(1), "t4", models=of_a_user)


class Trap:
    """Unpickling it makes a folder."""

    def __init__(self, made: Path) -> None:
        self.made = str(made)

    def __reduce__(self) -> object:
        return os.mkdir, (self.made,)


def test_a_manifest_that_hides_the_regressor_does_not_get_it_run(
    of_a_user: Path, tmp_path: Path
) -> None:
    sprung, bait = tmp_path / "sprung", tmp_path / "bait"
    joblib.dump(Trap(sprung), bait)

    def plant(part: dict) -> None:
        file = part["files"][""]
        file["sha256"] = hashlib.sha256(bait.read_bytes()).hexdigest()
        shutil.copy(bait, tmp_path / file["file"])

    copy = resealed(of_a_user, tmp_path / "copy", plant)
    shutil.copy(bait, next(copy.glob("*.joblib")))
    with pytest.raises(ModelError, match="trusted=True"):
        load_models(copy)
    nameless = resealed(
        copy, tmp_path / "nameless", lambda part: part["files"][""].update(regressor="")
    )
    row = measured(1).query("op == 'mm'")
    with pytest.raises(PerfmodelError, match=r"\.joblib: damaged gzip"):
        perfmodel.durations(row, "t4", models=nameless)  # read as trees, which it is not
    assert not sprung.exists()
    with pytest.raises(ModelError):
        perfmodel.durations(row, "t4", models=load_models(copy, trusted=True))
    assert sprung.exists(), "the trap works where it is trusted"


def regressor(fitted: object, low: float = 0.0, high: float = 1.0) -> Stored:
    return stored(fitted, "part", low, high)


def test_answers_are_bounded_and_must_be_numbers() -> None:
    matrix = np.array([[0.0], [1.0]])
    steep = Ridge(alpha=1e-9).fit(matrix, [0.0, 1.0])
    found = regressor(steep).predict(np.array([[-50.0], [0.5], [50.0]]))
    assert found == pytest.approx([0.0, 0.5, 1.0])
    steep.coef_ = np.array([np.nan])
    with pytest.raises(ModelError, match="one finite number per row"):
        regressor(steep).predict(matrix)


def test_a_regressor_that_fails_is_one_line() -> None:
    with pytest.raises(ModelError, match=r"part: .*KNeighborsRegressor: .*not fitted") as error:
        regressor(KNeighborsRegressor()).predict(np.zeros((1, 1)))
    assert "\n" not in str(error.value)
    nothing = Stored(b"no pickle", File("part", "", "a:B"), "part")
    with pytest.raises(ModelError, match="part: a:B: "):
        nothing.predict(np.zeros((1, 1)))


def test_models_in_use_come_before_the_bundled_ones_and_leave_again(of_a_user: Path) -> None:
    before = default_models()
    with using_models(of_a_user, trusted=True):
        inside = default_models()
        assert inside["matmul"] is not before["matmul"]
        assert inside["vector"] is before["vector"]
    assert default_models()["matmul"] is before["matmul"]
    with using_models(None):
        assert default_models()["matmul"] is before["matmul"]

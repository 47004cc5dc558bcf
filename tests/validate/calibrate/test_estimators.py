"""Estimators of fits: monotone trees, regressors of users, and what is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

from perfmodel.errors import UsageError
from perfmodel.validate.calibrate.kernel_part import TREES, boosted
from perfmodel.validate.calibrate.kernels import users_regressor


def test_estimators_of_tables_are_cloned_and_configured() -> None:
    made = boosted({}, "a", seed=0)
    again = clone(made)
    assert type(again) is type(made)
    assert again.set_params(max_depth=2).get_params()["max_depth"] == 2
    assert made.get_params()["max_depth"] != 2


def test_trees_never_rise_with_a_falling_column() -> None:
    matrix = np.random.default_rng(0).uniform(size=(400, 2)).astype(np.float32)
    trees = boosted(TREES, ("up", "down"), seed=0, falling=frozenset({"down"}))
    trees.fit(matrix, 5.0 * matrix[:, 1] + matrix[:, 0])  # it does rise, and may not be said to
    along = np.column_stack([np.full(50, 0.5), np.linspace(0, 1, 50)]).astype(np.float32)
    assert (np.diff(trees.predict(along)) <= 1e-6).all()


MODULE = """\
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

def scaled():
    return make_pipeline(StandardScaler(), RandomForestRegressor(n_estimators=3))

def hidden():
    class Local(RandomForestRegressor):
        pass
    return Local()

def broken():
    return 1 / 0
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_regressors.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("here")
def test_a_function_may_make_a_pipeline_whose_random_states_are_the_seed() -> None:
    found = users_regressor("some_regressors:scaled", seed=7)
    assert found.get_params()["randomforestregressor__random_state"] == 7


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("some_regressors", "expected MODULE:CLASS"),
        (":scaled", "expected MODULE:CLASS"),
        ("no_such_module_anywhere:X", "No module named"),
        ("some_regressors:missing", "no attribute 'missing'"),
        ("some_regressors:LogisticRegression", "is not a scikit-learn regressor"),
        ("builtins:dict", "is not a scikit-learn regressor"),
        ("sklearn.ensemble:VotingRegressor", "missing 1 required positional argument"),
        ("some_regressors:broken", "division by zero"),
        ("some_regressors:hidden", "Can't pickle|Can't get local"),
    ],
)
def test_what_is_no_regressor_is_one_line(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        users_regressor(name, seed=0)
    assert str(error.value).startswith(f"estimator {name}: ")
    assert "\n" not in str(error.value)

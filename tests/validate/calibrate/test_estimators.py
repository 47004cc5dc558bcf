"""Estimators of fits: scikit-learn's own checks, monotone trees, regressors that are none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.utils.estimator_checks import parametrize_with_checks

from benchmarks.nic_cache import HitRateRegressor
from perfmodel.errors import UsageError
from perfmodel.validate.calibrate.estimators import (
    TREES,
    Bounded,
    boosted,
    users_regressor,
)


def cannot_pass(estimator: BaseEstimator) -> dict[str, str]:
    takes_none = isinstance(estimator.get_params().get("regressor"), KNeighborsRegressor)
    weighted = "check_sample_weight_equivalence_on_dense_data"
    return {weighted: "a regressor without weights cannot heed them"} if takes_none else {}


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [Bounded(Ridge()), Bounded(KNeighborsRegressor())],
    expected_failed_checks=cannot_pass,
)
def test_they_are_estimators(estimator: object, check: Callable[[object], None]) -> None:
    check(estimator)


@pytest.mark.parametrize("made", [HitRateRegressor(), boosted({}, "a", seed=0)])
def test_estimators_of_tables_are_cloned_and_configured(made: object) -> None:
    again = clone(made)
    assert type(again) is type(made)
    name = "max_depth" if "max_depth" in again.get_params() else "trees__max_depth"
    assert again.set_params(**{name: 2}).get_params()[name] == 2
    assert made.get_params()[name] != 2


def line(count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    matrix = np.linspace(0.0, 1.0, count)[:, None]
    return matrix, 3.0 * matrix[:, 0]


def test_answers_stay_within_the_targets_of_the_fit() -> None:
    matrix, target = line()
    found = Bounded(Ridge(alpha=1e-6)).fit(matrix, target)
    far = np.array([[-5.0], [0.5], [5.0]])
    assert found.predict(far) == pytest.approx([0.0, 1.5, 3.0], abs=1e-4)


def test_rows_without_weight_teach_nothing_even_where_weights_are_not_taken() -> None:
    matrix, target = line()
    wrong = np.concatenate([target, target + 100.0])
    weight = np.repeat([1.0, 0.0], len(target))
    twice = np.vstack([matrix, matrix])
    for regressor in (KNeighborsRegressor(1), Ridge(alpha=1e-6)):
        found = Bounded(regressor).fit(twice, wrong, sample_weight=weight)
        assert found.predict(matrix) == pytest.approx(target, abs=1e-4)


def test_weights_reach_a_regressor_that_takes_them() -> None:
    flat = np.zeros((2, 1))
    found = Bounded(Ridge()).fit(flat, np.array([0.0, 4.0]), sample_weight=np.array([3.0, 1.0]))
    assert found.predict(flat) == pytest.approx([1.0, 1.0])


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
    assert found.regressor.get_params()["randomforestregressor__random_state"] == 7


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

"""Trees as arrays: by hand, as XGBoost's, and nothing that is no tree."""

from __future__ import annotations

import numpy as np
import pytest
from xgboost import XGBRegressor

from perfmodel.cost.learned.store import Forest, pack, unpack
from perfmodel.validate.calibrate.kernel_part import of_booster


def forest(start: float = 10.0, column: int = 1) -> Forest:
    """A tree that asks whether a column is below 0.5, and one that is a leaf of 0.25."""
    feature = np.array([[column], [0]], np.int32)
    threshold = np.array([[0.5], [np.inf]], np.float32)
    return Forest(feature, threshold, np.array([[-1.0, 2.0], [0.25, 0.0]], np.float32), start)


def test_by_hand() -> None:
    matrix = np.array([[9.0, 0.4], [9.0, 0.5]], np.float32)
    assert forest().predict(matrix) == pytest.approx([9.25, 12.25]), "less than, not at most"
    assert forest().predict(matrix[:0]).shape == (0,)


def test_grown_trees_answer_as_where_they_grew_and_are_read_as_written() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(500, 4)).astype(np.float32)
    fitted = XGBRegressor(n_estimators=20, max_depth=5, n_jobs=1)
    fitted.fit(matrix, np.abs(matrix[:, 0]) * matrix[:, 1])
    grown, columns = of_booster(fitted.get_booster())
    assert columns == 4
    assert grown.predict(matrix) == pytest.approx(fitted.predict(matrix), abs=1e-5)
    assert unpack(pack(grown, 4), 4).predict(matrix).tolist() == grown.predict(matrix).tolist()
    constant = XGBRegressor(n_estimators=1).fit(matrix, np.full(500, 3.0))
    alone, _ = of_booster(constant.get_booster())
    assert alone.predict(matrix[:2]) == pytest.approx([3.0, 3.0])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (pack(forest(), 3), "of 3 columns, not of 2"),
        (pack(forest(column=7), 2), "a column that is none of 2"),
        (pack(forest(start=np.nan), 2), "not finite"),
        (pack(forest(), 2)[:-8], "bytes are not 2 trees"),
        (b"", "0 bytes are not"),
    ],
)
def test_what_is_no_tree_is_an_error(content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        unpack(content, 2)

"""Growing ensembles of trees: their shapes, and columns in which they may not rise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from perfmodel.kernels.learned.builds import FALLING
from perfmodel.ops.spec import Floats

Grow = Callable[..., Any]
"""From a matrix, targets, weights and a shape to an ensemble."""

OWN_TREES = {"max_depth": 9, "eta": 0.1, "min_child_weight": 10, "rounds": 250}
_FOREST = OWN_TREES | {"max_depth": 10, "rounds": 100, "num_parallel_tree": 4}
OWN_TREES_OF_PART = {"matmul_fp32": _FOREST, "vector_rows": _FOREST}
"""Several trees per round where single ones answer by chance: at the edge of the domain."""
GENERAL_TREES = {"max_depth": 5, "eta": 0.08, "min_child_weight": 20, "rounds": 150}


def grown(
    matrix: np.ndarray,
    target: Floats,
    weight: Floats,
    shape: Mapping[str, float],
    *,
    seed: int,
    falling: frozenset[int] = frozenset(),
) -> Any:
    """Boosted trees of `shape`; the same for the same data and seed.

    The answer never rises with a column of `falling`.
    """
    import xgboost

    settings = {key: value for key, value in shape.items() if key != "rounds"}
    return xgboost.train(
        settings
        | {
            "tree_method": "hist",
            "subsample": 0.7,
            "colsample_bytree": 0.7,
            "reg_lambda": 3.0,
            "monotone_constraints": tuple(
                -int(column in falling) for column in range(matrix.shape[1])
            ),
            "seed": seed,
            "nthread": 1,
            "verbosity": 0,
        },
        xgboost.DMatrix(matrix, target, weight=weight),
        int(shape["rounds"]),
    )


def falling_columns(build: str, figures: Sequence[str]) -> frozenset[int]:
    """Columns in which a build's answers may not rise."""
    names = FALLING.get(build, ())
    return frozenset(column for column, name in enumerate(figures) if name in names)


def answers(booster: Any, matrix: np.ndarray) -> Floats:
    """What the ensemble says of each row of `matrix`."""
    return np.asarray(booster.inplace_predict(matrix), np.float64)

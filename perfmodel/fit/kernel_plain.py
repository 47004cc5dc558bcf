"""The plain method that fits are compared with: trees on log(measured / roofline) from dims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder

from perfmodel.fit.estimators import GENERAL_TREES, KNOWN_TREES, boosted
from perfmodel.fit.kernel_samples import Samples
from perfmodel.kernels.learned.devices import COLUMNS
from perfmodel.ops.spec import Floats

if TYPE_CHECKING:
    import pandas as pd

_DIMS = ("b", "m", "n", "k", "rows", "cols", "batch", "in_channels", "out_channels", "kernel_size")
_MORE_DIMS = ("input_size", "stride", "s", "heads", "kv_heads", "head_dim")
_KINDS = ("op", "dtype")
_LEAST_US = 1e-3


def plain_us(fitted_to: Samples, asked: Samples, seed: int) -> Floats:
    """Microseconds of the rows of `asked`, by trees fitted to all of `fitted_to`."""
    trees = _trees(KNOWN_TREES, seed).fit(_table(fitted_to), _target(fitted_to))
    return np.asarray(_roofline_us(asked) * np.exp(trees.predict(_table(asked))))


def plain_left_out_us(data: Samples, seed: int) -> Floats:
    """Microseconds of each device's rows, by trees fitted to those of the others."""
    trees = _trees(GENERAL_TREES, seed)
    found = cross_val_predict(
        trees, _table(data), _target(data), groups=data.devices, cv=LeaveOneGroupOut()
    )
    return np.asarray(_roofline_us(data) * np.exp(found))


def _trees(shape: dict[str, float], seed: int) -> Any:
    columns = make_column_transformer(
        (FunctionTransformer(np.log1p), [*_DIMS, *_MORE_DIMS]),
        (OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), [*_KINDS]),
        remainder="passthrough",
    )
    names = (*_DIMS, *_MORE_DIMS, *_KINDS, *COLUMNS)
    return make_pipeline(columns, boosted(shape, names, seed=seed))


def _table(data: Samples) -> pd.DataFrame:
    """Dims (0 where an op has none such), kinds and the device's figures."""
    import pandas as pd

    rows = data.frame.reset_index(drop=True)
    dims = rows.reindex(columns=[*_DIMS, *_MORE_DIMS]).astype("float64").fillna(0.0)
    devices = data.with_devices(COLUMNS)[:, -len(COLUMNS) :]
    return dims.join(rows[[*_KINDS]]).join(pd.DataFrame(devices, columns=[*COLUMNS]))


def _target(data: Samples) -> Floats:
    measured = data.frame["duration_us"].to_numpy(np.float64)
    return np.asarray(np.log(measured / _roofline_us(data)))


def _roofline_us(data: Samples) -> Floats:
    return np.maximum(data.bound_us, _LEAST_US)

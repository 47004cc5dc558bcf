"""What a fit says of itself: errors on devices left out, beside plain trees and the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder

from perfmodel.arrays import Floats
from perfmodel.calibrate.estimators import boosted
from perfmodel.calibrate.kernel_data import (
    KernelErrors,
    devices_of,
    errors_of,
    joined,
    mape_pct,
    read_table,
)
from perfmodel.calibrate.kernels import Fitted, sliced
from perfmodel.cost.durations import durations_of
from perfmodel.cost.learned.devices import COLUMNS, describe
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.progress import Begin, begun, silent

_DIMS = ("b", "m", "n", "k", "rows", "cols", "batch", "in_channels", "out_channels", "kernel_size")
_MORE_DIMS = ("input_size", "stride", "s", "heads", "kv_heads", "head_dim")
_KINDS = ("op", "dtype", "framework")
_PLAIN = {"max_depth": 5, "learning_rate": 0.08, "min_child_weight": 20, "n_estimators": 150}


@dataclass(frozen=True)
class Compared:
    """Errors on rows that the fit has not seen, beside two simpler methods' MAPE."""

    errors: KernelErrors
    roofline_pct: float
    plain_pct: float
    """Boosted trees on log(measured / roofline) from dims and the device's features."""


def plain_trees(seed: int) -> Any:
    """Boosted trees over the columns of `plain_columns`, of log(measured / roofline)."""
    columns = make_column_transformer(
        (FunctionTransformer(np.log1p), [*_DIMS, *_MORE_DIMS]),
        (OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), [*_KINDS]),
        remainder="passthrough",
    )
    names = (*_DIMS, *_MORE_DIMS, *_KINDS, *COLUMNS)
    return make_pipeline(columns, boosted(_PLAIN, names, seed=seed))


def plain_columns(rows: pd.DataFrame) -> pd.DataFrame:
    """Dims (0 where an op has none such), kinds (none: empty) and the device's features."""
    rows = rows.reset_index(drop=True)
    dims = rows.reindex(columns=[*_DIMS, *_MORE_DIMS]).astype("float64").fillna(0.0)
    kinds = rows.reindex(columns=[*_KINDS]).astype(object).fillna("").astype(str)
    known = {name: describe(each) for name, each in devices_of(rows["device"]).items()}
    return dims.join(kinds).join(pd.DataFrame([known[name] for name in rows["device"]]))


def left_out_errors(fitted: Fitted, *, seed: int = 0, begin: Begin = silent) -> list[Compared]:
    """Errors per op, device and dtype; floors are those of the other devices. Of families that one
    chip alone was measured on, nothing."""
    compared = []
    for part in begun(fitted.parts, begin, lambda part: f"errors of {part.part.fitted.name}"):
        rows = part.sample[part.sample["predicted_us"].notna()]
        if rows["chip"].nunique() > 1:
            found = cross_val_predict(
                *(plain_trees(seed), plain_columns(rows), _log_of_roofline(rows)),
                groups=rows["chip"],
                cv=LeaveOneGroupOut(),
            )
            compared += _compared(rows, rows["bound_us"] * np.exp(found))
    return compared


def holdout_errors(
    fitted: Fitted, paths: Sequence[Path], *, seed: int = 0, begin: Begin = silent
) -> list[Compared]:
    """Errors per op, device and dtype on the rows of `paths` that a fitted part answers for."""
    frame, compared = joined([read_table(Path(path)) for path in paths]), []
    for part in begun(fitted.parts, begin, lambda part: f"errors of {part.part.fitted.name}"):
        rows = dict(sliced(part.family, frame))[part.part.fitted.name]
        kinds = zip(rows["op"], rows["dtype"], strict=True)
        rows = rows[[part.part.answers_for(*kind) for kind in kinds]]
        if len(rows):
            trees = plain_trees(seed).fit(plain_columns(part.sample), _log_of_roofline(part.sample))
            rows = _predicted(rows, fitted)
            found = trees.predict(plain_columns(rows))
            compared += _compared(rows, rows["bound_us"] * np.exp(found))
    return compared


def _log_of_roofline(rows: pd.DataFrame) -> Floats:
    return np.asarray(np.log(rows["duration_us"] / rows["bound_us"]))


def _predicted(frame: pd.DataFrame, fitted: Fitted) -> pd.DataFrame:
    """`frame` with `predicted_us low_us high_us bound_us`."""
    found = []
    for name, device in devices_of(frame["device"]).items():
        own = frame[frame["device"] == name]
        rows = Rows.from_frame(own)
        answer = durations_of(rows, device, fitted.models)
        family = OPS[rows.op[0]].family
        bound_us = fitted.models[family].heuristic.analyse(rows, device).bound_us
        columns = {"predicted_us": answer.duration_us, "low_us": answer.low_us}
        found.append(own.assign(**columns, high_us=answer.high_us, bound_us=bound_us))
    return pd.concat(found)


def _compared(rows: pd.DataFrame, plain_us: pd.Series) -> list[Compared]:
    compared, columns = [], ["duration_us", "predicted_us", "low_us", "high_us", "bound_us"]
    for (device, op, dtype), own in rows.assign(plain_us=plain_us).groupby(
        ["device", "op", "dtype"]
    ):
        measured, *answer, bound_us, plain = own[[*columns, "plain_us"]].to_numpy(np.float64).T
        errors = errors_of((op, device, dtype), measured, *answer)
        simpler = (mape_pct(measured, us) for us in (bound_us, plain))
        compared.append(Compared(errors, *simpler))
    return compared

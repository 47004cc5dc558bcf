"""Fitting all kernel families that measurement tables hold, and the errors of a fit."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sklearn
import xgboost
from sklearn.compose import make_column_transformer
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder

from perfmodel.base.arrays import Floats
from perfmodel.base.progress import Begin, begun, silent
from perfmodel.cost.durations import durations_of
from perfmodel.cost.learned.devices import COLUMNS, describe
from perfmodel.cost.learned.features import BUILD_OF_FAMILY, BY_ROW
from perfmodel.cost.learned.model import Learned
from perfmodel.errors import ModelError, PerfmodelError
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.validate.calibrate.estimators import boosted, users_regressor
from perfmodel.validate.calibrate.kernel_data import (
    KernelErrors,
    Table,
    devices_of,
    error_figures,
    errors_of,
    family_rows,
    host_floors,
    joined,
    read_table,
    some_unnamed,
    thinned,
    without_excluded,
)
from perfmodel.validate.calibrate.kernel_part import FittedPart, fit_part

ROWS_PER_GROUP = 6_000
MIN_ROWS = 200
_HALF = ("fp16", "bf16", "tf32")
OWN_OPS_ONLY = frozenset({"vector"})
"""Families whose ops do not inform each other: unseen ones keep the heuristic."""


@dataclass(frozen=True)
class Fitted:
    """Models by family, their provenance, and what `left_out_errors` need."""

    models: dict[str, Learned]
    about: dict[str, Any]
    parts: tuple[FittedPart, ...]


def fit_kernels(
    paths: Sequence[Path],
    *,
    seed: int = 0,
    rows_per_group: int = ROWS_PER_GROUP,
    estimator: str | None = None,
    begin: Begin = silent,
) -> Fitted:
    """Fit every learned family that the tables at `paths` hold.

    `rows_per_group` is the most rows used per device, op and dtype; `estimator` names a regressor
    (`MODULE:CLASS`) in place of boosted trees; `begin` gets what starts, in rows. Raises
    `UsageError` for an estimator that is none, `ModelError` for tables that cannot be used and
    `HardwareError` for unknown devices.
    """
    regressor = None if estimator is None else users_regressor(estimator, seed)
    begin("reading", 0, 0)
    tables = without_excluded([read_table(Path(path)) for path in paths])
    frame = joined(tables)
    known = devices_of(frame["device"])
    frame = frame[frame["device"].map({name: each.target != "cpu" for name, each in known.items()})]
    slices = [(family, *each) for family in BUILD_OF_FAMILY for each in sliced(family, frame)]
    hosts = host_floors(frame)
    parts, done, total = [], 0, sum(len(rows) for *_, rows in slices)
    for family, name, rows in slices:
        begin(f"{name}, {len(rows):,} rows", done, total)
        done += len(rows)
        if len(rows) >= MIN_ROWS:
            few = some_unnamed(thinned(rows, rows_per_group, seed), seed)
            is_of_ops = family in OWN_OPS_ONLY
            with _blamed_on(estimator, name):
                parts.append(
                    fit_part(
                        family,
                        name,
                        few,
                        known,
                        is_of_ops=is_of_ops,
                        seed=seed,
                        regressor=regressor,
                        hosts=hosts,
                    )
                )
    if not parts:
        raise ModelError(
            f"{', '.join(map(str, paths))}: no family has {MIN_ROWS} rows of GPU kernels; "
            f"families that can be fitted: {', '.join(BUILD_OF_FAMILY)}"
        )
    ops = {op for *_, rows in slices for op in set(rows["op"])}
    ignored = frame[~frame["op"].isin(ops | {"mm"})]["op"].value_counts().to_dict()
    about = _about(tables, parts, ignored, seed) | {"estimator": estimator}
    return Fitted(models_of(parts), about, tuple(parts))


def models_of(parts: Sequence[FittedPart]) -> dict[str, Learned]:
    """The fitted `parts` as kernel models by family."""
    families = dict.fromkeys(each.family for each in parts)
    return {
        family: Learned(
            f"gpu/{family}/learned",
            next(each.part.heuristic for each in parts if each.family == family),
            tuple(each.part for each in parts if each.family == family),
        )
        for family in families
    }


def sliced(family: str, frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """(name, rows) of every part of a family: kernels of one part are written alike, products by
    width, vectors by rows or by elements."""
    rows = family_rows(frame, family)
    is_half, is_single = rows["dtype"].isin(_HALF), rows["dtype"] == "fp32"
    if family == "matmul":
        kinds = {"fp32": is_single, "half": is_half, "quantised": ~(is_half | is_single)}
    elif family == "vector":
        by_row = rows["op"].isin(BY_ROW)
        kinds = {"half": is_half, "rows": ~is_half & by_row, "flat": ~is_half & ~by_row}
    else:
        return [(family, rows)]
    return [(f"{family}_{name}", rows[own]) for name, own in kinds.items()]


@contextmanager
def _blamed_on(estimator: str | None, part: str) -> Iterator[None]:
    """Errors of a user's regressor become one line."""
    try:
        yield
    except PerfmodelError:
        raise
    except Exception as error:
        if estimator is None:
            raise
        what = " ".join(str(error).split())[:200] or type(error).__name__
        raise ModelError(f"--estimator {estimator}: fitting {part}: {what}") from error


def _about(
    tables: Sequence[Table], parts: Sequence[FittedPart], ignored: Mapping[str, int], seed: int
) -> dict[str, Any]:
    from perfmodel import __version__

    libraries = {"scikit-learn": sklearn, "xgboost": xgboost, "numpy": np}
    versions = {name: library.__version__ for name, library in libraries.items()}
    sources = []
    for table in tables:
        source: dict[str, Any] = {
            "file": table.path.name,
            "sha256": table.sha256,
            "rows": len(table.frame),
        }
        for column in ("framework", "library_version", "sweep", "flag", "source", "system"):
            if column in table.frame:
                counts = table.frame[column].astype(str).value_counts().head(12)
                source[column] = {str(name): int(count) for name, count in counts.items()}
        sources.append(source)
    return {
        "date": datetime.date.today().isoformat(),
        "seed": seed,
        "versions": {"perfmodel": __version__} | versions,
        "data": sources,
        "rows_without_a_learned_family": ignored,
        "parts": {
            each.part.fitted.name: {
                "rows": each.rows,
                "devices": sorted(each.part.fitted.devices),
                "dtypes": list(each.part.fitted.dtypes),
                "share": each.part.fitted.share,
                "as_nearest": each.part.fitted.as_nearest,
            }
            for each in parts
        },
    }


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
        simpler = (error_figures(us, measured)["mape_pct"] for us in (bound_us, plain))
        compared.append(Compared(errors, *simpler))
    return compared

"""Fitting all kernel families that measurement tables hold."""

from __future__ import annotations

import datetime
import importlib
import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sklearn
import xgboost
from sklearn.base import clone, is_regressor

from perfmodel.base.answers import Begin, silent
from perfmodel.cost.learned.features import BY_ROW, FEATURES
from perfmodel.cost.learned.model import Learned, Part
from perfmodel.cost.learned.store import models_of
from perfmodel.errors import ModelError, PerfmodelError, UsageError
from perfmodel.ops.spec import QUANTISED, VECTOR
from perfmodel.ops.vocabulary.matmul import MATMUL
from perfmodel.validate.calibrate.kernel_data import (
    Table,
    devices_of,
    family_rows,
    few_of_each,
    joined,
    launch_floors,
    read_table,
    some_unnamed,
    without_excluded,
)
from perfmodel.validate.calibrate.kernel_part import fit_part

ROWS_PER_GROUP = 6_000
MIN_ROWS = 200
"""Of a family, at most so many per device, op and dtype; those of fewer are left out."""
_HALF = ("fp16", "bf16", "tf32")


@dataclass(frozen=True)
class Fitted:
    """Models by family, and their provenance."""

    models: dict[str, Learned]
    about: dict[str, Any]


def fit_kernels(
    paths: Sequence[Path],
    *,
    seed: int = 0,
    rows_per_group: int = ROWS_PER_GROUP,
    estimator: str | None = None,
    begin: Begin = silent,
) -> Fitted:
    """Fit every learned family that the tables at `paths` hold.

    `rows_per_group` is the most rows used per device, op, dtype and framework; `estimator` names a
    regressor (`MODULE:CLASS`) in place of boosted trees; `begin` gets what starts, in rows. Raises
    `UsageError` for an estimator that is none, `ModelError` for tables that cannot be used and
    `HardwareError` for unknown devices.
    """
    regressor = None if estimator is None else users_regressor(estimator, seed)
    begin("reading", 0, 0)
    tables = without_excluded([read_table(Path(path)) for path in paths])
    frame = joined(tables)
    known = devices_of(frame["device"])
    frame = frame[frame["device"].map({name: each.target != "cpu" for name, each in known.items()})]
    slices = {name: rows for family in FEATURES for name, rows in sliced(family, frame).items()}
    floors = launch_floors(pd.concat(slices.values()))
    parts, done, total = [], 0, sum(map(len, slices.values()))
    for name, rows in slices.items():
        begin(f"{name}, {len(rows):,} rows", done, total)
        done += len(rows)
        if len(rows) < MIN_ROWS:
            continue
        few = few_of_each(rows, np.arange(len(rows)), rows_per_group, seed)
        used = some_unnamed(rows.iloc[few], seed)
        try:
            # Vectors do not inform each other: unseen ones keep the heuristic.
            is_of_ops = name.startswith(VECTOR)
            fitted = fit_part(
                name, used, known, floors, is_of_ops=is_of_ops, seed=seed, regressor=regressor
            )
        except PerfmodelError:
            raise
        except Exception as error:  # the user's code may raise anything
            if estimator is None:
                raise
            what = " ".join(str(error).split())[:200] or type(error).__name__
            raise ModelError(f"--estimator {estimator}: fitting {name}: {what}") from error
        parts.append((fitted, len(used)))
    if not parts:
        raise ModelError(
            f"{', '.join(map(str, paths))}: no family has {MIN_ROWS} rows of GPU kernels; "
            f"families that can be fitted: {', '.join(FEATURES)}"
        )
    ops = {op for rows in slices.values() for op in set(rows["op"])}
    ignored = frame[~frame["op"].isin(ops | {"mm"})]["op"].value_counts().to_dict()
    about = _about(tables, parts, ignored, seed) | {"estimator": estimator}
    return Fitted(models_of([(part.fitted, part.trees) for part, _ in parts]), about)


def sliced(family: str, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of every part of a family by its name: kernels of one part are written alike,
    products by width, vectors by rows or by elements."""
    rows = family_rows(frame, family)
    is_half, is_single = rows["dtype"].isin(_HALF), rows["dtype"] == "fp32"
    kinds: dict[str, Any] = {}
    if family == MATMUL:
        kinds = {"fp32": is_single, "half": is_half, "quantised": ~(is_half | is_single)}
    elif family == VECTOR:
        by_row, is_rounded = rows["op"].isin(BY_ROW), rows["dtype"].isin(QUANTISED)
        is_wide = ~(is_half | is_rounded)
        kinds = {
            "half": is_half,
            "quantised": is_rounded,
            "rows": is_wide & by_row,
            "flat": is_wide & ~by_row,
        }
    return {f"{family}_{name}": rows[own] for name, own in kinds.items()} or {family: rows}


def users_regressor(name: str, seed: int) -> Any:
    """The regressor that `MODULE:CLASS` names, made without arguments; its random states `seed`.

    A function that returns a regressor (a pipeline) will do as well. The working directory is
    searched, too. Raises `UsageError`.
    """
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise UsageError(f"--estimator {name}: expected MODULE:CLASS")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        regressor = getattr(importlib.import_module(module), attribute)()
        if not (hasattr(regressor, "get_params") and is_regressor(regressor)):
            raise TypeError("is not a scikit-learn regressor (RegressorMixin, fit and predict)")
        states = [each for each in regressor.get_params() if each.endswith("random_state")]
        regressor = clone(regressor).set_params(**dict.fromkeys(states, seed))
        pickle.dumps(regressor)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        what = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"--estimator {name}: {what[:200]}") from None
    return regressor


def _about(
    tables: Sequence[Table],
    parts: Sequence[tuple[Part, int]],
    ignored: Mapping[str, int],
    seed: int,
) -> dict[str, Any]:
    from perfmodel import __version__

    libraries = {"scikit-learn": sklearn, "xgboost": xgboost, "numpy": np}
    versions = {name: library.__version__ for name, library in libraries.items()}
    sources = [
        {"file": table.path.name, "sha256": table.sha256, "rows": len(table.frame)}
        for table in tables
    ]
    of_parts = {
        part.fitted.name: {
            "rows": rows,
            "devices": sorted(part.fitted.devices),
            "dtypes": list(part.fitted.dtypes),
            "share": part.fitted.share,
        }
        for part, rows in parts
    }
    return {
        "date": datetime.date.today().isoformat(),
        "seed": seed,
        "versions": {"perfmodel": __version__} | versions,
        "data": sources,
        "rows_without_a_learned_family": ignored,
        "parts": of_parts,
    }

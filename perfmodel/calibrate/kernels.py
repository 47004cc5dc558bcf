"""Fitting all kernel families that measurement tables hold."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import sklearn
import xgboost

from perfmodel.calibrate.estimators import users_regressor
from perfmodel.calibrate.kernel_data import (
    Table,
    devices_of,
    family_rows,
    joined,
    provenance,
    read_table,
    some_unnamed,
    thinned,
    without_excluded,
)
from perfmodel.calibrate.kernel_part import FittedPart, fit_part
from perfmodel.calibrate.launch_floors import host_floors
from perfmodel.cost.learned.features import BUILD_OF_FAMILY, BY_ROW
from perfmodel.cost.learned.model import Learned
from perfmodel.errors import ModelError, PerfmodelError
from perfmodel.progress import Begin, silent

if TYPE_CHECKING:
    import pandas as pd


ROWS_PER_GROUP = 6_000
MIN_ROWS = 200
_HALF = ("fp16", "bf16", "tf32")
OWN_OPS_ONLY = frozenset({"vector"})
"""Families whose ops do not inform each other: unseen ones keep the heuristic."""


@dataclass(frozen=True)
class Fitted:
    """Models by family, their provenance, and what `kernel_report` needs."""

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

    libraries = {"scikit-learn": sklearn, "xgboost": xgboost, "numpy": numpy}
    versions = {name: library.__version__ for name, library in libraries.items()}
    return {
        "date": datetime.date.today().isoformat(),
        "seed": seed,
        "versions": {"perfmodel": __version__} | versions,
        "data": provenance(tables),
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

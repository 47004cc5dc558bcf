"""Fitting all kernel families that measurement tables hold."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.calibrate.estimators import Bounded, users_regressor
from perfmodel.calibrate.kernel_data import (
    Table,
    devices_of,
    family_rows,
    joined,
    provenance,
    read_table,
    some_unnamed,
    thinned,
)
from perfmodel.calibrate.kernel_floors import FloorKey, above_launch_floors, fitted_floors
from perfmodel.calibrate.kernel_part import FittedPart, fit_part
from perfmodel.calibrate.kernel_samples import observed_tiles, samples
from perfmodel.cost.contract import KERNELS
from perfmodel.cost.gpu.heuristic import Floor, Heuristic
from perfmodel.cost.learned.devices import describe
from perfmodel.cost.learned.features import BUILD_OF_FAMILY, BY_ROW
from perfmodel.cost.learned.floors import KnownFloor
from perfmodel.cost.learned.model import Learned
from perfmodel.cost.learned.part import Part
from perfmodel.errors import ModelError, PerfmodelError
from perfmodel.hardware import Device
from perfmodel.progress import Begin, silent

if TYPE_CHECKING:
    import pandas as pd


ROWS_PER_GROUP = 18_000
MIN_ROWS = 200


@dataclass(frozen=True)
class Slice:
    """Part of a family with kernels of its own: a name, and dtypes or ops (none: the rest)."""

    name: str
    dtypes: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()


_SLICES = {
    "matmul": (
        Slice("fp32", dtypes=("fp32",)),
        Slice("half", dtypes=("fp16", "bf16", "tf32")),
        Slice("quantised"),
    ),
    "vector": (
        Slice("half", dtypes=("fp16", "bf16")),
        Slice("rows", ops=tuple(sorted(BY_ROW))),
        Slice("flat"),
    ),
}
_OWN_OPS_ONLY = frozenset({"vector"})
"""Families whose ops do not inform each other: unseen ones keep the heuristic."""


@dataclass(frozen=True)
class Fitted:
    """Models by family, their provenance, and what `report` needs."""

    models: dict[str, Learned]
    about: dict[str, Any]
    parts: tuple[FittedPart, ...]
    floors: dict[FloorKey, Floor]


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
    tables = [read_table(Path(path)) for path in paths]
    frame = joined(tables)
    known = devices_of(frame["device"])
    frame = frame[frame["device"].map({name: each.target != "cpu" for name, each in known.items()})]
    floors = fitted_floors(frame)
    models, parts, ignored = {}, [], _ignored(frame)
    done, total = 0, len(frame) - sum(ignored.values())
    for family in BUILD_OF_FAMILY:
        rows = family_rows(frame, family)
        own = []
        for name, part_rows in sliced(family, rows):
            begin(f"{name}, {len(part_rows):,} rows", done, total)
            done += len(part_rows)
            if len(part_rows) < MIN_ROWS:
                continue
            with _blamed_on(estimator, name):
                fitted = fit_rows(
                    (family, name), part_rows, known, floors, rows_per_group, seed, regressor
                )
            parts.append(fitted)
            own.append(fitted.part)
        if own:
            models[family] = model_of_parts(
                family, own, floors_by_key(set(rows["op"]), floors, known)
            )
    if not models:
        raise ModelError(
            f"{', '.join(map(str, paths))}: no family has {MIN_ROWS} rows of GPU kernels; "
            f"families that can be fitted: {', '.join(BUILD_OF_FAMILY)}"
        )
    about = _about(tables, parts, ignored, seed) | {"estimator": estimator}
    return Fitted(models, about, tuple(parts), floors)


def fit_rows(
    what: tuple[str, str],
    rows: pd.DataFrame,
    known: Mapping[str, Device],
    floors: dict[FloorKey, Floor],
    rows_per_group: int,
    seed: int,
    regressor: Bounded | None = None,
) -> FittedPart:
    """The part `what` (family, name) fitted to at most `rows_per_group` of its `rows` each."""
    family, name = what
    build = BUILD_OF_FAMILY[family]
    devices = {each: known[each] for each in sorted(set(rows["device"]))}
    tiles = observed_tiles(rows, devices, floors) if family == "matmul" else {}
    clear = above_launch_floors(rows, floors)
    if clear.empty:
        raise ModelError(f"{name}: no row takes longer than its launch: no kernel can be told")
    few = some_unnamed(thinned(clear, rows_per_group, seed), seed)
    data = samples(few, build, devices, floors, tiles)
    ops = tuple(sorted(set(rows["op"]))) if family in _OWN_OPS_ONLY else ()
    return fit_part(family, name, build, ops, data, tiles, seed=seed, regressor=regressor)


def model_of_parts(
    family: str, parts: Sequence[Part], floors: Mapping[str, tuple[KnownFloor, ...]]
) -> Learned:
    """The fitted `parts` of one family as a kernel model."""
    heuristic = KERNELS[f"gpu/{family}/heuristic"]
    assert isinstance(heuristic, Heuristic)
    return Learned(f"gpu/{family}/learned", heuristic, tuple(parts), floors)


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


def sliced(family: str, rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """(name, rows) of every part of a family."""
    if family not in _SLICES:
        return [(family, rows)]
    slices, left = [], rows
    for each in _SLICES[family]:
        own = left["dtype"].isin(each.dtypes) | left["op"].isin(each.ops)
        if not each.dtypes and not each.ops:
            own = ~own
        slices.append((f"{family}_{each.name}", left[own]))
        left = left[~own]
    return slices


def _ignored(frame: pd.DataFrame) -> dict[str, int]:
    """Rows of ops that no learned family answers for, by op."""
    learned = set()
    for family in BUILD_OF_FAMILY:
        learned |= set(family_rows(frame, family)["op"])
    left = frame[~frame["op"].isin(learned)]["op"].value_counts()
    return {str(op): int(count) for op, count in left.items()}


def floors_by_key(
    ops: set[str], floors: dict[FloorKey, Floor], known: Mapping[str, Device]
) -> dict[str, tuple[KnownFloor, ...]]:
    """By `timing/op/dtype`, the floors of every device that has them."""
    by_key: dict[str, tuple[KnownFloor, ...]] = {}
    for (device, timing, op, dtype), floor in floors.items():
        if op in ops:
            key = f"{timing}/{op}/{dtype}"
            by_key[key] = (*by_key.get(key, ()), KnownFloor(describe(known[device]), floor))
    return by_key


def _about(
    tables: Sequence[Table], parts: Sequence[FittedPart], ignored: dict[str, int], seed: int
) -> dict[str, Any]:
    import numpy
    import sklearn
    import xgboost

    from perfmodel import __version__

    return {
        "date": datetime.date.today().isoformat(),
        "seed": seed,
        "versions": {
            "perfmodel": __version__,
            "scikit-learn": sklearn.__version__,
            "xgboost": xgboost.__version__,
            "numpy": numpy.__version__,
        },
        "data": provenance(tables),
        "rows_without_a_learned_family": ignored,
        "parts": {
            each.part.name: {
                "rows": len(each.data.target),
                "devices": sorted(each.data.known),
                "ops": sorted(set(each.data.frame["op"])),
                "dtypes": list(each.part.dtypes),
                "share": each.part.share,
                "as_nearest": each.part.as_nearest,
                "set_aside": list(each.aside),
            }
            for each in parts
        },
    }

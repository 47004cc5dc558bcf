"""Fits the model of collectives that the package holds to published curves.

`python -m benchmarks.collective_model FILE CURVES POINTS ...` reads pairs of tables (a description
of each curve, and its points), fits constants, then trees on what they leave, and writes the model.
Curves that are left out are left out by name. Errors and intervals come from repositories that were
left out.
"""

from __future__ import annotations

import json
import sys
import tomllib
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import least_squares
from sklearn.base import clone
from sklearn.linear_model import QuantileRegressor
from xgboost import XGBRegressor

from benchmarks.published.collectives import OPS, Wires, read_curves, read_points, wires_of
from perfmodel.base.arrays import Floats
from perfmodel.base.files import write_text
from perfmodel.cost.collectives.algorithms import Costs, costs_of
from perfmodel.cost.collectives.calls import Calls
from perfmodel.cost.collectives.learned import (
    COLUMNS,
    LATENCY_FRACS,
    NAME,
    ONE_NODE,
    SCHEMA,
    SEVERAL,
    Z90,
    Learned,
    features_of,
    latency_frac,
)
from perfmodel.cost.learned.store import pack
from perfmodel.errors import ModelError
from perfmodel.validate.calibrate.kernel_part import of_booster

MIN_BYTES = 512
SCORED_BYTES = 65_536
"""Errors count from this size on."""
MAX_ALIKE = 2
"""Curves of one repository on equal wires that are fitted to; more would outweigh the rest."""
_FLAWS = ("coarse_timer", "reported_slow", "typed_from_excerpt", "host_differs", "uncertain")
_FITTED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
_SMALL_WEIGHT = 0.3
_FASTER_THAN_WIRES = 0.9


class Measured(NamedTuple):
    """Points of many curves, one per row of `points`: `curve_id`, `repo`, `time_us`, `alike` (how
    many curves before this one are of its repository and on its wires) and `weight`."""

    calls: Calls
    points: pd.DataFrame


def read_measured(pairs: Sequence[tuple[str, str]]) -> tuple[Measured, dict[str, str]]:
    """(points of all tables, curve left out to the reason); raises `ModelError` for bad tables.

    `pairs` are a table of curves and a table of points each.
    """
    left_out: dict[str, str] = {}
    calls: list[Calls] = []
    frames: list[pd.DataFrame] = []
    alike: Counter[tuple[str, str, Wires]] = Counter()
    for curves_path, points_path in pairs:
        rows = {row["curve_id"]: row for row in read_curves(curves_path).to_dict("records")}
        table = read_points(points_path)[["curve_id", "size_bytes", "time_us"]]
        strange = next((each for each in table["curve_id"].unique() if each not in rows), None)
        if strange is not None:
            raise ModelError(f"{points_path}: {curves_path} does not describe {strange[:60]!r}")
        measured = dict(list(table[table["size_bytes"] >= MIN_BYTES].groupby("curve_id")))
        for curve, row in rows.items():
            if flaw := _flaw(row):
                left_out[curve] = flaw
                continue
            try:
                wires = wires_of(row)
            except ModelError as error:
                raise ModelError(f"{curves_path}: {error}") from None
            repo = str(row.get("repo") or curves_path)
            about = {"repo": repo, "gpu": str(row.get("gpu")), "is_remote": wires.nodes > 1}
            if curve not in measured:
                continue
            points = measured[curve]
            sent = wires.calls(points["size_bytes"].to_numpy(np.float64))
            rate = np.where(sent.is_remote, sent.rank_nic_gb_per_s, sent.link_gb_per_s) * 1e3
            is_fast = points["time_us"] < _FASTER_THAN_WIRES * sent.size_bytes / rate
            if wires.op == "send_recv" and is_fast.any():
                left_out[curve] = "faster than its wires"
            like = (repo, str(row.get("framework")), wires)
            frames.append(points.assign(**about, alike=alike[like]))
            calls.append(sent)
            alike[like] += 1
    joined = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    if not len(joined):
        raise ModelError(f"{pairs[0][1]}: no points of usable curves")
    # Each curve counts alike within its repository, GPU and reach, and these by their root.
    per_curve = joined.groupby("curve_id")["time_us"].transform("size")
    group = joined.groupby(["repo", "gpu", "is_remote"])["curve_id"]
    small = np.where(joined["size_bytes"] < SCORED_BYTES, _SMALL_WEIGHT, 1.0)
    weight = small / (per_curve * np.sqrt(group.transform("nunique")))
    joined["weight"] = weight / weight.mean()
    kept = np.flatnonzero(~joined["curve_id"].isin(list(left_out))).astype(np.int64)
    return Measured(_joined(calls).take(kept), joined.iloc[kept]), left_out


def _joined(parts: Sequence[Calls]) -> Calls:
    """All calls of `parts`, one after another."""
    names = (each.name for each in fields(Calls))
    return Calls(**{x: np.concatenate([getattr(part, x) for part in parts]) for x in names})


def _flaw(row: dict[str, Any]) -> str:
    """Why a curve is left out; empty if it is not."""
    names = ("quality_flags", "network", "variant", "collective")
    flags, network, variant, op = (str(row.get(name) or "") for name in names)
    flaw = next((flaw for flaw in _FLAWS if flaw in flags), "")
    if not flaw and (network in ("unknown", "tcp") or "tcp_fallback" in flags):
        flaw = f"network {network}"
    if not flaw and variant.startswith("custom"):
        flaw = "kernels of a framework"
    return flaw or ("" if OPS.get(op, op) in _FITTED else f"op {op} is not fitted")


PRIOR_WEIGHT = 0.5
"""What a constant costs that is e times its start, in units of the residuals."""
_SCALE = 0.15
"""Errors of log time up to this count by their square, larger ones by their size."""
_REWEIGHTINGS = 15
_REACH = 5.0
"""A constant stays within this factor of its start; shares of a rate stay below 1."""
_STEP = 1e-3


def initial_constants() -> dict[str, float]:
    """Where the fit starts, and what constants stay near that the data say little of."""
    text = Path(__file__).with_name("collective_prior.toml").read_text("utf-8")
    return {
        f"{table}.{name}": float(value)
        for table, entries in tomllib.loads(text).items()
        if isinstance(entries, dict)
        for name, value in entries.items()
    }


MIN_REPOSITORIES = 2
MIN_SD = 0.02
_TREES = XGBRegressor(
    n_estimators=150,
    max_depth=4,
    learning_rate=0.06,
    min_child_weight=3,
    subsample=0.7,
    colsample_bytree=0.6,
    reg_lambda=5,
    objective="reg:pseudohubererror",
    huber_slope=0.3,
    base_score=0.0,
    random_state=0,
    n_jobs=1,
)


def fit_collectives(pairs: Sequence[tuple[str, str]]) -> tuple[Learned, dict[str, Any]]:
    """The model from tables of curves and of points, and what it was fitted to; `ModelError` for
    what cannot be used."""
    measured, left_out = read_measured(pairs)
    calls, points = measured.calls, measured.points
    is_scored = calls.size_bytes >= SCORED_BYTES
    kinds = {ONE_NODE: is_scored & ~calls.is_remote, SEVERAL: is_scored & calls.is_remote}
    for words, chosen in zip(("within a node", "over several nodes"), kinds.values(), strict=True):
        count = points["repo"][chosen].nunique()
        if count < MIN_REPOSITORIES:
            raise ModelError(
                f"{pairs[0][0]}: usable curves {words} of {count} repositories; errors are "
                f"those of repositories left out: expected at least {MIN_REPOSITORIES}"
            )
    y, weights = np.log(points["time_us"].to_numpy(np.float64)), points["weight"].to_numpy()
    weight = np.where(points["alike"] < MAX_ALIKE, weights, 0.0)
    model, log_us = _fitted_model(calls, y, weight), np.empty(len(y))
    repos = points["repo"].to_numpy(np.str_)
    for repo in np.unique(repos).tolist():
        left = np.flatnonzero(repos == repo).astype(np.int64)
        fitted = _fitted_model(calls, y, np.where(repos == repo, 0.0, weight))
        log_us[left] = fitted.log_us(calls.take(left))[0]
    # Standard deviations that give a 90 % interval as wide as the errors' own, by the share of time
    # that is latency.
    waiting, spreads = latency_frac(costs_of(calls, model.constants)), {}
    for kind, chosen in kinds.items():
        ends = np.eye(len(LATENCY_FRACS))
        near = [np.interp(waiting[chosen], LATENCY_FRACS, end) for end in ends]
        line = QuantileRegressor(quantile=0.9, alpha=0.0, fit_intercept=False, solver="highs")
        line.fit(np.stack(near).T, np.abs(y - log_us)[chosen], sample_weight=weights[chosen])
        spreads[kind] = tuple(
            round(max(float(end) / Z90, MIN_SD), 4) for end in line.coef_.tolist()
        )
    by_repo = points.groupby("repo")["curve_id"].agg(rows="size", curves="nunique")
    about = {
        "source": "fitted to public measurements (nccl-tests, rccl-tests and their like)",
        "repositories": by_repo.to_dict("index"),
        "rows": len(points),
        "curves_left_out": len(left_out),
        "date": date.today().isoformat(),
        "intervals": "from repositories that were left out",
    }
    return replace(model, spreads=spreads), about


def _fitted_model(calls: Calls, log_us: Floats, weight: Floats) -> Learned:
    """Constants by least squares, in the sense of a soft absolute error, then trees on the rest;
    rows of weight 0 are left out. Intervals are placeholders until repositories were left out."""
    used = np.flatnonzero(weight).astype(np.int64)
    calls, log_us, weight = calls.take(used), log_us[used], weight[used]
    start = initial_constants()
    origin, reach = np.log(list(start.values())), np.log(_REACH)
    root = np.sqrt(weight / weight.mean())

    def costs(logs: Floats) -> tuple[dict[str, float], Costs]:
        constants = dict(zip(start, np.exp(logs).tolist(), strict=True))
        return constants, costs_of(calls, constants)

    def residuals(logs: Floats) -> Floats:
        error = np.log(costs(logs)[1].total_us) - log_us
        soft = np.sign(error) * _SCALE * np.sqrt(2 * (np.sqrt(1 + (error / _SCALE) ** 2) - 1))
        return np.concatenate([root * soft, (logs - origin) * PRIOR_WEIGHT])

    is_share = np.array([name.endswith("_frac") or ".ll" in name for name in start])
    most = np.where(is_share & (origin < 0), np.minimum(origin + reach, 0.0), origin + reach)
    solution = least_squares(
        residuals, origin, bounds=(origin - reach, most), max_nfev=_REWEIGHTINGS, diff_step=_STEP
    )
    constants, parts = costs(solution.x)
    features = pd.DataFrame(features_of(calls, parts))
    trees = clone(_TREES).fit(features, log_us - np.log(parts.total_us), sample_weight=weight)
    return Learned(
        name=NAME,
        constants=constants,
        trees=replace(of_booster(trees.get_booster())[0], start=0.0),
        spreads=dict.fromkeys((ONE_NODE, SEVERAL), (0.2,) * len(LATENCY_FRACS)),
        fitted={
            kind: tuple(np.unique(calls.op[calls.is_remote == is_remote]).tolist())
            for kind, is_remote in ((ONE_NODE, False), (SEVERAL, True))
        },
    )


def model_to_dict(model: Learned, about: dict[str, Any]) -> dict[str, Any]:
    """The model's file."""
    return {
        "schema": SCHEMA,
        "about": about,
        "constants": {name: float(f"{v:.5g}") for name, v in model.constants.items()},
        "spreads": {name: list(each) for name, each in model.spreads.items()},
        "fitted": {name: list(ops) for name, ops in model.fitted.items()},
        "trees": b64encode(pack(model.trees, COLUMNS)).decode(),
    }


if __name__ == "__main__":
    target, *tables = sys.argv[1:]
    fitted, fitted_to = fit_collectives(list(zip(tables[::2], tables[1::2], strict=True)))
    content = json.dumps(model_to_dict(fitted, fitted_to), allow_nan=False)
    write_text(Path(target), content + "\n")
    print(f"{target}: {fitted_to['rows']} points; spreads {dict(fitted.spreads)}")

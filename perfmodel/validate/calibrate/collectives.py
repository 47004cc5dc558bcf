"""The collective model from published curves: constants, trees on what they leave.

Curves that are left out are left out by name. Errors and intervals come from repositories that were
left out.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.linear_model import QuantileRegressor
from xgboost import XGBRegressor

from perfmodel.base.arrays import Floats, Mask
from perfmodel.base.progress import Begin, begun, silent
from perfmodel.cost.collectives.calls import CUSTOM, NCCL, PCIE, Calls, Texts
from perfmodel.cost.collectives.curves import (
    OPS,
    calls_of_wires,
    read_curves,
    read_points,
    wires_of,
)
from perfmodel.cost.collectives.heuristic import Constants, costs_of
from perfmodel.cost.collectives.learned import (
    KERNELS,
    LATENCY_FRACS,
    NAME,
    ONE_NODE,
    SEVERAL,
    Z90,
    Learned,
    features_of,
    latency_frac,
    take_calls,
)
from perfmodel.cost.learned.forest import of_booster
from perfmodel.errors import ModelError
from perfmodel.hardware.generations import GENERATIONS, nearest_known

MIN_BYTES = 512
SCORED_BYTES = 65_536
"""Errors count from this size on."""
MAX_ALIKE = 2
"""Curves of one repository on equal wires that are fitted to; more would outweigh the rest."""
_FLAWS = ("coarse_timer", "reported_slow", "typed_from_excerpt", "host_differs", "uncertain")
_FITTED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
_SMALL_WEIGHT = 0.3
_FASTER_THAN_WIRES = 0.9


@dataclass(frozen=True)
class Measured:
    """Points of many curves, one per row of `points`: `curve_id`, `repo`, `time_us`, `alike` (how
    many curves before this one are of its repository and on its wires) and `weight`."""

    calls: Calls
    points: pd.DataFrame

    def __len__(self) -> int:
        return len(self.points)

    def column(self, name: str) -> Any:
        """A column of `points`, `[n]`."""
        return self.points[name].to_numpy()

    def where(self, chosen: Mask) -> Measured:
        """The rows that are `chosen`."""
        index = np.flatnonzero(chosen).astype(np.int64)
        return Measured(take_calls(self.calls, index), self.points.iloc[index])


def read_measured(pairs: Sequence[tuple[str, str]]) -> tuple[Measured, dict[str, str]]:
    """(points of all tables, curve left out to the reason); raises `ModelError` for bad tables.

    `pairs` are a table of curves and a table of points each.
    """
    left_out: dict[str, str] = {}
    frames = []
    for curves_path, points_path in pairs:
        curves = read_curves(curves_path).to_dict("records")
        points = read_points(points_path)[["curve_id", "size_bytes", "time_us"]]
        known = {row["curve_id"] for row in curves}
        strange = next((each for each in points["curve_id"].unique() if each not in known), None)
        if strange is not None:
            raise ModelError(f"{points_path}: {curves_path} does not describe {strange[:60]!r}")
        try:
            reasons = {row["curve_id"]: _flaw(row) for row in curves}
            kept = [row for row in curves if not reasons[row["curve_id"]]]
            wires = list(map(wires_of, kept))
        except ModelError as error:
            raise ModelError(f"{curves_path}: {error}") from None
        left_out |= {curve: reason for curve, reason in reasons.items() if reason}
        texts = {name: [str(row.get(name)) for row in kept] for name in ("gpu", "framework")}
        repos = [str(row.get("repo") or curves_path) for row in kept]
        ids = [row["curve_id"] for row in kept]
        about = pd.DataFrame({"curve_id": ids, "repo": repos, **texts, "wires": wires})
        about["alike"] = about.groupby(["repo", "framework", "wires"], sort=False).cumcount()
        frames.append(points.merge(about, on="curve_id"))
    joined = pd.concat(frames, ignore_index=True)
    joined = joined[joined["size_bytes"] >= MIN_BYTES].reset_index(drop=True)
    if not len(joined):
        raise ModelError(f"{pairs[0][1]}: no points of usable curves")
    calls = calls_of_wires(list(joined["wires"]), joined["size_bytes"].to_numpy(np.float64))
    measured = Measured(calls, joined.assign(weight=_weights(joined)))
    rate = np.where(calls.is_remote, calls.rank_nic_gb_per_s, calls.link_gb_per_s) * 1e3
    least_us = calls.size_bytes / rate
    fast = (calls.op == "send_recv") & (joined["time_us"] < _FASTER_THAN_WIRES * least_us)
    impossible = sorted(set(joined["curve_id"][fast]))
    left_out |= dict.fromkeys(impossible, "faster than its wires")
    return measured.where(~joined["curve_id"].isin(impossible).to_numpy()), left_out


def _flaw(row: dict[str, object]) -> str:
    flags = str(row.get("quality_flags") or "")
    for flaw in _FLAWS:
        if flaw in flags:
            return flaw
    network = str(row.get("network"))
    if network in ("unknown", "tcp") or "tcp_fallback" in flags:
        return f"network {network}"
    if str(row.get("variant") or "").startswith(CUSTOM) and wires_of(row).link == PCIE:
        return "a framework's collective without links"
    op = str(row.get("collective"))
    return "" if OPS.get(op, op) in _FITTED else f"op {op} is not fitted"


def _weights(points: pd.DataFrame) -> Floats:
    """Each curve counts alike within its repository, GPU and reach, and these by their root."""
    reach = [(each.nodes > 1, each.variant) for each in points["wires"]]
    per_curve = points.groupby("curve_id")["time_us"].transform("size")
    curves = points.groupby(["repo", "gpu", pd.Series(reach)])["curve_id"].transform("nunique")
    small = np.where(points["size_bytes"] < SCORED_BYTES, _SMALL_WEIGHT, 1.0)
    weight = small / (per_curve * np.sqrt(curves))
    library = np.array([each.variant == NCCL for each in points["wires"]])
    return np.asarray(weight / weight[library if library.any() else ~library].mean(), np.float64)


PRIOR_WEIGHT = 0.5
"""What a constant costs that is e times its start, in units of the residuals."""
_SCALE = 0.15
"""Errors of log time up to this count by their square, larger ones by their size."""
_REWEIGHTINGS = 15
_REACH = 5.0
"""A constant stays within this factor of its start; shares of a rate stay below 1."""
_STEP = 1e-3
FACTORS = ("base_factor", "hop_factor")
"""What a generation that was not measured takes from the others of its maker."""


def initial_constants() -> Constants:
    """Where the fit starts, and what constants stay near that the data say little of."""
    text = files("perfmodel.cost.collectives").joinpath("prior.toml").read_text(encoding="utf-8")
    values = {
        f"{table}.{name}": float(value)
        for table, entries in tomllib.loads(text).items()
        if isinstance(entries, dict)
        for name, value in entries.items()
    }
    return Constants(values, "prior.toml")


def fit_constants(calls: Calls, log_us: Floats, weight: Floats) -> Constants:
    """Constants that fit `log_us` `[n]` best; those of frameworks' kernels behind the library's."""
    prior = initial_constants()
    constants = prior
    for is_custom in (False, True):
        names = [name for name in prior.values if name.startswith(OF_KERNELS) == is_custom]
        index = np.flatnonzero(calls.is_custom == is_custom).astype(np.int64)
        if len(index):
            part = take_calls(calls, index)
            constants = _fitted(constants, names, part, log_us[index], weight[index])
    return fill_unseen_architectures(constants, calls.architecture)


OF_KERNELS = "custom."


def _fitted(
    start: Constants, names: list[str], calls: Calls, log_us: Floats, weight: Floats
) -> Constants:
    """`start` with the constants `names` that fit best, in the sense of a soft absolute error."""
    from scipy.optimize import least_squares

    origin = np.log([start.values[name] for name in names])
    root = np.sqrt(weight / weight.mean())

    def constants(logs: Floats) -> Constants:
        solution = dict(zip(names, np.exp(logs).tolist(), strict=True))
        return Constants({**start.values, **solution}, "fitted")

    def residuals(logs: Floats) -> Floats:
        error = np.log(costs_of(calls, constants(logs)).total_us) - log_us
        soft = np.sign(error) * _SCALE * np.sqrt(2 * (np.sqrt(1 + (error / _SCALE) ** 2) - 1))
        return np.concatenate([root * soft, (logs - origin) * PRIOR_WEIGHT])

    reach = np.log(_REACH)
    is_share = np.array([name.endswith("_frac") or ".ll" in name for name in names])
    most = np.where(is_share & (origin < 0), np.minimum(origin + reach, 0.0), origin + reach)
    solution = least_squares(
        residuals, origin, bounds=(origin - reach, most), max_nfev=_REWEIGHTINGS, diff_step=_STEP
    )
    return constants(solution.x)


def fill_unseen_architectures(constants: Constants, architectures: Texts) -> Constants:
    """Generations that are not among the measured `architectures` with the mean of those that are.

    Means are geometric, over generations of the same maker.
    """
    values = dict(constants.values)
    words = {key.partition(".")[0] for key in values if key.endswith(FACTORS)}
    seen = {nearest_known(each, words) for each in set(architectures.tolist())}
    for maker in {GENERATIONS[word].maker for word in words}:
        words_of_maker = sorted(word for word in words if GENERATIONS[word].maker == maker)
        known = [word for word in words_of_maker if word in seen]
        for name in FACTORS if known else ():
            mean = float(np.exp(np.mean([np.log(values[f"{word}.{name}"]) for word in known])))
            values |= {f"{word}.{name}": mean for word in words_of_maker if word not in known}
    return Constants(values, constants.source)


MOST = 0.7
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


def fit_collectives(pairs: Sequence[tuple[str, str]], begin: Begin = silent) -> Learned:
    """The model from tables of curves and of points; `ModelError` for what cannot be used."""
    measured, left_out = read_measured(pairs)
    _require_several(measured, pairs[0][0])
    begin("all repositories", 0, 0)
    calls, y = measured.calls, np.log(measured.column("time_us").astype(np.float64))
    weight = np.where(measured.column("alike") < MAX_ALIKE, measured.column("weight"), 0.0)
    model, log_us = _fitted_model(calls, y, weight), np.empty(len(y))
    groups = np.where(calls.is_custom, calls.architecture, measured.column("repo").astype(np.str_))
    for group in begun(np.unique(groups).tolist(), begin, lambda group: f"without {group}"):
        left = np.flatnonzero(groups == group).astype(np.int64)
        fitted = _fitted_model(calls, y, np.where(groups == group, 0.0, weight))
        log_us[left] = fitted.log_us(take_calls(calls, left))[0]
    spreads: dict[str, tuple[float, ...]] = {}
    library, is_remote = ~calls.is_custom, calls.is_remote
    waiting = latency_frac(costs_of(calls, model.constants))
    kinds = {ONE_NODE: library & ~is_remote, SEVERAL: library & is_remote, KERNELS: ~library}
    for kind, chosen in kinds.items():
        scored = chosen & (calls.size_bytes >= SCORED_BYTES)
        spreads[kind] = spreads.get(ONE_NODE, ())
        if chosen.any():
            ratio, weights = (y - log_us)[scored], measured.column("weight")[scored]
            spreads[kind] = _spread(ratio, waiting[scored], weights)
    by_repo = measured.points.groupby("repo")["curve_id"].agg(rows="size", curves="nunique")
    about = {
        "source": "fitted to public measurements (nccl-tests, rccl-tests and their like)",
        "repositories": by_repo.to_dict("index"),
        "rows": len(measured),
        "curves_left_out": len(left_out),
        "date": date.today().isoformat(),
        "intervals": "from repositories that were left out",
    }
    return replace(model, spreads=spreads, about=about)


def _require_several(measured: Measured, where: str) -> None:
    """Raise `ModelError` where there is nothing to leave out."""
    scored = measured.calls.size_bytes >= SCORED_BYTES
    for words, is_remote in (("within a node", False), ("over several nodes", True)):
        here = scored & (measured.calls.is_remote == is_remote)
        count = measured.points["repo"][here].nunique()
        if count < MIN_REPOSITORIES:
            raise ModelError(
                f"{where}: usable curves {words} of {count} repositories; errors are "
                f"those of repositories left out: expected at least {MIN_REPOSITORIES}"
            )


def _fitted_model(calls: Calls, log_us: Floats, weight: Floats) -> Learned:
    """Constants by least squares, then trees on the rest of the library's collectives; rows of
    weight 0 are left out. Intervals are placeholders until repositories were left out."""
    used = np.flatnonzero(weight).astype(np.int64)
    calls, log_us, weight = take_calls(calls, used), log_us[used], weight[used]
    constants = fit_constants(calls, log_us, weight)
    costs, own = costs_of(calls, constants), ~calls.is_custom
    features = pd.DataFrame(features_of(calls, costs))
    target = log_us - np.log(costs.total_us)
    trees = clone(_TREES).fit(features[own], target[own], sample_weight=weight[own])
    columns = tuple(features)
    return Learned(
        name=NAME,
        constants=constants,
        columns=columns,
        trees=replace(of_booster(trees.get_booster())[0], start=0.0),
        most=MOST,
        spreads=dict.fromkeys((ONE_NODE, SEVERAL, KERNELS), (0.2,) * len(LATENCY_FRACS)),
        fitted={
            kind: tuple(np.unique(calls.op[own & (calls.is_remote == is_remote)]).tolist())
            for kind, is_remote in ((ONE_NODE, False), (SEVERAL, True))
        },
    )


def _spread(ratio: Floats, waiting: Floats, weight: Floats) -> tuple[float, ...]:
    """Standard deviations that give a 90 % interval as wide as the errors' own, by the share of
    time that is latency."""
    near = np.stack([np.interp(waiting, LATENCY_FRACS, row) for row in np.eye(len(LATENCY_FRACS))])
    line = QuantileRegressor(quantile=0.9, alpha=0.0, fit_intercept=False, solver="highs")
    line.fit(near.T, np.abs(ratio), sample_weight=weight)
    return tuple(round(max(float(end) / Z90, MIN_SD), 4) for end in line.coef_)

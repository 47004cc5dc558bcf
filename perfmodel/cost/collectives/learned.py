"""The heuristic times what trees learned of its error: straight between sizes, never falling.

No rates and no generations: leaving repositories out, trees that saw them did worse on the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats, Ints
from perfmodel.base.files import write_text
from perfmodel.cost.collectives.calls import Calls
from perfmodel.cost.collectives.heuristic import SPECS, Constants, Costs, costs_of, explanations
from perfmodel.cost.collectives.heuristic import shipped as shipped_constants
from perfmodel.cost.contract import Estimate, Explanation
from perfmodel.cost.learned.forest import Forest, forest_from_dict, forest_to_dict, read_document
from perfmodel.errors import ModelError

_OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
_LINKS = ("switch", "mesh")


def features_of(calls: Calls, costs: Costs) -> dict[str, Floats]:
    """Column to values, one per call; logarithms to base 2."""
    total = costs.total_us
    features = {
        "log_size": _log2(calls.size_bytes),
        "log_piece": _log2(calls.size_bytes / calls.ranks),
        "log_ranks": _log2(calls.ranks),
        "log_domains": _log2(calls.domains),
        "log_local": _log2(calls.local),
        "hops_frac": costs.hop_us / total,
        "links_frac": costs.link_us / total,
        "network_frac": costs.net_us / total,
        "filling_frac": costs.fill_us / total,
    }
    features |= {f"is_{op}": (calls.op == op).astype(np.float64) for op in _OPS}
    return features | {f"by_{link}": (calls.link == link).astype(np.float64) for link in _LINKS}


def _log2(values: Floats) -> Floats:
    return np.asarray(np.log2(np.maximum(values, 1e-6)), np.float64)


FIRST, LAST = 3, 40
KNOTS = np.arange(FIRST, LAST + 1, dtype=np.float64)
"""log2 of bytes."""
RATES_GB_PER_S = np.sort(np.outer((150.0, 225.0), 2.0 ** np.arange(-6, 5)).ravel())
"""Of links: two an octave, among them those of NVLink 2 to 5."""
Answer = Callable[[Calls], tuple[Floats, Floats]]
"""From calls to log(microseconds) and their standard deviation."""


def interpolate_sizes(calls: Calls, answer: Answer) -> tuple[Floats, Floats]:
    """What `answer` says of `calls`: straight between knots in both logarithms, never falling.

    Outside of the knots (8 bytes to 1 TB) the nearest one's value holds, plus the slope at the
    upper end.
    """
    first, kind = distinct_calls(calls)
    size = np.log2(np.maximum(calls.size_bytes, 1.0))
    below = np.clip(np.floor(size) - FIRST, 0, len(KNOTS) - 2).astype(np.int64)
    part = np.maximum(size - KNOTS[below], 0.0)
    told = zip(*(getattr(calls, name)[first].tolist() for name in _TOLD), strict=True)
    curves = [_curve(answer, each) for each in told]
    log_us, spread = np.stack(curves, axis=1) if curves else np.zeros((2, 0, len(KNOTS)))
    spread_part = np.minimum(part, 1.0)
    return _between(log_us, kind, below, part), _between(spread, kind, below, spread_part)


def _between(values: Floats, row: Ints, below: Ints, part: Floats) -> Floats:
    low, high = values[row, below], values[row, below + 1]
    return np.asarray(low + (high - low) * part, np.float64)


_TOLD = tuple(each.name for each in fields(Calls) if each.name != "size_bytes")
"""What tells kinds of calls apart."""


@lru_cache(maxsize=1 << 10)
def _curve(answer: Answer, kind: tuple[Any, ...]) -> tuple[Floats, Floats]:
    """What `answer` says of a kind of call at `KNOTS`, never falling: of a model, asked once."""
    columns = {name: np.repeat(value, len(KNOTS)) for name, value in zip(_TOLD, kind, strict=True)}
    log_us, spread = answer(Calls(size_bytes=2.0**KNOTS, **columns))
    return np.maximum.accumulate(log_us), spread


def interpolate_rates(calls: Calls, answer: Answer) -> tuple[Floats, Floats]:
    """What `answer` says of `calls` at `RATES_GB_PER_S`: straight between them in both logarithms,
    never rising with the rate; below the first and above the last, what holds there.
    """
    rate = np.log(np.maximum(calls.link_gb_per_s, 1e-9))
    place = np.interp(rate, np.log(RATES_GB_PER_S), np.arange(len(RATES_GB_PER_S), dtype=float))
    below = np.minimum(place.astype(np.int64), len(RATES_GB_PER_S) - 2)
    part, row = place - below, np.arange(len(calls))
    count = int(below.max(initial=0)) + 2
    each = take_calls(calls, np.repeat(row, count))
    each = replace(each, link_gb_per_s=np.tile(RATES_GB_PER_S[:count], len(calls)))
    log_us, spread = (values.reshape(-1, count) for values in answer(each))
    log_us = np.minimum.accumulate(log_us, axis=1)
    return _between(log_us, row, below, part), _between(spread, row, below, part)


def distinct_calls(calls: Calls) -> tuple[Ints, Ints]:
    """(a row of each kind of call, the kind of each row); kinds differ in all but size."""
    codes = [np.unique(getattr(calls, name), return_inverse=True)[1].reshape(-1) for name in _TOLD]
    _, first, kind = np.unique(np.stack(codes), axis=1, return_index=True, return_inverse=True)
    return first.astype(np.int64), kind.reshape(-1).astype(np.int64)


def take_calls(calls: Calls, index: Ints) -> Calls:
    """The calls at `index`, in that order."""
    return Calls(**{each.name: getattr(calls, each.name)[index] for each in fields(calls)})


Z90 = 1.645
"""Standard deviations to either end of a 90 % interval."""
ONE_NODE, SEVERAL, KERNELS = "one_domain", "several_domains", "custom"


LATENCY_FRACS = np.linspace(0.0, 1.0, 6)
"""Shares of base, hops and messages in a time, where `spreads` have a value: hosts and versions
differ more in these than in what bytes take."""


def latency_frac(costs: Costs) -> Floats:
    """The share of base, hops and messages in the time of each call."""
    return np.asarray((costs.base_us + costs.hop_us) / costs.total_us, np.float64)


@dataclass(frozen=True, eq=False)
class Learned:
    """Fitted to published curves; `spreads` are errors on repositories that were left out.

    Trees correct the library's collectives of which curves were fitted; others, and those by a
    framework's kernels, are the heuristic's.
    """

    name: str
    constants: Constants
    columns: tuple[str, ...]
    trees: Forest
    most: float
    """The largest correction, as a logarithm."""
    spreads: Mapping[str, tuple[float, ...]]
    """Standard deviation of log(measured / predicted) at `LATENCY_FRACS`, by `one_domain`,
    `several_domains` and, of collectives by a framework's kernels, `custom`."""
    fitted: Mapping[str, tuple[str, ...]]
    """By `one_domain` and `several_domains`, the ops that curves were fitted of."""
    about: Mapping[str, Any] = field(default_factory=dict)

    def log_us(self, calls: Calls) -> tuple[Floats, Floats]:
        """(log(microseconds), standard deviation), at any sizes; not smoothed."""
        costs = costs_of(calls, self.constants)
        features = features_of(calls, costs)
        matrix = np.stack([features[name] for name in self.columns], axis=1)
        factor = np.clip(self.trees.predict(matrix), -self.most, self.most)
        near, far = (np.isin(calls.op, self.fitted[kind]) for kind in (ONE_NODE, SEVERAL))
        is_fitted = ~calls.is_custom & np.where(calls.is_remote, far, near)
        waiting = latency_frac(costs)
        one, several, custom = (
            np.interp(waiting, LATENCY_FRACS, self.spreads[kind])
            for kind in (ONE_NODE, SEVERAL, KERNELS)
        )
        spread = np.where(calls.is_custom, custom, np.where(calls.is_remote, several, one))
        return np.log(costs.total_us) + np.where(is_fitted, factor, 0.0), spread

    def smooth_log_us(self, calls: Calls) -> tuple[Floats, Floats]:
        """`log_us`, never rising with the rate of links."""
        return interpolate_rates(calls, self.log_us)

    def estimate(self, calls: Calls) -> Estimate:
        """Durations of `calls`, no longer on faster links; raises `ModelError` for an op without an
        algorithm."""
        return estimate_on_knots(calls, self.smooth_log_us, self.name, SPECS)

    def explain(self, calls: Calls) -> list[Explanation]:
        """Why, per call: the heuristic's parts, and the factor that was learned."""
        return explained(calls, self.constants, self.estimate(calls))


def estimate_on_knots(calls: Calls, answer: Answer, name: str, source: str) -> Estimate:
    """Durations with their 90 % interval from `answer`, continuous and monotone in size."""
    log_us, spread = interpolate_sizes(calls, answer)
    reach = Z90 * spread
    return Estimate(np.exp(log_us), np.exp(log_us - reach), np.exp(log_us + reach), name, source)


def explained(calls: Calls, constants: Constants, found: Estimate) -> list[Explanation]:
    """The heuristic's reasons with the durations of `found`, and their ratio to the heuristic's."""
    return [
        replace(
            each,
            duration_us=us,
            terms={**each.terms, "learned_factor": us / each.duration_us},
            formula=f"({each.formula}) x learned_factor",
        )
        for each, us in zip(
            explanations(calls, costs_of(calls, constants)), found.duration_us.tolist(), strict=True
        )
    ]


SCHEMA = "perfmodel.collective-model/2"
NAME = "collective/learned"
Positive = Annotated[float, msgspec.Meta(gt=0.0, le=1e6)]
"""Microseconds, bytes, shares and factors: no constant is above."""
_PerFrac = Annotated[
    tuple[Positive, ...], msgspec.Meta(min_length=len(LATENCY_FRACS), max_length=len(LATENCY_FRACS))
]


class _File(msgspec.Struct):
    schema: str
    about: dict[str, Any]
    constants: dict[str, Positive]
    columns: tuple[str, ...]
    most: Positive
    spreads: dict[str, _PerFrac]
    fitted: dict[str, tuple[str, ...]]
    trees: dict[str, Any]


@cache
def shipped() -> Learned:
    """The model that the package carries."""
    return load(Path(__file__).with_name("fitted.json"))


def load(path: Path) -> Learned:
    """The model in a file of `save`; raises `ModelError` for another file."""
    content = read_document(path, SCHEMA)
    try:
        held = msgspec.convert(content, _File)
        if missing := set(shipped_constants().values) - set(held.constants):
            raise ModelError(f"no constant {min(missing)}")
        return Learned(
            name=NAME,
            constants=Constants(held.constants, str(path)),
            columns=held.columns,
            trees=forest_from_dict(held.trees, len(held.columns)),
            most=held.most,
            spreads={kind: held.spreads[kind] for kind in (ONE_NODE, SEVERAL, KERNELS)},
            fitted={kind: held.fitted[kind] for kind in (ONE_NODE, SEVERAL)},
            about=held.about,
        )
    except (KeyError, TypeError, msgspec.ValidationError, ModelError) as error:
        what = error if isinstance(error, ModelError) else repr(error)
        raise ModelError(f"{path}: a damaged collective model: {what}") from None


def save(path: Path, model: Learned) -> None:
    """Write `model` as JSON, whole or not at all."""
    write_text(path, json.dumps(model_to_dict(model), allow_nan=False) + "\n")


def model_to_dict(model: Learned) -> dict[str, Any]:
    """Plain data."""
    return {
        "schema": SCHEMA,
        "about": dict(model.about),
        "constants": {name: float(f"{v:.5g}") for name, v in model.constants.values.items()},
        "columns": list(model.columns),
        "most": model.most,
        "spreads": {name: list(each) for name, each in model.spreads.items()},
        "fitted": {name: list(ops) for name, ops in model.fitted.items()},
        "trees": forest_to_dict(model.trees),
    }

"""The model of collectives: the envelope of algorithms, times what trees learned of its error,
times what a machine's own points say. Straight between sizes, never falling. What a collective
takes of the device from kernels beside it.

The trees see no rates and no generations: leaving repositories out, trees that saw them did worse
on the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints
from perfmodel.base.files import read_bytes
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.collectives.algorithms import MAX_RING_RANKS, Costs, costs_of
from perfmodel.cost.collectives.calls import Calls, calls_of, fabric_of
from perfmodel.cost.contract import Estimate, Explanation, explanations
from perfmodel.cost.learned.store import Forest, unpack
from perfmodel.errors import ModelError
from perfmodel.hardware import Cluster, Node
from perfmodel.ops.rows import Rows

COLUMNS = 16
_OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
_LINKS = ("switch", "mesh")


def features_of(calls: Calls, costs: Costs) -> dict[str, Floats]:
    """Column to values, one per call; logarithms to base 2."""
    counts = {
        "log_size": calls.size_bytes,
        "log_piece": calls.size_bytes / calls.ranks,
        "log_ranks": calls.ranks,
        "log_domains": calls.domains,
        "log_local": calls.local,
    }
    features = {name: np.log2(np.maximum(each, 1e-6)) for name, each in counts.items()} | {
        "hops_frac": costs.hop_us / costs.total_us,
        "links_frac": costs.link_us / costs.total_us,
        "network_frac": costs.net_us / costs.total_us,
        "filling_frac": costs.fill_us / costs.total_us,
    }
    features |= {f"is_{op}": (calls.op == op).astype(np.float64) for op in _OPS}
    return features | {f"by_{link}": (calls.link == link).astype(np.float64) for link in _LINKS}


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
    rates = np.tile(RATES_GB_PER_S[:count], len(calls))
    each = replace(calls.take(np.repeat(row, count)), link_gb_per_s=rates)
    log_us, spread = (values.reshape(-1, count) for values in answer(each))
    log_us = np.minimum.accumulate(log_us, axis=1)
    return _between(log_us, row, below, part), _between(spread, row, below, part)


def distinct_calls(calls: Calls) -> tuple[Ints, Ints]:
    """(a row of each kind of call, the kind of each row); kinds differ in all but size."""
    codes = [np.unique(getattr(calls, name), return_inverse=True)[1].reshape(-1) for name in _TOLD]
    _, first, kind = np.unique(np.stack(codes), axis=1, return_index=True, return_inverse=True)
    return first.astype(np.int64), kind.reshape(-1).astype(np.int64)


_C = coefficients("collectives.calibrated")
SPECS, CALIBRATED = "specs", "calibrated"
Z90 = 1.645
"""Standard deviations to either end of a 90 % interval."""
ONE_NODE, SEVERAL = "one_domain", "several_domains"
MOST = 0.7
"""The largest correction by trees, as a logarithm."""
LATENCY_FRACS = np.linspace(0.0, 1.0, 6)
"""Shares of base, hops and messages in a time, where `spreads` have a value: hosts and versions
differ more in these than in what bytes take."""
FORMULA = (
    "(base_us + hops_us + max(links_us, network_us) + filling_us of the cheapest algorithm and "
    "protocol) x learned_factor"
)


def latency_frac(costs: Costs) -> Floats:
    """The share of base, hops and messages in the time of each call."""
    return np.asarray((costs.base_us + costs.hop_us) / costs.total_us, np.float64)


@dataclass(frozen=True, eq=False)
class Learned:
    """Fitted to published curves; `spreads` are errors on repositories that were left out.

    Trees correct ops of which curves were fitted; others are the envelope's. A machine's `points`
    correct both: those of the same curve, straight between them in log(size), where those less than
    an octave apart share their noise; of other curves of the machine, a part of the mean. The
    interval then widens with the distance to the nearest point.
    """

    name: str
    constants: Mapping[str, float]
    trees: Forest
    spreads: Mapping[str, tuple[float, ...]]
    """Standard deviation of log(measured / predicted) at `LATENCY_FRACS`, by `one_domain` and
    `several_domains`."""
    fitted: Mapping[str, tuple[str, ...]]
    """By `one_domain` and `several_domains`, the ops that curves were fitted of."""
    points: Calls | None = None
    """What was measured on this machine."""
    time_us: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def level(self) -> str:
        """What answers rest on."""
        return SPECS if self.points is None else CALIBRATED

    def log_us(self, calls: Calls) -> tuple[Floats, Floats]:
        """(log(microseconds), standard deviation) without points, at any sizes; not smoothed."""
        costs = costs_of(calls, self.constants)
        features = features_of(calls, costs)
        matrix = np.stack(list(features.values()), axis=1)
        factor = np.clip(self.trees.predict(matrix), -MOST, MOST)
        near, far = (np.isin(calls.op, self.fitted[kind]) for kind in (ONE_NODE, SEVERAL))
        one, several = (
            np.interp(latency_frac(costs), LATENCY_FRACS, self.spreads[kind])
            for kind in (ONE_NODE, SEVERAL)
        )
        is_fitted = np.where(calls.is_remote, far, near) & ~calls.is_copy
        spread = np.where(calls.is_remote, several, one)
        return np.log(costs.total_us) + np.where(is_fitted, factor, 0.0), spread

    def smooth_log_us(self, calls: Calls) -> tuple[Floats, Floats]:
        """`log_us`, never rising with the rate of links; with points, corrected by them."""
        if self.points is None:
            return interpolate_rates(calls, self.log_us)
        base, spread = self.log_us(calls)
        log_ratio = np.log(self.time_us) - self.log_us(self.points)[0]
        measured, asked = _curves_of(self.points), _curves_of(calls)
        known, size = np.log2(self.points.size_bytes), np.log2(calls.size_bytes)
        mean, left = np.zeros(len(calls)), np.ones(len(calls))
        means: dict[bool, list[float]] = {False: [], True: []}
        for curve in np.unique(measured):
            own, there = np.flatnonzero(measured == curve), asked == curve
            own = own[np.argsort(known[own], kind="stable")]
            apart = np.subtract.outer(known[own], known[own]) / _C.noise_octaves
            weight = np.exp(-(apart**2) / 2.0)
            smooth = weight @ log_ratio[own] / weight.sum(axis=1)
            mean[there] = np.interp(size[there], known[own], smooth)
            away = np.abs(np.subtract.outer(size[there], known[own])).min(axis=1)
            left[there] = -np.expm1(-away / _C.reach_octaves)
            means[bool(self.points.is_remote[own[0]])].append(float(log_ratio[own].mean()))
        for is_remote, of_curves in means.items():
            others = (calls.is_remote == is_remote) & ~np.isin(asked, measured)
            mean[others] = _C.other_curves_frac * float(np.mean(of_curves or [0.0]))
        return base + mean, np.sqrt(_C.noise_sd**2 + spread**2 * left)

    def estimate(self, calls: Calls) -> Estimate:
        """Durations of `calls` with their 90 % interval, from the arrival of the last rank: no
        shorter for more bytes, and without points no longer on faster links.

        Raises `ModelError` for an op without an algorithm.
        """
        log_us, spread = interpolate_sizes(calls, self.smooth_log_us)
        log_us = np.where(calls.is_empty, -np.inf, log_us)
        us, low, high = (np.exp(log_us + sign * Z90 * spread) for sign in (0, -1, 1))
        return Estimate(us, low, high, self.name, self.level)

    def explain(self, calls: Calls) -> list[Explanation]:
        """Why, per call: the parts by the best algorithm and protocol, and the factor that was
        learned and measured."""
        costs, duration_us = costs_of(calls, self.constants), self.estimate(calls).duration_us
        total, longest = costs.total_us, np.maximum(costs.link_us, costs.net_us)
        by = np.where(costs.net_us > costs.link_us, "network", "links")
        by = np.where(calls.is_copy, "memory", np.where(longest < total / 2, "latency", by))
        moved = calls.size_bytes * (calls.ranks - 1) / calls.ranks
        terms = {
            "base_us": costs.base_us,
            "hops_us": costs.hop_us,
            "links_us": costs.link_us,
            "network_us": costs.net_us,
            "filling_us": costs.fill_us,
            "learned_factor": duration_us / total,
        }
        names = [costs.names[pair] for pair in costs.chosen.tolist()]
        bound_by = [f"{each} ({name})" for each, name in zip(by, names, strict=True)]
        work = np.zeros(len(calls)), moved, moved
        return explanations(duration_us, bound_by, work, longest / total, terms, FORMULA)


def _curves_of(calls: Calls) -> NDArray[np.str_]:
    """Which measured curve each call is of: the same op among as many ranks and domains."""
    told = zip(calls.op.tolist(), calls.ranks.tolist(), calls.domains.tolist(), strict=True)
    return np.array([f"{op} {ranks:g} {domains:g}" for op, ranks, domains in told], np.str_)


def calibrated(base: Learned, calls: Calls, time_us: Floats, name: str) -> Learned:
    """`base` with points; repeated ones count once, by their median."""
    _, kind = distinct_calls(calls)
    keys = np.stack([kind.astype(np.float64), calls.size_bytes])
    _, index, same = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    same = same.reshape(-1)
    median = np.array([np.median(time_us[same == each]) for each in range(len(index))])
    points = calls.take(index.astype(np.int64))
    return replace(base, name=name, points=points, time_us=median)


_SHIPPED = Path(__file__).with_name("fitted.json")
SCHEMA = "perfmodel.collective-model/4"
_MAX_BYTES = 32_000_000
NAME = "collective/learned"
Positive = Annotated[float, msgspec.Meta(gt=0.0, le=1e6)]
"""Microseconds, bytes, shares and factors: no constant is above."""
_PerFrac = Annotated[
    tuple[Positive, ...], msgspec.Meta(min_length=len(LATENCY_FRACS), max_length=len(LATENCY_FRACS))
]


class _File(msgspec.Struct):
    schema: str
    constants: dict[str, Positive]
    spreads: dict[str, _PerFrac]
    fitted: dict[str, tuple[str, ...]]
    trees: bytes
    """In base 64."""


@cache
def shipped() -> Learned:
    """The model that the package carries."""
    return load(_SHIPPED)


def load(path: Path) -> Learned:
    """The model in a file of `benchmarks/collective_model.py`; raises `ModelError` for another."""
    try:
        held = msgspec.json.decode(read_bytes(path, max_bytes=_MAX_BYTES), type=_File)
        if held.schema != SCHEMA:
            raise ModelError(f"schema {held.schema!r:.60}, expected {SCHEMA}")
        if path != _SHIPPED and (missing := set(shipped().constants) - set(held.constants)):
            raise ModelError(f"no constant {min(missing)}")
        return Learned(
            name=NAME,
            constants=held.constants,
            trees=unpack(held.trees, COLUMNS),
            spreads={kind: held.spreads[kind] for kind in (ONE_NODE, SEVERAL)},
            fitted={kind: held.fitted[kind] for kind in (ONE_NODE, SEVERAL)},
        )
    except (KeyError, ValueError, RecursionError, ModelError) as error:
        raise ModelError(f"{path}: a damaged collective model: {error}") from None


_SHARING = coefficients("collectives.sharing")


@dataclass(frozen=True)
class DeviceShares:
    """What collectives take from concurrent kernels, per call: shares of the whole device."""

    sm_frac: Floats
    """Multiprocessors that their thread blocks hold. Kernels of compute do not share those.
    Source: NCCL's maintainers, github.com/NVIDIA/nccl, issue 689."""
    held_frac: Floats
    """The same while a rank waits for others. Of an exchange only the blocks of who is late
    stay (assumed: one of the others)."""
    hbm_frac: Floats
    """Device memory's bandwidth as far as it can be reached, while bytes move."""
    delay_us: Floats
    """By which a kernel that reads is longer during the transfer."""
    wire_frac: Floats
    """Of the transfer's time alone, what its bytes take on links or adapters, as far as these can
    be reached: the rest waits for hops, messages and the filling of buffers."""


def device_shares_of_rows(rows: Rows, machine: Node | Cluster, duration_us: Floats) -> DeviceShares:
    """What `rows` (ops of the family `collective`) that transfer for `duration_us` take from a
    device of `machine`; raises `ModelError` as `collective_durations` does."""
    device = (machine.node if isinstance(machine, Cluster) else machine).device
    calls = calls_of(rows, fabric_of(machine))
    rate, most = _SHARING["channels"].get(device.target, (0.0, 0.0))
    by_link = np.clip(calls.link_gb_per_s * rate, 1.0, most)
    by_size = np.maximum(np.ceil(calls.size_bytes / _SHARING.channel_bytes), 1.0)
    sm_frac = np.minimum(by_link, by_size) / device.sm_count
    is_exchange = np.isin(calls.op, ["all_to_all", "send_recv"])
    late = np.where(is_exchange, np.maximum(calls.ranks - 1, 1.0), 1.0)
    in_switch = calls.has_multicast & (calls.local > MAX_RING_RANKS)
    turns = np.where(in_switch, 1.0, np.where(calls.op == "all_reduce", _SHARING.reduce_turns, 1.0))
    sent = calls.size_bytes * (calls.ranks - 1) / calls.ranks * turns
    gb_per_s = sent / np.maximum(duration_us, 1e-9) / 1e3
    costs = costs_of(calls, shipped().constants)
    return DeviceShares(
        sm_frac=np.minimum(sm_frac, 1.0),
        held_frac=np.minimum(sm_frac / late, 1.0),
        hbm_frac=np.minimum(gb_per_s * _SHARING.ring_passes / device.stream_gb_per_s, 1.0),
        delay_us=np.minimum(gb_per_s, calls.link_gb_per_s) * _SHARING.delay_us_per_gb_per_s,
        wire_frac=np.maximum(costs.link_us, costs.net_us) / costs.total_us,
    )


def collective_durations(
    rows: Rows, machine: Node | Cluster, *, model: Learned | None = None
) -> Estimate:
    """Durations of `rows` (ops of the family `collective`) among ranks of `machine`.

    A row says by `ranks` and `nodes` who takes part. `model` is by default the shipped one, or such
    as was calibrated on the machine. Raises `ModelError` for rows that cannot be, such as several
    nodes without a network adapter.
    """
    return (model or shipped()).estimate(calls_of(rows, fabric_of(machine)))


def explain_collectives(rows: Rows, machine: Node | Cluster) -> list[Explanation]:
    """Why `rows` take what they take, one by one."""
    return shipped().explain(calls_of(rows, fabric_of(machine)))

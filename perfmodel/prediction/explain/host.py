"""Why a piece of the host's work takes what it takes: a profile, and how fast the host is."""

from __future__ import annotations

from perfmodel.graph.kinds import Cause
from perfmodel.graph.types import ExecutionGraph
from perfmodel.hardware import Host
from perfmodel.hardware.reads import Read, read_of
from perfmodel.overheads import Profile
from perfmodel.overheads.kinds import DESCRIPTIONS
from perfmodel.prediction.explain.reason import Reason, Terms
from perfmodel.prediction.host_costs import OVERHEAD_OF_CAUSE, HostCosts

HOST_SPEED = "single_thread_ratio"


def overhead_of(graph: ExecutionGraph, node: int) -> str | None:
    """The overhead type of a host node, `T1` to `T5` and the like; None for others."""
    return OVERHEAD_OF_CAUSE.get(Cause(int(graph.nodes_.cause[node])))


def profile_reason(
    graph: ExecutionGraph, node: int, profile: Profile, costs: HostCosts, name: str
) -> Reason:
    """Why `profile` gives a host node its duration. Raises `ModelError` for an unknown type."""
    kind = overhead_of(graph, node)
    assert kind is not None
    thread = graph.resources[graph.nodes_.resource[node]].split("/", 1)[1]
    op = graph.labels[node]
    found = profile.statistic(kind, op, thread)
    told = profile.provenance
    taken_us = float(getattr(found, costs.statistic))
    terms: Terms = {
        "overhead": f"{kind}, {DESCRIPTIONS[kind]}",
        "profile": name,
        "filed_under": _filed_under(profile, kind, op, thread),
        "samples": found.count,
        "statistic": costs.statistic,
        costs.statistic: taken_us,
        "p10_us": found.p10_us,
        "p90_us": found.p90_us,
        "host_ratio": costs.ratio,
        "traces": ", ".join(told.traces) or None,
        "devices": ", ".join(told.devices) or None,
        "hosts": ", ".join(told.hosts) or None,
    }
    formula = f"{costs.statistic} of the profile's samples x host_ratio"
    if costs.recorded_on is not None:
        formula += f" ({HOST_SPEED} of the profile's host over the target's)"
    return Reason("host overheads", formula, taken_us * costs.ratio, terms, host_figures(costs))


def host_figures(costs: HostCosts) -> tuple[Read, ...]:
    """What was read of the profile's host and of the target's."""
    hosts = (costs.recorded_on, costs.host)
    found = (read_of(each, "host", HOST_SPEED) for each in hosts if each is not None)
    return tuple(dict.fromkeys(found))


def speed_reason(measured: Reason, ratio: float, source: Host, target: Host) -> Reason:
    """Measured host time on another host."""
    formula = f"measured time x host_ratio ({HOST_SPEED} of {source.name} over {target.name}'s)"
    figures = tuple(read_of(each, "host", HOST_SPEED) for each in (source, target))
    taken_us = measured.duration_us * ratio
    terms: Terms = {"measured_us": measured.duration_us, "host_ratio": ratio}
    return Reason("host speed", formula, taken_us, terms, figures, (measured,))


def _filed_under(profile: Profile, kind: str, op: str, thread: str) -> str:
    """Which row of the profile answers: of the operator on its thread, of the thread, or of all."""
    if (kind, op, thread) in profile.rows:
        return f"{kind} of {op} on {thread}"
    return f"{kind} on {thread}" if (kind, None, thread) in profile.rows else f"any {kind}"

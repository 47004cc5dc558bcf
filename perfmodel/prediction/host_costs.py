"""What times the host's work of a prediction from shapes: a profile, and how fast the host is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from perfmodel.graph.kinds import Cause
from perfmodel.hardware import Cluster, Host, host, node_of
from perfmodel.overheads import Profile, load_profile
from perfmodel.overheads.kinds import OP_WITHOUT_LAUNCH, T1, T2, T3, T4, T5
from perfmodel.overheads.profile import CATALOGUE
from perfmodel.overheads.shipped import SHIPPED, shipped_for
from perfmodel.transfer import host_ratio

OWN_STATISTIC = "mean_us"
"""Of a program's own profile: only means add up to the host's time, and stalls belong to it. With a
tenth trimmed at each end, the host of eight shared traces came out 13 % short in the median, with
means 3 %."""
OTHERS_STATISTIC = "trimmed_mean_us"
"""Of a profile that the package brings: the stalls of other programs are not this one's."""

OVERHEAD_OF_CAUSE = {
    Cause.HOST_T1: T1,
    Cause.HOST_T2: T2,
    Cause.HOST_T3: T3,
    Cause.HOST_T4: T4,
    Cause.HOST_T5: T5,
    Cause.HOST_OP_WITHOUT_LAUNCH: OP_WITHOUT_LAUNCH,
}
"""What a profile files host work under, by the cause that a graph gives it."""


@dataclass(frozen=True)
class HostCosts:
    """What times the host's work, how much slower the target's host is, and that in words."""

    profile: Profile
    ratio: float
    note: str
    of_rank: Mapping[int, Profile] = field(default_factory=lambda: MappingProxyType({}))
    """Profiles of single ranks, which count before `profile`: one may be slower than the others."""
    statistic: str = OWN_STATISTIC
    name: str = "the trace's own"
    """Of the profile."""
    recorded_on: Host | None = None
    host: Host | None = None
    """The target's, where speeds of hosts make the ratio."""

    def profile_of(self, rank: int) -> Profile:
        """What times the host of `rank`."""
        return self.of_rank.get(rank, self.profile)


def host_costs(machine: Cluster, overheads: str | None = None) -> HostCosts:
    """The saved profile `overheads`, or the one of the package that fits `machine` best.

    Raises `ModelError` where there is no such profile.
    """
    if overheads is not None:
        profile = load_profile(overheads)
        return HostCosts(profile, 1.0, f"host overheads: {overheads}, as they are", name=overheads)
    device = machine.node.device
    chosen = shipped_for(device)
    profile = _shipped(chosen.name)
    recorded = node_of(device).host if chosen.host is None else host(chosen.host)
    ratio = host_ratio(recorded, machine.node.host)
    taken = (
        f"scaled from {recorded.name} (assumed: its traces name no host) to "
        f"{machine.node.host.name} by single-thread speed"
    )
    note = f"host overheads: {chosen.name}, {taken}"
    return HostCosts(
        profile,
        ratio,
        note,
        statistic=OTHERS_STATISTIC,
        name=chosen.name,
        recorded_on=recorded,
        host=machine.node.host,
    )


@lru_cache(maxsize=len(SHIPPED))
def _shipped(name: str) -> Profile:
    """A profile of the package, read once."""
    return load_profile(CATALOGUE / f"{name}.json")

"""All-to-all with a length of its own per pair of ranks, as the even one that is as busy.

What counts is the busiest resource: the links of one rank, and the adapters of one domain, sending
or receiving. Source of taking the maximum over ranks and ways: Lin et al., TPDS 2024.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.errors import ModelError
from perfmodel.network.calls import Calls
from perfmodel.network.heuristic import costs_of
from perfmodel.ops.spec import Floats


@dataclass(frozen=True)
class Load:
    """The busiest rank and domain of one exchange, and who they are."""

    ranks: int
    rank_bytes: float
    """Sent to or received from other ranks, whichever is more."""
    rank: int
    domain_bytes: float
    """Likewise, of a domain's ranks to other domains."""
    domain: int
    imbalance: float
    """The busiest rank over the mean."""


def load_of(sends_bytes: ArrayLike, domains: int = 1) -> Load:
    """The load of `sends_bytes` `[from, to]`; ranks fill the domains one by one.

    Raises `ModelError` for a matrix that is not square, negative or not finite, and for ranks that
    do not fill the domains.
    """
    sends = _checked(sends_bytes, domains)
    ranks = len(sends)
    others = sends * (1.0 - np.eye(ranks))
    per_rank = np.maximum(others.sum(axis=1), others.sum(axis=0))
    where = np.arange(ranks) * domains // ranks
    between = np.zeros((domains, domains))
    np.add.at(between, (where[:, None], where[None, :]), sends)
    between *= 1.0 - np.eye(domains)
    per_domain = np.maximum(between.sum(axis=1), between.sum(axis=0))
    mean = float(per_rank.mean())
    return Load(
        ranks=ranks,
        rank_bytes=float(per_rank.max()),
        rank=int(per_rank.argmax()),
        domain_bytes=float(per_domain.max()),
        domain=int(per_domain.argmax()),
        imbalance=float(per_rank.max()) / mean if mean else 1.0,
    )


def even_size_bytes(load: Load, call: Calls) -> Floats:
    """The `size_bytes` of the even all-to-all `call` (one row) that takes as long as `load`.

    Within a domain that of the busiest rank; beyond, of the busiest domain's adapters, unless
    links are what the even one waits for.
    """
    ranks = load.ranks
    by_rank = load.rank_bytes * ranks / max(ranks - 1, 1)
    local = float(call.local[0])
    if float(call.domains[0]) <= 1:
        return np.array([by_rank])
    by_domain = load.domain_bytes * ranks / (local * (ranks - local))
    costs = costs_of(replace(call, size_bytes=np.array([max(by_rank, by_domain, 1.0)])))
    share = float(costs.link_us[0] / max(costs.net_us[0], 1e-9))
    return np.array([max(by_domain, by_rank * min(share, 1.0))])


def _checked(sends_bytes: ArrayLike, domains: int) -> Floats:
    sends = np.asarray(sends_bytes, np.float64)
    if sends.ndim != 2 or sends.shape[0] != sends.shape[1] or len(sends) < 1:
        raise ModelError(f"all_to_allv: expected bytes [from, to], got the shape {sends.shape}")
    bad = np.argwhere(~(np.isfinite(sends) & (sends >= 0)))
    if len(bad):
        source, target = bad[0]
        raise ModelError(
            f"all_to_allv: rank {source} sends {sends[source, target]} bytes to rank {target}"
        )
    if not 1 <= domains <= len(sends):
        raise ModelError(f"all_to_allv: {len(sends)} ranks cannot be in {domains} domains")
    return sends

"""Which node of an execution trace each host event of a profile is.

Three regimes of ids occur; the one under which most names agree is taken:

1. `Record function id` is the node's `rf_id` (2024 and later);
2. `External id` is the `rf_id`;
3. neither: the n-th host event of a thread is its n-th node, in order of entry (2023).

The execution trace may be of one iteration and the profile of many, and of another one: ids and
sequence numbers are never compared across iterations in regime 3, only the order of names.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.base.arrays import Ints
from perfmodel.trace.categories import STEP_NAME, Category
from perfmodel.trace.columns import RankTrace, text_codes
from perfmodel.trace.execution_trace_columns import ExecutionTrace

RECORD_FUNCTION_ID, EXTERNAL_ID, ORDINAL = (
    "record function id",
    "external id",
    "order per thread",
)
MIN_SAME_FRAC = 0.9


@dataclass(frozen=True)
class Pairing:
    """Rows of host events and, for each, the row of its node."""

    regime: str
    event: Ints
    node: Ints
    events: int
    """Host events that could have been matched."""

    @property
    def matched_frac(self) -> float:
        return len(self.event) / self.events if self.events else 0.0


def pair(rank: RankTrace, execution_trace: ExecutionTrace) -> Pairing:
    """Pair the host events of a rank with the nodes of its execution trace, by equal names."""
    host = rank.of(Category.CPU_OP, Category.ANNOTATION)
    host = host[~rank.name_matches(STEP_NAME)[host]]
    result = [
        _by_id(RECORD_FUNCTION_ID, rank, host, rank.op_id[host], execution_trace),
        _by_id(EXTERNAL_ID, rank, host, rank.external_id[host], execution_trace),
    ]
    best = max(result, key=lambda pairing: len(pairing.event))
    if best.matched_frac >= MIN_SAME_FRAC:
        return best
    return max(best, _by_order(rank, host, execution_trace), key=lambda p: len(p.event))


def _by_id(
    regime: str, rank: RankTrace, host: Ints, ids: Ints, execution_trace: ExecutionTrace
) -> Pairing:
    """Events and nodes of one id whose names agree; nothing where most do not."""
    order = np.argsort(execution_trace.rf_id, kind="stable")
    keys = execution_trace.rf_id[order]
    at = np.minimum(np.searchsorted(keys, ids), len(keys) - 1)
    hit = (keys[at] == ids) & (ids > 0)
    event, node = host[hit], order[at[hit]]
    same = np.array(
        [rank.text(e) == execution_trace.text(n) for e, n in zip(event, node, strict=True)], bool
    )
    if not len(same) or same.mean() < MIN_SAME_FRAC:
        same = np.zeros(len(event), bool)
    return Pairing(regime, event[same], node[same], len(host))


def _by_order(rank: RankTrace, host: Ints, execution_trace: ExecutionTrace) -> Pairing:
    """Threads whose names fit in order: the nodes as a run of the events, once or often."""
    entered = host[np.lexsort((rank.event_index[host], rank.start_us[host]))]
    code: dict[str, int] = {}
    nodes = {
        thread: (rows, text_codes(execution_trace.names(rows), code))
        for thread, rows in execution_trace.linkable().items()
    }
    event, node = [], []
    for thread in np.unique(rank.thread[host]):
        rows = entered[rank.thread[entered] == thread]
        rows = rows[np.argsort(rank.event_index[rows], kind="stable")]
        names = text_codes([rank.text(row) for row in rows], code)
        fits = [(_occurrences(names, theirs), their_rows) for their_rows, theirs in nodes.values()]
        starts, their_rows = max(
            fits, key=lambda fit: len(fit[0]) * len(fit[1]), default=([], rows)
        )
        for start in starts:
            event.append(rows[start : start + len(their_rows)])
            node.append(their_rows)
    empty = [np.zeros(0, np.int64)]
    return Pairing(
        ORDINAL, np.concatenate(event or empty), np.concatenate(node or empty), len(host)
    )


def _occurrences(names: Ints, part: Ints) -> list[int]:
    """Where `part` stands in `names` as a run, without overlaps."""
    if not len(part) or len(part) > len(names):
        return []
    text, wanted = names.tobytes(), part.tobytes()
    width, result, at = names.itemsize, [], text.find(wanted)
    while at >= 0:
        if at % width == 0:
            result.append(at // width)
            at = text.find(wanted, at + len(wanted))
        else:
            at = text.find(wanted, at + 1)
    return result

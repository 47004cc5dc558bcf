"""How long each kernel of a device ran beside those of other streams."""

from __future__ import annotations

import numpy as np

from perfmodel.trace.columns import Floats, Ints


def beside_us(stream: Ints, start_us: Floats, duration_us: Floats) -> Floats:
    """Of each kernel, the time in which any other stream's ran too; all arrays `[n]`."""
    end_us = start_us + duration_us
    found = np.zeros(len(stream))
    for own in np.unique(stream):
        mine, others = np.flatnonzero(stream == own), np.flatnonzero(stream != own)
        if not len(others):
            continue
        starts, ends = _united(start_us[others], end_us[others])
        at = np.stack([starts, ends], axis=1).ravel()
        covered = np.concatenate([[0.0], np.repeat(np.cumsum(ends - starts), 2)[:-1]])
        found[mine] = np.interp(end_us[mine], at, covered) - np.interp(start_us[mine], at, covered)
    return found


def _united(start_us: Floats, end_us: Floats) -> tuple[Floats, Floats]:
    """Stretches in which any interval holds: sorted, apart from one another."""
    order = np.argsort(start_us, kind="stable")
    starts, reached = start_us[order], np.maximum.accumulate(end_us[order])
    begins = np.concatenate([[True], starts[1:] > reached[:-1]])
    last = np.concatenate([np.flatnonzero(begins)[1:] - 1, [len(starts) - 1]])
    return starts[begins], reached[last]

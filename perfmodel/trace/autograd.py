"""Which operators of the backward pass belong to which of the forward one, by sequence number."""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import Ints, Mask, distinct
from perfmodel.trace.categories import BACKWARD_OP, Category
from perfmodel.trace.columns import NONE, RankTrace
from perfmodel.trace.link import thread_keys


def differentiated_ops(rank: RankTrace) -> Ints:
    """Per row of the rank: the forward operator that it differentiates, or -1.

    Numbers count per thread, and operators without a derivative have that of the next one: it is
    the last forward operator of that thread and number which began before.
    """
    ops = rank.of(Category.CPU_OP)
    ops = ops[rank.sequence[ops] >= 0]
    is_backward = (rank.forward_thread[ops] > 0) | rank.name_matches(BACKWARD_OP)[ops]
    forward, backward = ops[~is_backward], ops[is_backward]
    result = np.full(len(rank), NONE, np.int64)
    if not len(forward) or not len(backward):
        return result
    limit = int(rank.sequence[ops].max()) + 1
    threads = distinct(rank.thread[forward])
    thread = np.searchsorted(threads, _forward_threads(rank, forward, backward))
    known = np.searchsorted(threads, rank.thread[forward]) * limit + rank.sequence[forward]
    codes, code = np.unique(known, return_inverse=True)
    wanted = thread * limit + rank.sequence[backward]
    at = np.searchsorted(codes, wanted).clip(max=len(codes) - 1)
    order = np.lexsort((rank.start_us[forward], code))
    keys = thread_keys(code[order], rank.start_us[forward[order]])
    last = np.searchsorted(keys, thread_keys(at, rank.start_us[backward]), side="right") - 1
    found: Mask = (codes[at] == wanted) & (last >= 0) & (code[order[last]] == at)
    result[backward[found]] = forward[order[last[found]]]
    return result


def _forward_threads(rank: RankTrace, forward: Ints, backward: Ints) -> Ints:
    """Per row of `backward`: the thread whose sequence numbers it has.

    Files name it by a count of PyTorch's own: the thread with most of the same numbers, where
    several have as many one that no other count has, in order of time.
    """
    threads = list(dict.fromkeys(rank.thread[forward].tolist()))
    numbers = [distinct(rank.sequence[forward[rank.thread[forward] == each]]) for each in threads]
    result = np.zeros(len(backward), np.int64)
    taken = [False] * len(threads)
    counts = rank.forward_thread[backward]
    for count in distinct(counts).tolist():
        of_count = counts == count
        same = distinct(rank.sequence[backward[of_count]])
        shared = [int(np.isin(same, each).sum()) for each in numbers]
        best = max(range(len(threads)), key=lambda at: (shared[at], not taken[at]))
        taken[best] = True
        result[of_count] = threads[best]
    return result

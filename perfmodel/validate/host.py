"""Errors of host overheads: each step's total per type, from a profile of the other steps."""

from __future__ import annotations

from functools import reduce

import numpy as np

from perfmodel.overheads import TYPES, Profile, Samples, measure
from perfmodel.trace import Trace
from perfmodel.trace.columns import Floats, Ints
from perfmodel.validate.types import Kind, Row, rows_of


def overhead_rows(name: str, trace: Trace, steady: Ints, held: Ints) -> list[Row]:
    """Per overhead type: errors of its total per rank and held step.

    The step's own operators and launch calls are given; what each costs comes from the profile
    of the rank's other steps (its mean per type, operator and thread). Samples that waited count
    on neither side.
    """
    if len(steady) < 2:
        return []
    pairs = [
        _totals(measure(rank, links).without_waiting(), steady, held)
        for rank, links in zip(trace.ranks, trace.links, strict=True)
    ]
    predicted, true = (np.concatenate(side) for side in zip(*pairs, strict=True))
    rows = []
    for code, kind in enumerate(TYPES):
        rows += rows_of(name, Kind.OVERHEAD, kind, predicted[:, code], true[:, code])
    return rows


def _totals(samples: Samples, steady: Ints, held: Ints) -> tuple[Floats, Floats]:
    """`[held step, type]`: predicted and measured totals of one rank."""
    warmup = np.setdiff1d(np.unique(samples.step), steady).tolist()
    taught = reduce(Samples.without_step, warmup, samples)
    predicted, true = (np.zeros((len(held), len(TYPES))) for _ in range(2))
    for at, step in enumerate(held.tolist()):
        own, others = samples.of_step(step), taught.without_step(step)
        if not len(own) or not len(others):
            continue
        true[at] = np.bincount(own.type, own.value_us, minlength=len(TYPES))
        profile = Profile.from_samples(others)
        known = np.isin(own.type, others.type)
        value = np.zeros(len(own))
        value[known] = profile.durations(
            [TYPES[code] for code in own.type[known]],
            [own.names[code] for code in own.op[known]],
            [own.threads[code] for code in own.thread[known]],
        )
        predicted[at] = np.bincount(own.type, value, minlength=len(TYPES))
    return predicted, true

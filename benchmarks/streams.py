"""Streams of lookups: drawn, with given reuse, replayed through a cache; published histograms."""

from __future__ import annotations

import math
from collections import OrderedDict
from itertools import pairwise
from pathlib import Path

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.base.frames import text_rows
from perfmodel.embedding import Popularity, ReuseHistogram
from perfmodel.errors import WorkloadError


def last_lookups(popularity: Popularity, *, seed: int = 0) -> Ints:
    """Every row that is ever looked up once, by when it would have been last: `[rows]`.

    Put before `draw_lookups`, it fills an LRU cache as an endless stream would have left it.
    """
    generator = np.random.default_rng(seed)
    ends = np.cumsum(popularity.rows)
    count = max(1, round(float(ends[-1])))
    place = np.searchsorted(ends, np.arange(count) + 0.5, side="right")
    chance = popularity.chance[np.minimum(place, len(ends) - 1)]
    used = np.flatnonzero(chance > 0)
    ages = generator.exponential(size=len(used)) / chance[used]
    return scatter(used[np.argsort(-ages, kind="stable")], count)


def draw_like(histogram: ReuseHistogram, rows_frac: float = 1.0, *, seed: int = 0) -> Ints:
    """A batch with the reuse of `histogram`, its lookups in random order, row numbers from 0.

    `rows_frac` of the rows of each bin (rounded), each looked up as often as there, spread evenly
    about the bin's mean; the lookups of a bin come out within one row's worth of theirs.
    """
    if not 0.0 < rows_frac <= 1.0:
        raise WorkloadError(f"index stream: {rows_frac:g} of the rows of a histogram")
    generator = np.random.default_rng(seed)
    counts = [np.zeros(0, np.int64)]
    columns = histogram.rows, histogram.bin_lookups, histogram.least + 1.0, histogram.most
    for rows, looked_up, least, most in np.stack(columns, axis=1)[histogram.rows > 0].tolist():
        mean, kept = looked_up / rows, round(rows * rows_frac)
        steps = 2.0 * (np.arange(kept) + 0.5) / max(kept, 1) - 1.0
        ends = np.round(np.cumsum(mean + min(mean - least, most - mean) * steps)).astype(np.int64)
        counts.append(np.clip(np.diff(ends, prepend=0), int(least), int(most)))
    of_row = np.concatenate(counts)
    if not len(of_row):
        raise WorkloadError(
            f"index stream: {rows_frac:g} of {histogram.name!r} are not row numbers"
        )
    generator.shuffle(of_row)
    stream = np.repeat(np.arange(len(of_row)), of_row)
    generator.shuffle(stream)
    return stream


def draw_lookups(popularity: Popularity, lookups: int, *, seed: int = 0) -> Ints:
    """So many independent lookups, row numbers `[lookups]` from 0.

    Popular rows are scattered over the table, as in a real one. The rows of a class are taken
    alike.
    """
    if lookups < 1:
        raise WorkloadError(f"index stream: {lookups} lookups")
    generator = np.random.default_rng(seed)
    ends = np.cumsum(popularity.rows)
    mass = np.cumsum(popularity.share)
    place = np.searchsorted(mass / mass[-1], generator.random(lookups), side="right")
    place = np.minimum(place, len(ends) - 1)
    rank = ends[place] - generator.random(lookups) * popularity.rows[place]
    count = max(1, round(float(ends[-1])))
    result = np.clip(rank.astype(np.int64), 0, count - 1)
    return scatter(result, count)


def scatter(ranks: Ints, rows: int) -> Ints:
    """Row numbers of popularity ranks (from 0): multiples of a step without a common divisor."""
    step = max(1, int(rows * 0.6180339887))
    while math.gcd(step, rows) != 1:
        step += 1
    return np.asarray(ranks * step % rows, dtype=np.int64)


def replay(
    rows: Ints, capacity_rows: int, *, batch_lookups: int = 1, warm_up: int = 0
) -> tuple[Mask, Ints]:
    """`rows` `[lookups]` through an empty LRU cache of so many rows, exactly.

    What counts is what the cache holds when a batch of `batch_lookups` begins; it takes in the
    batch lookup by lookup. Of the batches after the first `warm_up` lookups, an incomplete last one
    left out: which lookups find their row `[lookups]`, and for how many distinct rows per batch
    there was none `[batches]`.
    """
    batches = (len(rows) - warm_up) // batch_lookups if batch_lookups > 0 else 0
    if capacity_rows < 0 or warm_up < 0 or batches < 1:
        raise WorkloadError(
            f"replay: {capacity_rows} rows, batches of {batch_lookups}, warm-up of {warm_up} of "
            f"{len(rows)} lookups"
        )
    held: OrderedDict[int, None] = OrderedDict()
    stream, found, fetched = rows.tolist(), list[bool](), list[int]()
    ends = range(warm_up, warm_up + batches * batch_lookups + 1, batch_lookups)
    for begin, end in pairwise([0, *ends] if warm_up else ends):
        batch = stream[begin:end]
        hits = [row in held for row in batch]
        if begin >= warm_up:
            found += hits
            fetched.append(len({row for row, hit in zip(batch, hits, strict=True) if not hit}))
        for row in batch:
            held[row] = None
            held.move_to_end(row)
            if len(held) > capacity_rows:
                held.popitem(last=False)
    return np.array(found, bool), np.array(fetched)


_COLUMNS = (
    *("file", "avg_indices", "avg_unique_rows"),
    *("bin_lo_excl", "bin_hi_incl", "frac_unique_rows", "frac_accesses"),
)
_OPEN_FRAC = 0.003
"""Less than this share of the lookups in no bin is what printed figures were rounded by."""
_PRINTED = 0.0005


def read_histograms(path: str | Path) -> dict[str, ReuseHistogram]:
    """Histograms by name from a CSV file with one row per bin.

    Columns: `file` (the name), `avg_indices` and `avg_unique_rows` of the batch, `bin_lo_excl`,
    `bin_hi_incl`, `frac_unique_rows`, `frac_accesses`. Lookups in no bin were to rows beyond the
    last: they are put into one more bin, an octave wide. Shares of rows may be printed with three
    decimals: where lookups tell more, they decide.

    Raises `WorkloadError` that names the file, and the line, where it cannot be read.
    """
    bins: dict[str, list[list[float]]] = {}
    for where, record in text_rows(path, _COLUMNS, error=WorkloadError):
        try:
            values = [float(record[name]) for name in _COLUMNS[1:]]
        except ValueError:
            raise WorkloadError(f"{where}: a number cannot be read") from None
        bins.setdefault(record["file"], []).append(values)
    if not bins:
        raise WorkloadError(f"{path}: holds no histogram")
    return {name: _of_shares(name, np.array(each), str(path)) for name, each in bins.items()}


def _of_shares(name: str, bins: Floats, where: str) -> ReuseHistogram:
    lookups, distinct, low, most, rows_frac, lookups_frac = bins[np.argsort(bins[:, 3])].T
    if not np.isfinite(bins).all() or (lookups <= 0).any() or (low < 0).any():
        raise WorkloadError(f"{where}: histogram {name!r}: figures must be finite and positive")
    if (most <= low).any() or (np.minimum(rows_frac, lookups_frac) < 0).any():
        raise WorkloadError(f"{where}: histogram {name!r}: a bin ends before it begins, or is < 0")
    beyond = 1.0 - lookups_frac.sum()
    if beyond > _OPEN_FRAC:
        low, most = np.append(low, most[-1]), np.append(most, 2 * most[-1])
        rows_frac, lookups_frac = np.append(rows_frac, 0.0), np.append(lookups_frac, beyond)
    looked_up = lookups_frac / lookups_frac.sum() * lookups[0]
    usual = looked_up / np.sqrt(np.maximum(low, 0.5) * most)
    usual = np.where(most == low + 1, looked_up / most, usual)
    printed = distinct[0] * rows_frac
    slack = distinct[0] * _PRINTED
    rows = np.clip(usual, np.maximum(printed - slack, 0.0), printed + slack)
    rows = np.clip(rows, looked_up / most, looked_up / (low + 1))
    return ReuseHistogram(most=most, rows=rows, bin_lookups=looked_up, name=name)

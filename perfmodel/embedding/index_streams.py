"""Index streams (rows looked up one after the other): from files, from traces; how often a batch of
one looks rows up, and how popular the rows of a table then are."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats, Ints
from perfmodel.base.files import check_input, read_bytes
from perfmodel.base.frames import frame_of
from perfmodel.embedding.popularity import MAX_ALPHA, Popularity, zipf
from perfmodel.errors import WorkloadError

MAX_STREAM_BYTES = 4_000_000_000


def read_stream(path: str | Path) -> dict[str, Ints]:
    """Row numbers looked up in each table, by the table's name; one without a name is `""`.

    By the file's ending: `.npy` (integers `[lookups]`, or `[lookups, 2]` of table and row), `.npz`
    (one array per table), `.parquet` and `.csv` (columns `row` and, with several tables, `table`;
    without `row` a column per table), `.txt` (one row number per line).

    Raises `WorkloadError` that names the file where it cannot be read, holds no lookups, or holds
    what are no row numbers.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise WorkloadError(f"{path}: an index stream ends in {', '.join(SUFFIXES)}")
    try:
        check_input(path)
        columns = _columns(path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise WorkloadError(f"{path}: cannot be read as an index stream: {error}") from None
    result = {}
    for name, values in columns.items():
        where = f"{path}: {name}"
        if values.ndim != 1 or not len(values):
            raise WorkloadError(f"{where}: holds no lookups")
        if values.dtype.kind not in "iu":
            raise WorkloadError(f"{where}: row numbers must be integers, not {values.dtype}")
        rows = result[name] = values.astype(np.int64)
        if (rows < 0).any():
            place = int(np.argmax(rows < 0))
            raise WorkloadError(f"{where}: row {rows[place]} at lookup {place}: below 0")
    return result


SUFFIXES = (".npy", ".npz", ".parquet", ".csv", ".txt")


def _columns(path: Path) -> dict[str, NDArray[np.generic]]:
    """What a file holds, by table; `ValueError` for what it should not."""
    table, rows = None, np.zeros(0, np.int64)
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as packed:
            if sum(each.file_size for each in packed.infolist()) > MAX_STREAM_BYTES:
                raise ValueError(f"its content is above the limit of {MAX_STREAM_BYTES} bytes")
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    if path.suffix == ".npy":
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
        if rows.ndim == 2 and rows.shape[1] == 2:
            table, rows = rows.T
    elif path.suffix == ".txt":
        text = read_bytes(path, max_bytes=MAX_STREAM_BYTES).decode()
        rows = np.array(text.split(), dtype=np.int64)
    else:
        content = read_bytes(path, max_bytes=MAX_STREAM_BYTES)
        frame = frame_of(content, max_bytes=MAX_STREAM_BYTES)
        if "row" not in frame:
            return {str(name): frame[name].to_numpy() for name in frame}
        rows = frame["row"].to_numpy()
        table = frame["table"].to_numpy() if "table" in frame else None
    if table is None:
        return {"": rows}
    names, place = np.unique(table, return_inverse=True)
    return {str(name): rows[place == number] for number, name in enumerate(names)}


_HALVINGS, _DEVIATIONS = 40, 3.0


def stream_alpha(rows: Ints, table_rows: int) -> float:
    """The exponent of the Zipf distribution over `table_rows` under which two lookups are as often
    of one row as those of the stream `rows` `[lookups]`; 0 where uniform ones may be (within three
    standard deviations).

    That share, `sum c (c - 1) / (n (n - 1))` over the rows' counts c, estimates the sum of squared
    chances without bias, however many rows were touched (a U-statistic). By bisection.
    """
    counts = np.unique(rows, return_counts=True)[1].astype(np.float64)
    pairs, alike = 0.5 * len(rows) * (len(rows) - 1.0), 0.5 * float(counts @ (counts - 1.0))
    usual = pairs / table_rows
    low, high = 0.0, MAX_ALPHA
    if alike <= usual + _DEVIATIONS * usual**0.5:
        return low
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        drawn = zipf(table_rows, middle, smooth=True)
        is_above = float(drawn.share @ drawn.chance) * pairs > alike
        low, high = (low, middle) if is_above else (middle, high)
    return 0.5 * (low + high)


LOOKUPS = ("aten::embedding_bag", "aten::embedding")
_INDICES = 1  # which input of these ops holds the row numbers; the first is the table
_TYPES = {"long": "<i8", "int": "<i4"}


@dataclass(frozen=True, eq=False)
class TracedTable:
    """All lookups into one table, in the order of the trace: row numbers `[lookups]`."""

    table_rows: int
    dim: int
    rows: Ints


def traced_lookups(path: str | Path) -> list[TracedTable]:
    """What each table of the execution trace (JSON, not gzipped) at `path` was looked up for.

    PyTorch saves integer tensors as raw files `nid_NODE_tid_INPUT.dat` in the folder
    `NAME_resources` beside `NAME.json`, if that folder exists when it records and
    `ENABLE_PYTORCH_EXECUTION_TRACE_SAVE_INTEGRAL_TENSOR_DATA=aten::embedding_bag,aten::embedding`
    is set. Tables are distinguished by the storage of their weights.

    Raises `WorkloadError` where no indices were saved, or a file does not fit its tensor.
    """
    from perfmodel.trace.execution_trace import decode_execution_trace

    path = Path(path)
    folder = path.with_name(path.name.removesuffix(".json") + "_resources")
    trace = decode_execution_trace(read_bytes(path), str(path))
    names = np.array(trace.names(np.arange(len(trace))))
    streams: dict[tuple[int, int, int], list[Ints]] = {}
    for row in np.flatnonzero(np.isin(names, LOOKUPS)).tolist():
        file = folder / f"nid_{trace.node_id[row]}_tid_{_INDICES}.dat"
        if not file.is_file():
            continue
        shapes, values = trace.input_shapes(row), trace.input_values(row)
        kind = str(trace.input_types(row)[_INDICES]).removeprefix("Tensor(").split()[0].rstrip(")")
        if kind not in _TYPES:
            raise WorkloadError(f"{file}: indices of type {kind}: expected int or long int")
        raw, item, count = read_bytes(file), np.dtype(_TYPES[kind]), int(np.prod(shapes[_INDICES]))
        if len(raw) != count * item.itemsize:
            raise WorkloadError(f"{file}: {len(raw)} bytes for {count} indices of {item.itemsize}")
        numbers = np.frombuffer(raw, item).astype(np.int64)
        table_rows = shapes[0][0]
        if count and not (numbers.min() >= 0 and numbers.max() < table_rows):
            raise WorkloadError(f"{file}: a row outside of the table's {table_rows}")
        streams.setdefault((values[0][1], *shapes[0]), []).append(numbers)
    if not streams:
        raise WorkloadError(
            f"{folder}: holds no indices of {' or '.join(LOOKUPS)}: "
            "see perfmodel.embedding.index_streams"
        )
    return [
        TracedTable(table_rows, dim, np.concatenate(parts))
        for (_, table_rows, dim), parts in streams.items()
    ]


@dataclass(frozen=True, eq=False)
class ReuseHistogram:
    """One batch of `lookups`, by how often its rows were looked up.

    `most` `[bins]` ascending is the largest count of a bin, whose smallest is one above the bin
    before; `rows` and `bin_lookups` `[bins]` are the distinct rows of each bin and the lookups that
    go to them.

    Raises `WorkloadError` where bins hold more, or fewer, lookups than their counts allow.
    """

    most: Floats
    rows: Floats
    bin_lookups: Floats
    name: str = ""

    def __post_init__(self) -> None:
        where, names = f"reuse histogram {self.name!r}: ", ("most", "rows", "bin_lookups")
        for name in names:
            object.__setattr__(self, name, np.asarray(getattr(self, name), np.float64))
        most, rows, looked_up = self.most, self.rows, self.bin_lookups
        if most.ndim != 1 or not most.shape == rows.shape == looked_up.shape:
            raise WorkloadError(where + "bins, rows and lookups must be lists of one length")
        if not len(most) or (np.diff(most, prepend=0.0) <= 0).any():
            raise WorkloadError(where + "bins must ascend from above 0")
        if not np.isfinite((rows, looked_up)).all() or (rows < 0).any():
            raise WorkloadError(where + "rows and lookups must be finite and not negative")
        low, high = rows * self.least * (1 - 1e-9), rows * most * (1 + 1e-9)
        wrong = np.flatnonzero((looked_up < low) | (looked_up > high))
        if len(wrong) or not looked_up.sum() > 0:
            place = int(wrong[0]) if len(wrong) else 0
            raise WorkloadError(
                f"{where}{looked_up[place]:g} lookups cannot go to {rows[place]:g} rows at "
                f"{self.least[place]:g} to {most[place]:g} each"
            )

    @property
    def lookups(self) -> float:
        return float(self.bin_lookups.sum())

    @property
    def distinct_rows(self) -> float:
        return float(self.rows.sum())

    @property
    def least(self) -> Floats:
        return np.append(0.0, self.most[:-1])

    def popularity(self) -> Popularity:
        """As if the batch's rows were all there are, each as popular as it was looked up.

        Right for the batch itself and for its most used rows. Of rows that it looked up a few
        times, another batch has others: see `population`.
        """
        return Popularity(self.rows, self.bin_lookups / self.lookups)


def reuse_histogram(rows: Ints, name: str = "") -> ReuseHistogram:
    """The histogram of an index stream, `rows` `[lookups]`, in bins of powers of two."""
    if not len(rows):
        raise WorkloadError(f"index stream {name!r}: no lookups")
    counts = np.unique(rows, return_counts=True)[1]
    place = np.ceil(np.log2(counts)).astype(np.int64)
    return ReuseHistogram(
        most=2.0 ** np.arange(place.max() + 1),
        rows=np.bincount(place).astype(np.float64),
        bin_lookups=np.bincount(place, counts).astype(np.float64),
        name=name,
    )


_PER_OCTAVE = 3
_RAREST = 2.0**-4  # rows expected this often in a batch are the rarest that its histogram can show
_FREQUENT = 512.0
"""Rows looked up more often than this are as popular as they look: chance moves them by 4 %."""


def population(histogram: ReuseHistogram, table_rows: float = np.inf) -> Popularity:
    """The popularity under which independent lookups give such a histogram.

    A mixture of Poisson rates, three per octave: the non-negative weights under which rows and
    lookups per bin come closest (least squares of relative errors). Rows that a batch saw once
    stand for others that it did not see; how many there are that hardly any batch sees, it cannot
    tell. `table_rows` is a bound on the rows.

    Raises `WorkloadError` where the batch saw more rows than that.

    Source: mixtures of Poisson counts as in Good and Toulmin 1956, Efron and Thisted 1976.
    """
    from scipy.optimize import nnls
    from scipy.stats import poisson

    if table_rows < histogram.distinct_rows * (1 - 1e-9):
        raise WorkloadError(
            f"reuse histogram {histogram.name!r}: {histogram.distinct_rows:g} distinct rows of a "
            f"table of {table_rows:g}"
        )
    held = histogram.rows > 0
    columns = (histogram.least, histogram.most, histogram.rows, histogram.bin_lookups)
    least, most, rows, looked_up = (part[held] for part in columns)
    mixed = most <= _FREQUENT
    counts, rates = rows[~mixed], (looked_up / rows)[~mixed]
    if mixed.any():
        # Rates up to where counts hardly come out above the last bin.
        top = np.log2(most[mixed][-1]) - 0.5 / _PER_OCTAVE * (most[mixed][-1] > 1)
        grid = 2.0 ** np.arange(top, np.log2(_RAREST), -1.0 / _PER_OCTAVE)[::-1]
        # The mean of a Poisson count within limits is the rate times the chance of one lower.
        low, high, unit = least[mixed, None], most[mixed, None], rows[mixed].sum()
        chance = poisson.cdf(high, grid) - poisson.cdf(low, grid)
        mean = grid * (poisson.cdf(high - 1.0, grid) - poisson.cdf(low - 1.0, grid))
        parts = [chance / rows[mixed, None], mean / looked_up[mixed, None]]
        system = np.concatenate(parts) * unit
        weights = nnls(system, np.ones(len(system)))[0] * unit
        weights *= looked_up[mixed].sum() / np.dot(weights, grid)
        weights, grid = _within(weights, grid, table_rows - counts.sum())
        counts, rates = np.concatenate([weights, counts]), np.concatenate([grid, rates])
    return Popularity(counts, counts * rates / np.dot(counts, rates))


def _within(weights: Floats, rates: Floats, most_rows: float) -> tuple[Floats, Floats]:
    """The rarest rows joined into fewer and more popular ones, so that `most_rows` remain: `rates`
    ascending, lookups kept."""
    surplus = weights.sum() - most_rows
    if surplus <= 0:
        return weights, rates
    rows, lookups = np.cumsum(weights) - surplus, np.cumsum(weights * rates)
    fits = (rows > 0) & (lookups <= rows * np.append(rates[1:], np.inf))
    last = int(np.argmax(fits))
    rest = slice(last + 1, None)
    mean = lookups[last] / rows[last]
    return np.append(rows[last], weights[rest]), np.append(mean, rates[rest])

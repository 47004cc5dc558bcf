"""HugeCTR's hybrid embedding of one-hot tables: frequent rows on every rank, others spread evenly.

Frequent are the rows that a rank's samples name twice in one batch in at least 3 % of batches;
between groups of linked ranks, those for which a gradient in the all-reduce is shorter than the
exchange of all their samples. Vectors travel once each way; gradients are added to rows by atomics.
Within a group the kernels that read rows write them to where their neighbours send them on.

Source: HugeCTR/src/embeddings/hybrid_sparse_embedding.cu of NVIDIA-Merlin/HugeCTR, and
`HybridEmbeddingParam` of its samples/dlrm/dgx_a100*.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

from perfmodel.graph.lookups import Lookups
from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.batched import Batched, batched, look_up
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.parts.embeddings import stream
from perfmodel.workload.parts.exchange import even_all_to_all
from perfmodel.workload.run import Run
from perfmodel.workload.tables import Table, expected_unique_rows, popular_share, rows_above

TWICE_FRAC = 0.03
"""`p_dup_max` of dgx_a100.py."""
REDUCE_OVER_EXCHANGE = 130e9 / 25e9
"""The rates at which dgx_a100_8x8x1120_ib_nvlink.py lets rows be chosen."""


@dataclass(frozen=True)
class Split:
    """Of all tables together: rows on every rank, and per sample the vectors from them and others;
    distinct other rows in the global batch."""

    frequent_rows: int
    frequent_vectors: float
    other_rows: int
    other_vectors: float
    other_unique_rows: float


def split_of(run: Run) -> Split:
    """Which rows every rank holds."""
    least = _twice() / run.batch
    if run.groups > 1:
        least = run.ranks / REDUCE_OVER_EXCHANGE / run.global_batch
    tables = run.workload.tables
    rows = [rows_above(table, least) for table in tables]
    shares = [
        float(popular_share(table.rows, table.alpha, count))
        for table, count in zip(tables, rows, strict=True)
    ]
    unique = sum(
        _others(table, count, share, run.global_batch)
        for table, count, share in zip(tables, rows, shares, strict=True)
    )
    return Split(
        sum(rows),
        sum(shares),
        sum(table.rows for table in tables) - sum(rows),
        len(tables) - sum(shares),
        unique,
    )


def _others(table: Table, frequent: int, share: float, batch: int) -> float:
    """Distinct rows that `batch` samples name beside the `frequent` ones."""
    every = table.unique_rows(batch)
    if not frequent:
        return every
    among = expected_unique_rows(frequent, table.alpha, max(1, round(batch * share)))
    return max(every - among, 0.0)


def _twice() -> float:
    """How often a row is named in a batch on average, if twice or more in `TWICE_FRAC` of them."""
    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _repeated(middle) < TWICE_FRAC else (low, middle)
    return low


def _repeated(mean: float) -> float:
    """Of a Poisson variable, the probability of two or more."""
    return 1 - exp(-mean) * (1 + mean)


class Hybrid:
    """See `embeddings.Embeddings`."""

    def __init__(self, r: Recorder, run: Run, dtype: str) -> None:
        self.run, self.dtype = run, dtype
        found = split_of(run)
        self.dim = run.workload.dim
        self.sent = max(1, round(run.batch * found.other_vectors))
        self.kept = max(1, round(run.batch * found.frequent_vectors))
        others = max(1, found.other_rows // run.ranks)
        self.frequent_rows = max(1, found.frequent_rows)
        unique = found.other_unique_rows / run.ranks
        self.others = _gathered(r, run, others, self.sent, min(unique, self.sent))
        self.frequent = _gathered(
            r, run, self.frequent_rows, self.kept, min(self.frequent_rows, self.kept)
        )
        self.out = r.tensor((run.batch, len(run.workload.tables), self.dim), dtype)

    def look_up(self, r: Recorder) -> None:
        """Read the other rows and send them to the samples' ranks, over links to their places."""
        vectors = look_up(r, self.others, *_keys(r, self.sent), self.sent, self.dtype)
        if self.run.groups == 1:
            received = _part(r, self.out, self.sent)
            if self.run.ranks > 1:
                even_all_to_all(r, vectors, received, self.run.ranks)
            return
        self.received = r.tensor(vectors.shape, self.dtype)
        even_all_to_all(r, vectors, self.received, self.run.groups, nodes=self.run.groups)

    def local(self, r: Recorder) -> None:
        """Frequent rows of the own samples, to their places."""
        look_up(r, self.frequent, *_keys(r, self.kept), self.kept, self.dtype)

    def arrive(self, r: Recorder) -> Tensor:
        _index(r, self.run)
        if self.run.groups > 1:
            stream(r, "network_forward", (self.received,), _part(r, self.out, self.sent))
        return self.out

    def send_back(self, r: Recorder, gradient: Tensor) -> None:
        self.gradient = gradient
        self.returned = _part(r, gradient, self.sent)
        if self.run.groups == 1:
            if self.run.ranks > 1:
                received = r.tensor(self.returned.shape, self.dtype)
                even_all_to_all(r, self.returned, received, self.run.ranks)
                self.returned = received
            return
        packed, returned = (r.tensor((self.sent, self.dim), self.dtype) for _ in range(2))
        stream(r, "network_backward", (self.returned,), packed)
        even_all_to_all(r, packed, returned, self.run.groups, nodes=self.run.groups)
        self.returned = returned

    def replicated_gradient(self, r: Recorder) -> Tensor | None:
        self.sums = r.tensor((self.frequent_rows, self.dim), self.dtype)
        _add_rows(r, self.sums, _part(r, self.gradient, self.kept))
        return self.sums

    def learn(self, r: Recorder) -> None:
        rows = _part(r, self.others.weights, self.others.weights.elements // self.dim)
        _add_rows(r, rows, self.returned)
        weights = _part(r, self.frequent.weights, self.frequent_rows)
        stream(r, "update_frequent", (self.sums, weights), weights)


def _gathered(r: Recorder, run: Run, rows: int, vectors: int, unique: float) -> Batched:
    """`rows` that are read one by one, `vectors` of them in a batch, `unique` of these distinct."""
    implementation, dim = run.workload.implementation, run.workload.dim
    looked_up = Lookups((rows,), (dim,), (vectors,), (1.0,), (unique,), (0.0,))
    return batched(
        r,
        (rows,),
        (dim,),
        dtype=implementation.table_precision,
        optimizer=run.workload.training.table_optimizer,
        is_modern=True,
        attributes=looked_up.to_attributes(),
    )


def _index(r: Recorder, run: Run) -> None:
    """Which of the next global batch's rows this rank holds: every rank looks at all of them.

    On a stream beside the step in that software; here where it waits for rows.
    """
    samples = run.global_batch * len(run.workload.tables)
    rows = sum(table.rows for table in run.workload.tables)
    keys, places = (r.tensor((samples,), dtype) for dtype in ("int32", "int64"))
    stream(r, "unique_categories", (keys,), keys)
    location = r.tensor((rows, 1), "int64")
    r.leaf("aten::index_select", (location, 0, keys), r.view(places, (samples, 1), (1, 1)))
    stream(r, "model_indices", (places,), keys)


def _add_rows(r: Recorder, rows: Tensor, vectors: Tensor) -> None:
    """`vectors` added to the `rows` that each belongs to."""
    places = r.tensor((vectors.shape[0],), "int64")
    r.leaf("aten::index_add_", (rows, 0, places, vectors, 1), rows)


def _keys(r: Recorder, vectors: int) -> tuple[Tensor, Tensor]:
    """Keys and offsets, which the step before has brought."""
    return r.tensor((vectors,), "int64"), r.tensor((vectors + 1,), "int64")


def _part(r: Recorder, x: Tensor, vectors: int) -> Tensor:
    """`vectors` of those that `x` holds."""
    dim = x.shape[-1] if len(x.shape) > 1 else x.elements // vectors
    return r.view(x, (vectors, dim), (dim, 1))

"""HugeCTR's hybrid embedding of one-hot tables: frequent rows are with every rank, others spread.

Within one group of linked ranks frequent are the rows that a rank's samples name twice in one batch
in 3 % of batches; each has an owner, which brings it to the ranks that name it and fetches their
sums of its gradients, as the owners of other rows do. Between groups: those for which a gradient in
the all-reduce is shorter than the exchange of all their samples; every rank holds them, vectors of
the others travel once each way, by the neighbours that send them on. Kernels that write to and read
from other ranks over links are timed as exchanges. Gradients are added to rows by atomics. Which
rows are whose is computed ahead, and cached for evaluations, as since v1.1 of MLPerf.

Source: NVIDIA-Merlin/HugeCTR at 02188f4, src/embeddings/hybrid_embedding/*.cu and
hybrid_sparse_embedding.cu; release notes of v3.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

from perfmodel.embedding.cache import split_hot
from perfmodel.ops.graph import Tensor
from perfmodel.ops.lookups import Lookups
from perfmodel.ops.spec import QUANTISED
from perfmodel.workload.eager.embedding_bag import Batched, batched, brought_keys, look_up
from perfmodel.workload.eager.recorder import DENSE, Recorder
from perfmodel.workload.step import Run

TWICE_FRAC = 0.03
"""`p_dup_max` of NVIDIA's submissions on one node (training_results_v2.0 and v2.1, dgx_a100.py and
dgx_h100.py)."""
EXCHANGE_OVER_REDUCE = 0.5 * 190e9 / 130e9
"""The rates, and their efficiency, at which NVIDIA's submission on 14 nodes lets rows be chosen
(training_results_v1.1, dgx_a100_14x8x640.py)."""


@dataclass(frozen=True)
class Split:
    """Of all tables together: rows on every rank, and per sample the vectors from them and others;
    distinct frequent rows that a rank's samples name, and distinct others in the global batch."""

    frequent_rows: int
    frequent_vectors: float
    frequent_unique_rows: float
    other_rows: int
    other_vectors: float
    other_unique_rows: float


def split_of(run: Run) -> Split:
    """Which rows every rank holds: those at or above a least probability."""
    own, every, tables = run.batch, run.global_batch, run.workload.tables
    if run.groups == 1:
        least = sqrt(2 * TWICE_FRAC / (own * max(own - 1, 1)))
    else:
        least = run.groups * run.groups / (run.groups - 1) * EXCHANGE_OVER_REDUCE / every
    rows = vectors = named = others = 0.0
    for table in tables:
        use = table.popularity()
        is_frequent = use.chance >= least
        count, share = float(use.rows[is_frequent].sum()), float(use.share[is_frequent].sum())
        frequent = split_hot(use, count)[0]
        rows, vectors = rows + count, vectors + share
        distinct = table.unique_rows(every)
        if frequent is not None:
            named += float(frequent.distinct_rows(max(1, round(own * share))))
            distinct -= float(frequent.distinct_rows(max(1, round(every * share))))
        others += max(distinct, 0.0)
    left = sum(table.rows for table in tables) - round(rows)
    return Split(round(rows), vectors, named, left, len(tables) - vectors, others)


class Hybrid:
    """One-hot tables, as `Collection`. Of ranks that links join, frequent rows have owners, and
    copies where they are named; of several groups, every rank holds them, and their gradients are
    reduced."""

    launched: Mapping[str, str] = {}
    reduce_group = DENSE
    returned: Tensor
    """Gradients of the own rows that are not frequent, from the samples' ranks."""

    def __init__(self, r: Recorder, run: Run, dtype: str) -> None:
        self.run, self.dtype, self.split = run, dtype, split_of(run)
        software, split = run.workload.implementation, self.split
        self.is_linked = run.groups == 1
        self.dim, self.stored = run.workload.dim, software.table_precision
        self.sent = max(1, round(run.batch * split.other_vectors))
        self.kept = max(1, round(run.batch * split.frequent_vectors))
        self.frequent_rows = max(1, split.frequent_rows)
        unique, held = split.other_unique_rows / run.ranks, max(1, split.other_rows // run.ranks)
        self.others = self._gathered(r, self.stored, held, self.sent, unique)
        self.out = r.tensor((run.batch, len(run.workload.tables), self.dim), dtype)

    def look_up(self, r: Recorder) -> None:
        run, dtype = self.run, self.dtype
        vectors = look_up(r, self.others, *brought_keys(r, self.sent, self.sent), self.sent, dtype)
        if not self.is_linked:
            self.received = r.tensor(vectors.shape, dtype)
            r.even_all_to_all(vectors, self.received, run.groups, nodes=run.groups)
            return
        r.even_all_to_all(vectors, _part(r, self.out, self.sent), run.ranks)
        stored = "fp16" if dtype in QUANTISED else dtype
        self._hold_frequent(r, stored)
        if run.train:  # owners bring those of their rows that the samples name
            self.rows = r.tensor((self.named, self.dim), self.stored)
            brought = r.tensor(self.rows.shape, dtype)
            r.leaf("hugectr::forward_model", (self.rows,), brought)
            copies = r.view(self.frequent.weights, brought.shape, brought.strides)
            r.even_all_to_all(brought, copies, run.ranks)

    def local(self, r: Recorder) -> None:
        if not self.is_linked:
            self._hold_frequent(r, self.stored)
            self.weights = _part(r, self.frequent.weights, self.frequent_rows)
            self._look_up_frequent(r)

    def arrive(self, r: Recorder) -> Tensor:
        if self.is_linked:
            self._look_up_frequent(r)
        else:
            r.leaf("hugectr::network_forward", (self.received,), _part(r, self.out, self.sent))
        return self.out

    def send_back(self, r: Recorder, gradient: Tensor) -> None:
        """Sums of the own samples' gradients of frequent rows: in fp32, they stay in the cache
        while the samples are added, which are read as they are."""
        run = self.run
        exact = r.tensor((self.frequent_rows, self.dim))
        reset = self.named if self.is_linked else self.frequent_rows
        r.leaf("hugectr::reset_gradients", (), _part(r, exact, reset))
        self.sums = r.tensor(exact.shape, self.dtype)
        _add_rows(r, self.sums, _part(r, gradient, self.kept))
        r.leaf("hugectr::convert_gradients", (exact,), self.sums)
        if self.is_linked:
            sums = _part(r, self.sums, self.named)
            self.fetched = r.like(sums)
            r.even_all_to_all(sums, self.fetched, run.ranks)
            self.returned = r.tensor((self.sent, self.dim), self.dtype)
            r.even_all_to_all(_part(r, gradient, self.sent), self.returned, run.ranks)
            return
        packed, self.returned = (r.tensor((self.sent, self.dim), self.dtype) for _ in range(2))
        r.leaf("hugectr::network_backward", (_part(r, gradient, self.sent),), packed)
        r.even_all_to_all(packed, self.returned, run.groups, nodes=run.groups)

    def replicated_gradient(self, r: Recorder) -> Tensor | None:
        return None if self.is_linked else self.sums

    def learn(self, r: Recorder, reduced: Tensor | None) -> None:
        if self.is_linked:
            _add_rows(r, self.rows, self.fetched)
        weights = self.others.weights
        _add_rows(r, _part(r, weights, weights.elements // self.dim), self.returned)
        # Which of a global batch's rows this rank holds: every rank looks at all of them, on a
        # stream of low priority beside the step; here where the step waits for a sum.
        tables = self.run.workload.tables
        samples = self.run.global_batch * len(tables)
        keys, places = (r.tensor((samples,), dtype) for dtype in ("int32", "int64"))
        r.leaf("hugectr::unique_categories", (keys,), keys)
        location = r.tensor((sum(table.rows for table in tables), 1), "int64")
        view = r.view(places, (samples, 1), (1, 1))
        r.leaf("aten::index_select", (location, 0, keys), view)
        r.leaf("hugectr::model_indices", (places,), keys)
        if reduced is not None:
            r.leaf("hugectr::update_frequent", (reduced, self.weights), self.weights)

    def _hold_frequent(self, r: Recorder, stored: str) -> None:
        unique = self.split.frequent_unique_rows
        self.named = max(1, round(unique))
        self.frequent = self._gathered(r, stored, self.frequent_rows, self.kept, unique)

    def _look_up_frequent(self, r: Recorder) -> None:
        keys = brought_keys(r, self.kept, self.kept)
        look_up(r, self.frequent, *keys, self.kept, self.dtype)

    def _gathered(self, r: Recorder, dtype: str, rows: int, vectors: int, unique: float) -> Batched:
        """`rows` that are read one by one, `vectors` of them in a batch, `unique` distinct."""
        about = Lookups((rows,), (self.dim,), (vectors,), (1.0,), (min(unique, vectors),), (0.0,))
        optimizer = self.run.workload.training.table_optimizer
        return batched(r, about, dtype=dtype, optimizer=optimizer)


def _add_rows(r: Recorder, rows: Tensor, vectors: Tensor) -> None:
    """`vectors` added to the `rows` that each belongs to."""
    places = r.tensor((vectors.shape[0],), "int64")
    r.leaf("hugectr::add_rows", (rows, 0, places, vectors, 1), rows)


def _part(r: Recorder, x: Tensor, vectors: int) -> Tensor:
    """`vectors` of those that `x` holds."""
    dim = x.shape[-1] if len(x.shape) > 1 else x.elements // vectors
    return r.view(x, (vectors, dim), (dim, 1))

"""HugeCTR's hybrid embedding of one-hot tables: frequent rows with every rank, others spread.

Between groups of linked ranks, every rank holds all frequent rows and their gradients join the
all-reduce; vectors of the others travel once each way, by the neighbours that send them on. Within
one group each frequent row has an owner, which brings it to the ranks that name it and fetches
their sums of its gradients, as the owners of other rows do; nothing joins the all-reduce. Kernels
that write to and read from other ranks over links are timed as exchanges. Gradients are added to
rows by atomics. Which rows are whose is computed ahead, and cached for evaluations, since v1.1 of
MLPerf; within the step before.

Source: HugeCTR/src/embeddings/hybrid_sparse_embedding.cu and hybrid_embedding/*.cu of
NVIDIA-Merlin/HugeCTR at 02188f4; its release notes of v3.3 say what came with MLPerf v1.1.
"""

from __future__ import annotations

from perfmodel.graph.lookups import Lookups
from perfmodel.graph.ops import Tensor
from perfmodel.ops.stored_rows import QUANTISED
from perfmodel.workload.eager.batched import Batched, batched, look_up
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.parts.embeddings import Embeddings, stream
from perfmodel.workload.parts.exchange import DENSE, GROUP, even_all_to_all
from perfmodel.workload.parts.hybrid_split import Split, split_of
from perfmodel.workload.run import Run


def hybrid(r: Recorder, run: Run, dtype: str) -> Embeddings:
    """The embedding as it is within one group of linked ranks, or between several."""
    return (Linked if run.groups == 1 else Networked)(r, run, dtype)


class _Hybrid:
    """What both kinds share; see `embeddings.Embeddings`."""

    returned: Tensor
    """Gradients of the own rows that are not frequent, from the samples' ranks."""

    def __init__(self, r: Recorder, run: Run, dtype: str) -> None:
        self.run, self.dtype = run, dtype
        self.is_ahead = run.workload.implementation.indices_ahead
        self.reduce_group = DENSE if self.is_ahead else GROUP
        self.split: Split = split_of(run)
        self.dim = run.workload.dim
        self.sent = max(1, round(run.batch * self.split.other_vectors))
        self.kept = max(1, round(run.batch * self.split.frequent_vectors))
        self.frequent_rows = max(1, self.split.frequent_rows)
        unique = self.split.other_unique_rows / run.ranks
        held = max(1, self.split.other_rows // run.ranks)
        stored = run.workload.implementation.table_precision
        self.others = _gathered(r, run, stored, held, self.sent, unique)
        self.out = r.tensor((run.batch, len(run.workload.tables), self.dim), dtype)

    def _read_others(self, r: Recorder) -> Tensor:
        if not self.is_ahead:
            self._compute_indices(r)
        return look_up(r, self.others, *_keys(r, self.sent), self.sent, self.dtype)

    def _reduced(self, r: Recorder, gradient: Tensor, reset_rows: int) -> Tensor:
        """Sums of the own samples' gradients of frequent rows.

        They are fp32 and stay in the cache while the samples are added, which are read as they are.
        """
        exact = r.tensor((self.frequent_rows, self.dim))
        stream(r, "reset_gradients", (), _part(r, exact, reset_rows))
        sums = r.tensor(exact.shape, self.dtype)
        _add_rows(r, sums, _part(r, gradient, self.kept))
        stream(r, "convert_gradients", (exact,), sums)
        return sums

    def _update_others(self, r: Recorder) -> None:
        weights = self.others.weights
        _add_rows(r, _part(r, weights, weights.elements // self.dim), self.returned)
        if self.is_ahead:
            self._compute_indices(r)

    def _compute_indices(self, r: Recorder) -> None:
        """Which of a global batch's rows this rank holds: every rank looks at all of them.

        Ahead, on a stream of low priority beside the step; here where the step waits for a sum.
        """
        tables = self.run.workload.tables
        samples = self.run.global_batch * len(tables)
        keys, places = (r.tensor((samples,), dtype) for dtype in ("int32", "int64"))
        stream(r, "unique_categories", (keys,), keys)
        location = r.tensor((sum(table.rows for table in tables), 1), "int64")
        found = r.view(places, (samples, 1), (1, 1))
        r.leaf("aten::index_select", (location, 0, keys), found)
        stream(r, "model_indices", (places,), keys)


class Linked(_Hybrid):
    """Of ranks that links join: frequent rows have owners, and copies where they are named."""

    def look_up(self, r: Recorder) -> None:
        run = self.run
        even_all_to_all(r, self._read_others(r), _part(r, self.out, self.sent), run.ranks)
        unique = self.split.frequent_unique_rows
        stored = "fp16" if self.dtype in QUANTISED else self.dtype
        self.copies = _gathered(r, run, stored, self.frequent_rows, self.kept, unique)
        if run.train:
            self.named = max(1, round(unique))
            self.rows = r.tensor(
                (self.named, self.dim), run.workload.implementation.table_precision
            )
            brought = r.tensor(self.rows.shape, self.dtype)
            stream(r, "forward_model", (self.rows,), brought)
            copies = r.view(self.copies.weights, brought.shape, brought.strides)
            even_all_to_all(r, brought, copies, run.ranks)

    def local(self, r: Recorder) -> None:
        pass

    def arrive(self, r: Recorder) -> Tensor:
        look_up(r, self.copies, *_keys(r, self.kept), self.kept, self.dtype)
        return self.out

    def send_back(self, r: Recorder, gradient: Tensor) -> None:
        sums = _part(r, self._reduced(r, gradient, self.named), self.named)
        self.fetched = r.tensor(sums.shape, self.dtype)
        even_all_to_all(r, sums, self.fetched, self.run.ranks)
        self.returned = r.tensor((self.sent, self.dim), self.dtype)
        even_all_to_all(r, _part(r, gradient, self.sent), self.returned, self.run.ranks)

    def replicated_gradient(self, r: Recorder) -> Tensor | None:
        return None

    def learn(self, r: Recorder, reduced: Tensor | None) -> None:
        _add_rows(r, self.rows, self.fetched)
        self._update_others(r)


class Networked(_Hybrid):
    """Of several groups of linked ranks: frequent rows on every rank, their gradients reduced."""

    def look_up(self, r: Recorder) -> None:
        vectors = self._read_others(r)
        self.received = r.tensor(vectors.shape, self.dtype)
        even_all_to_all(r, vectors, self.received, self.run.groups, nodes=self.run.groups)

    def local(self, r: Recorder) -> None:
        stored = self.run.workload.implementation.table_precision
        unique = self.split.frequent_unique_rows
        rows = _gathered(r, self.run, stored, self.frequent_rows, self.kept, unique)
        self.weights = _part(r, rows.weights, self.frequent_rows)
        look_up(r, rows, *_keys(r, self.kept), self.kept, self.dtype)

    def arrive(self, r: Recorder) -> Tensor:
        stream(r, "network_forward", (self.received,), _part(r, self.out, self.sent))
        return self.out

    def send_back(self, r: Recorder, gradient: Tensor) -> None:
        self.sums = self._reduced(r, gradient, self.frequent_rows)
        packed, self.returned = (r.tensor((self.sent, self.dim), self.dtype) for _ in range(2))
        stream(r, "network_backward", (_part(r, gradient, self.sent),), packed)
        even_all_to_all(r, packed, self.returned, self.run.groups, nodes=self.run.groups)

    def replicated_gradient(self, r: Recorder) -> Tensor | None:
        return self.sums

    def learn(self, r: Recorder, reduced: Tensor | None) -> None:
        self._update_others(r)
        assert reduced is not None
        stream(r, "update_frequent", (reduced, self.weights), self.weights)


def _gathered(r: Recorder, run: Run, dtype: str, rows: int, vectors: int, unique: float) -> Batched:
    """`rows` that are read one by one, `vectors` of them in a batch, `unique` of these distinct."""
    dim = run.workload.dim
    looked_up = Lookups((rows,), (dim,), (vectors,), (1.0,), (min(unique, vectors),), (0.0,))
    return batched(
        r,
        (rows,),
        (dim,),
        dtype=dtype,
        optimizer=run.workload.training.table_optimizer,
        is_modern=True,
        attributes=looked_up.to_attributes(),
    )


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

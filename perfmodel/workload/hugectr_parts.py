"""HugeCTR's hybrid embedding of one-hot tables, and layers whose elementwise work is fused.

Frequent rows are with every rank, others spread. Within one group of linked ranks frequent are the
rows that a rank's samples name twice in one batch in 3 % of batches; each has an owner, which
brings it to the ranks that name it and fetches their sums of its gradients, as the owners of other
rows do. Between groups: those for which a gradient in the all-reduce is shorter than the exchange
of all their samples; every rank holds them, vectors of the others travel once each way, by the
neighbours that send them on. Kernels that write to and read from other ranks over links are timed
as exchanges. Gradients are added to rows by atomics. Which rows are whose is computed ahead, and
cached for evaluations, since v1.1 of MLPerf; within the step before.

Source: HugeCTR/src/embeddings/hybrid_embedding/*.cu, hybrid_sparse_embedding.cu and HugeCTR/src/
layers (`multi_cross_layer.cu`, `interaction_layer.cu`, fully connected layers with bias and ReLU in
epilogues) of NVIDIA-Merlin/HugeCTR at 02188f4; release notes of v3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from perfmodel.embedding.cache import split_hot
from perfmodel.ops.dtypes import QUANTISED
from perfmodel.ops.graph import Tensor
from perfmodel.ops.read.attributes import Lookups
from perfmodel.workload.collectives import DENSE, GROUP, even_all_to_all
from perfmodel.workload.dense import Cross, Layer
from perfmodel.workload.eager.arithmetic import mm
from perfmodel.workload.eager.recorder import Gradients, Recorder
from perfmodel.workload.eager.table_batched import Batched, batched, look_up
from perfmodel.workload.eager.tensors import t
from perfmodel.workload.step import Run


def streaming_kernel(r: Recorder, name: str, inputs: tuple[Tensor, ...], *outputs: Tensor) -> None:
    """One kernel of HugeCTR that moves its operands once."""
    r.leaf(f"hugectr::{name}", inputs, *outputs)


DOT = "hugectr::interaction"
JOIN = "hugectr::concat"
CROSS = "hugectr::multi_cross"


def fused_mlp(r: Recorder, x: Tensor, stack: Sequence[Layer], *, last: str) -> Tensor:
    """`x` through the layers: each one matrix product with bias and ReLU in its epilogue.

    `last` (`relu none`) is what ends the last layer.
    """
    for number, layer in enumerate(stack, 1):
        x = _fused_layer(r, x, layer, last if number == len(stack) else "relu")
    return x


def _fused_layer(r: Recorder, x: Tensor, layer: Layer, ending: str) -> Tensor:
    out = _product(r, x, layer, f"bias_{ending}")
    wants_x = r.needs_gradient(x)

    def backward(gradient: Tensor) -> Gradients:
        """Two products: the bias and the ReLU mask ride along."""
        of_weight = mm(r, t(r, gradient), x)
        of_bias = r.tensor((layer.weight.shape[0],), gradient.dtype)
        return [mm(r, gradient, layer.weight) if wants_x else None, of_weight, of_bias]

    return r.track("fused_layer_backward", (x, layer.weight, layer.bias), out, backward)


def fused_interaction(r: Recorder, features: Tensor, sparse: Tensor, dot_width: int) -> Tensor:
    """Of features `[b, d]` and sparse `[b, t, d]` the dot interaction `[b, dot_width]`: one kernel
    multiplies all pairs and keeps a half; with a width of 0, both in one row."""
    name, width = DOT, dot_width
    if not width:
        name, width = JOIN, (sparse.elements + features.elements) // sparse.shape[0]
    both = (features, sparse)
    out = r.made(name, both, (sparse.shape[0], width), sparse.dtype)

    def backward(gradient: Tensor) -> Gradients:
        """One kernel, from the gradient (of products with both inputs) to gradients in places."""
        made = tuple(map(r.like, both))
        r.leaf(f"{name}_backward", (gradient, *(both if dot_width else ())), made)
        return made

    return r.track(f"{name}_backward", both, out, backward)


def fused_cross(r: Recorder, x: Tensor, crosses: Sequence[Cross]) -> Tensor:
    """Low-rank cross layers: two products each, and one kernel for x0 * high + x."""
    first, kept = x, []
    for layer in crosses:
        shape, down = (x.shape[0], layer.down.shape[0]), _transposed(r, layer.down)
        low = r.made("aten::mm", (x, down), shape, x.dtype)
        high = _product(r, low, layer.up, "bias")
        kept.append((layer, x, low, high))
        x = r.made("aten::addcmul", (x, first, high, 1), x.shape, x.dtype)
    weights = [part for each in crosses for part in (each.down, each.up.weight, each.up.bias)]
    node = "hugectr::multi_cross_backward"
    return r.track(node, (first, *weights), x, lambda g: _cross_backward(r, first, kept, g))


Kept = Sequence[tuple[Cross, Tensor, Tensor, Tensor]]
"""Per cross layer its parameters, its input and what both products made."""


def _cross_backward(r: Recorder, first: Tensor, kept: Kept, gradient: Tensor) -> list[Tensor]:
    """Per layer one kernel for two products with what came, and four matrix products; what comes is
    added to the gradient of a layer's input in the epilogue of the last of them."""
    total = r.made("hugectr::zero", (), first.shape, first.dtype)
    made: list[Tensor] = []
    for layer, x, low, high in reversed(kept):
        of_high, summed = (r.tensor(first.shape, first.dtype) for _ in range(2))
        r.leaf(f"{CROSS}_products", (gradient, first, high, total), of_high, summed)
        total = summed
        bias = r.tensor(layer.up.bias.shape, first.dtype)
        of_up = mm(r, t(r, of_high), low)
        of_low = mm(r, of_high, layer.up.weight)
        of_down = mm(r, t(r, of_low), x)
        gradient = mm(r, of_low, layer.down)
        made = [of_down, of_up, bias, *made]
    out = r.made("aten::add", (total, gradient, 1), first.shape, first.dtype)
    return [out, *made]


def fused_loss(r: Recorder, logits: Tensor, labels: Tensor) -> Tensor:
    """Loss and its gradient at once."""
    out = r.made("aten::binary_cross_entropy", (logits, labels, None, 1), ())
    return r.track("fused_loss_backward", (logits,), out, lambda _: [r.like(logits)])


def _product(r: Recorder, x: Tensor, layer: Layer, epilogue: str) -> Tensor:
    shape = (x.shape[0], layer.weight.shape[0])
    inputs = (layer.bias, x, _transposed(r, layer.weight), 1, 1, False)
    about = {"epilogue": epilogue}
    return r.made("aten::_addmm_activation", inputs, shape, x.dtype, about=about)


def _transposed(r: Recorder, x: Tensor) -> Tensor:
    return r.view(x, x.shape[::-1], x.strides[::-1])


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
    if run.groups == 1:
        least = sqrt(2 * TWICE_FRAC / (run.batch * max(run.batch - 1, 1)))
    else:
        crossing = run.groups * run.groups / (run.groups - 1)
        least = crossing * EXCHANGE_OVER_REDUCE / run.global_batch
    own, every = run.batch, run.global_batch
    rows = vectors = named = others = 0.0
    for table in run.workload.tables:
        use = table.popularity()
        is_frequent = use.chance >= least
        count, share = use.rows[is_frequent].sum(), float(use.share[is_frequent].sum())
        frequent = split_hot(use, float(count))[0]
        rows, vectors = rows + float(count), vectors + share
        distinct = table.unique_rows(every)
        if frequent is not None:
            named += float(frequent.distinct_rows(max(1, round(own * share))))
            distinct -= float(frequent.distinct_rows(max(1, round(every * share))))
        others += max(distinct, 0.0)
    tables = run.workload.tables
    left = sum(table.rows for table in tables) - round(rows)
    return Split(round(rows), vectors, named, left, len(tables) - vectors, others)


class _Hybrid:
    """What both kinds share. As `hugectr.Collection`, each looks rows up and starts their exchange,
    works on the `local` rows, has all `arrive`; `send_back` starts on the way of gradients,
    `replicated_gradient` is what all ranks add up, `learn` updates the rows."""

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
        return look_up(
            r, self.others, *brought_keys(r, self.sent, self.sent), self.sent, self.dtype
        )

    def _reduced(self, r: Recorder, gradient: Tensor, reset_rows: int) -> Tensor:
        """Sums of the own samples' gradients of frequent rows: in fp32, they stay in the cache
        while the samples are added, which are read as they are."""
        exact = r.tensor((self.frequent_rows, self.dim))
        streaming_kernel(r, "reset_gradients", (), _part(r, exact, reset_rows))
        sums = r.tensor(exact.shape, self.dtype)
        _add_rows(r, sums, _part(r, gradient, self.kept))
        streaming_kernel(r, "convert_gradients", (exact,), sums)
        return sums

    def _update_others(self, r: Recorder) -> None:
        weights = self.others.weights
        _add_rows(r, _part(r, weights, weights.elements // self.dim), self.returned)
        if self.is_ahead:
            self._compute_indices(r)

    def _compute_indices(self, r: Recorder) -> None:
        """Which of a global batch's rows this rank holds: every rank looks at all of them. Ahead,
        on a stream of low priority beside the step; here where the step waits for a sum."""
        tables = self.run.workload.tables
        samples = self.run.global_batch * len(tables)
        keys, places = (r.tensor((samples,), dtype) for dtype in ("int32", "int64"))
        streaming_kernel(r, "unique_categories", (keys,), keys)
        location = r.tensor((sum(table.rows for table in tables), 1), "int64")
        view = r.view(places, (samples, 1), (1, 1))
        r.leaf("aten::index_select", (location, 0, keys), view)
        streaming_kernel(r, "model_indices", (places,), keys)


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
            streaming_kernel(r, "forward_model", (self.rows,), brought)
            copies = r.view(self.copies.weights, brought.shape, brought.strides)
            even_all_to_all(r, brought, copies, run.ranks)

    def local(self, r: Recorder) -> None:
        pass

    def arrive(self, r: Recorder) -> Tensor:
        look_up(r, self.copies, *brought_keys(r, self.kept, self.kept), self.kept, self.dtype)
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
        look_up(r, rows, *brought_keys(r, self.kept, self.kept), self.kept, self.dtype)

    def arrive(self, r: Recorder) -> Tensor:
        streaming_kernel(r, "network_forward", (self.received,), _part(r, self.out, self.sent))
        return self.out

    def send_back(self, r: Recorder, gradient: Tensor) -> None:
        self.sums = self._reduced(r, gradient, self.frequent_rows)
        packed, self.returned = (r.tensor((self.sent, self.dim), self.dtype) for _ in range(2))
        streaming_kernel(r, "network_backward", (_part(r, gradient, self.sent),), packed)
        even_all_to_all(r, packed, self.returned, self.run.groups, nodes=self.run.groups)

    def replicated_gradient(self, r: Recorder) -> Tensor | None:
        return self.sums

    def learn(self, r: Recorder, reduced: Tensor | None) -> None:
        self._update_others(r)
        assert reduced is not None
        streaming_kernel(r, "update_frequent", (reduced, self.weights), self.weights)


def _gathered(r: Recorder, run: Run, dtype: str, rows: int, vectors: int, unique: float) -> Batched:
    """`rows` that are read one by one, `vectors` of them in a batch, `unique` of these distinct."""
    dim = run.workload.dim
    looked_up = Lookups((rows,), (dim,), (vectors,), (1.0,), (min(unique, vectors),), (0.0,))
    optimizer = run.workload.training.table_optimizer
    return batched(r, looked_up, dtype=dtype, optimizer=optimizer)


def _add_rows(r: Recorder, rows: Tensor, vectors: Tensor) -> None:
    """`vectors` added to the `rows` that each belongs to."""
    places = r.tensor((vectors.shape[0],), "int64")
    r.leaf("hugectr::add_rows", (rows, 0, places, vectors, 1), rows)


def brought_keys(r: Recorder, lookups: int, bags: int) -> tuple[Tensor, Tensor]:
    """Keys and offsets, which the step before has brought."""
    return r.tensor((lookups,), "int64"), r.tensor((bags + 1,), "int64")


def _part(r: Recorder, x: Tensor, vectors: int) -> Tensor:
    """`vectors` of those that `x` holds."""
    dim = x.shape[-1] if len(x.shape) > 1 else x.elements // vectors
    return r.view(x, (vectors, dim), (dim, 1))

"""HugeCTR as in NVIDIA's MLPerf submissions: its embeddings, fused layers, a graph.

What it stands for: bias, ReLU and their gradients in the epilogues of the matrix products; while
rows are exchanged the bottom MLP runs, forward and backward; dense gradients and those of
replicated rows in one all-reduce, beside the update of the other rows; one kernel for all dense
weights; the next batch is brought beside the step. It is a model of that software, not a record of
it, on one stream for kernels.

Tables are an embedding collection, launched outside the graph: pooled partial sums travel, also
those of bags without a row in the part; where there are several groups of linked ranks, they are
added up within a group before they do; sums of gradients are written per distinct row, in the
layers' precision, then applied. Or tables are a `hybrid` embedding, in the graph.

Source: NVIDIA-Merlin/HugeCTR at 02188f4: HugeCTR/embedding, src/pybind/model_pipeline.cpp,
src/embeddings/hybrid_embedding/*.cu, hybrid_sparse_embedding.cu and src/layers
(`multi_cross_layer.cu`, `interaction_layer.cu`, fully connected layers); release notes of v3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from perfmodel.ops.graph import BACKWARD, INPUT, LAUNCHED_ALONE, OPTIMIZER, Tensor
from perfmodel.workload.eager.calls import Gradients
from perfmodel.workload.eager.dense import COMPUTE, Cross, Layer, dense_layers, mm
from perfmodel.workload.eager.embedding_bag import batched, brought_keys, look_up, update
from perfmodel.workload.eager.recorder import GROUP, Recorder
from perfmodel.workload.hugectr_hybrid import Hybrid
from perfmodel.workload.jagged import PREFETCHED
from perfmodel.workload.settings import implementation
from perfmodel.workload.step import Run
from perfmodel.workload.tables import FP32_BYTES, Table, lookups, total_lookups
from perfmodel.workload.training import backward, optimizer_step


@implementation(
    "hugectr",
    mixed_dims=False,
    layer_precisions=False,
    int32_keys=False,
    groups_by_node=True,
    hashes_rows=True,
)
def hugectr(r: Recorder, run: Run) -> None:
    """One step of one rank."""
    software = run.workload.implementation
    r.is_bare = True
    dtype = COMPUTE[software.precision]
    layers = dense_layers(r, run.workload, dtype)
    is_hybrid = software.sharding == "hybrid" and run.ranks > 1
    embeddings = (Hybrid if is_hybrid else Collection)(r, run, software.exchange_precision)
    with r.during(INPUT), r.with_attributes(PREFETCHED if software.prefetch else {}):
        width = run.workload.model.dense_features
        dense = r.send_from_host((run.batch, width), "fp32", pinned=True)
        labels = r.send_from_host((run.batch, 1), "fp32", pinned=True)
        r.send_from_host((total_lookups(run.workload.tables, run.batch),), "int32", pinned=True)
    if software.prefetch:
        dense, labels = r.like(dense), r.like(labels)
    weights = layers.parameters
    if run.workload.training.dense_optimizer != "sgd" and dtype != "fp32":
        copies = r.tensor((_elements(weights),), dtype)
        r.leaf("hugectr::convert_weights", (r.tensor(copies.shape),), copies)
    with r.with_attributes(embeddings.launched):
        embeddings.look_up(r)
        embeddings.local(r)
    features = _fused_mlp(r, r.to_dtype(dense, dtype), layers.bottom, last="relu")
    with r.with_attributes(embeddings.launched):
        sparse = embeddings.arrive(r)
    r.parameter(sparse)
    is_dot = run.workload.interaction.kind == "dot"
    joined = _interaction(r, features, sparse, run.workload.top_width if is_dot else 0)
    if not is_dot:
        joined = _crossed(r, joined, layers.crosses)
    output = _fused_mlp(r, joined, layers.top, last="none")
    if run.train:  # the loss and its gradient at once
        loss = r.made("aten::binary_cross_entropy", (output, labels, None, 1), ())
        r.track("fused_loss_backward", (output,), loss, lambda _: [r.like(output)])
        _learn(r, run, loss, weights, sparse, embeddings)


def _learn(
    r: Recorder,
    run: Run,
    loss: Tensor,
    weights: Sequence[Tensor],
    sparse: Tensor,
    embeddings: Collection | Hybrid,
) -> None:
    """Backward, one all-reduce, the update of rows beside it and then of dense weights."""

    def arrived(r: Recorder, parameter: Tensor, gradient: Tensor) -> None:
        if parameter.tensor_id == sparse.tensor_id:
            with r.with_attributes(embeddings.launched):
                embeddings.send_back(r, gradient)

    if run.workload.implementation.unmodelled_sample_bytes:
        count = run.workload.implementation.unmodelled_sample_bytes // FP32_BYTES
        moved = r.tensor((run.batch, count))
        r.leaf("hugectr::unmodelled", (moved,), r.tensor(moved.shape))
    by_tensor = backward(r, loss, arrived)
    gradients = [by_tensor[weight.tensor_id] for weight in weights]
    with r.during(BACKWARD), r.with_attributes(embeddings.launched):
        sums = embeddings.replicated_gradient(r)
        if run.ranks > 1:
            count = _elements(gradients) + (0 if sums is None else sums.elements)
            reduced = r.tensor((count,), gradients[0].dtype)
            group = embeddings.reduce_group
            r.all_reduce(reduced, run.ranks, in_network=run.groups > 1, group=group)
            sums = None if sums is None else r.view(reduced, sums.shape, sums.strides)
    with r.during(OPTIMIZER), r.with_attributes(embeddings.launched):
        embeddings.learn(r, sums)
        if run.ranks > 1:
            gradients = [r.view(reduced, x.shape, x.strides) for x in gradients]
        masters = [r.tensor(weight.shape) for weight in weights]
        optimizer_step(r, run.workload.training.dense_optimizer, "fused", masters, gradients)


def _elements(tensors: Sequence[Tensor]) -> int:
    return sum(x.elements for x in tensors)


class Collection:
    """One rank's embedding collection in a step; its functions in the order in which they run."""

    reduce_group = GROUP
    """The process group of the all-reduce."""
    launched = LAUNCHED_ALONE
    """How: a graph holds the layers alone (`network_graph` of model_pipeline.cpp)."""

    def __init__(self, r: Recorder, run: Run, dtype: str) -> None:
        self.run, self.dtype = run, dtype
        tables = run.tables or (Table(1, run.workload.dim, 1e-3),)  # a rank without takes part
        stored = run.workload.implementation.table_precision
        optimizer = run.workload.training.table_optimizer
        fused = partial(batched, r, dtype=stored, optimizer=optimizer)
        self.tables = fused(lookups(tables, run.global_batch))
        self.replicas = fused(lookups(run.replicas, run.batch)) if run.replicas else None
        count = total_lookups(tables, run.global_batch)
        # The step before has brought them (`i64_input_key` is off).
        self.keys = brought_keys(r, count, run.global_batch * len(tables))
        if self.replicas is not None:
            count = total_lookups(run.replicas, run.batch)
            self.own_keys = brought_keys(r, count, run.batch * len(run.replicas))
        near = run.linked if run.groups > 1 else 1  # ranks that have parts of the same tables
        dims = [table.dim for table in run.workload.tables]
        places = run.plan.shards[::near]
        self.widths = tuple(sum(dims[shard.table] for shard in own) for own in places)
        self.own = self.widths[run.rank // near]

    def look_up(self, r: Recorder) -> None:
        run = self.run
        keys, bags = self.keys
        # Those of the next batch, by rank, then by table: in turn, as they fill the device beside a
        # step's own. Source: embedding/data_distributor, sparse_data_distribution_op_impl.cu.
        for each in (*(keys,) * 5, *(bags,) * 4) if run.ranks > 1 else ():
            r.leaf("hugectr::distribute_keys", (each,), r.like(each))
        r.leaf("hugectr::places_of_rows", (keys,), r.tensor(keys.shape, "int64"))
        rows = look_up(r, self.tables, *self.keys, run.global_batch, self.dtype)
        self.received = self._received(r)
        if run.ranks == 1:
            self.received = rows
        elif run.groups == 1:
            r.even_all_to_all(rows, self.received, run.ranks)
        else:
            summed = r.tensor((run.batch * run.groups, self.own), self.dtype)
            r.linked_collective("reduce_scatter", rows, summed, run.linked)
            r.even_all_to_all(summed, self.received, run.groups, nodes=run.groups)

    def local(self, r: Recorder) -> None:
        if self.replicas is not None:
            look_up(r, self.replicas, *self.own_keys, self.run.batch, self.dtype)

    def arrive(self, r: Recorder) -> Tensor:
        workload = self.run.workload
        out = r.tensor((self.run.batch, len(workload.tables), workload.dim), self.dtype)
        r.leaf("hugectr::network_forward", (self.received,), self._share(r, out))
        return out

    def send_back(self, r: Recorder, gradient: Tensor) -> None:
        run = self.run
        self.gradient = gradient
        spread = self._received(r)
        r.leaf("hugectr::network_backward", (self._share(r, gradient),), spread)
        self.returned = r.tensor((run.global_batch, self.own), self.dtype)
        if run.ranks == 1:
            self.returned = spread
        elif run.groups == 1:
            r.even_all_to_all(spread, self.returned, run.ranks)
        else:
            summed = r.tensor((run.batch * run.groups, self.own), self.dtype)
            r.even_all_to_all(spread, summed, run.groups, nodes=run.groups)
            r.linked_collective("all_gather", summed, self.returned, run.linked)

    def replicated_gradient(self, r: Recorder) -> Tensor | None:
        if self.replicas is None:
            return None
        replicas, x = self.run.replicas, self.gradient
        sums = r.tensor((sum(table.rows for table in replicas), x.shape[2]), self.dtype)
        own = r.view(x, (x.shape[0], len(replicas), x.shape[2]), x.strides)
        r.leaf("hugectr::local_reduce", (own, self.own_keys[0]), sums)
        return sums

    def learn(self, r: Recorder, reduced: Tensor | None) -> None:
        (keys, _), workload = self.keys, self.run.workload
        rows = round(float(self.tables.attributes["unique_rows"]))
        sums = r.tensor((rows, workload.dim), COMPUTE[workload.implementation.precision])
        r.leaf("hugectr::places_of_gradients", (keys,), r.tensor(keys.shape, "int64"))
        update(r, self.tables, *self.keys, self.returned)
        r.leaf("hugectr::row_gradients", (sums,), sums)
        if reduced is not None:
            weights = r.tensor(reduced.shape)
            r.leaf("hugectr::update_replicas", (reduced, weights), weights)

    def _received(self, r: Recorder) -> Tensor:
        """Partial sums for the own samples, of all parts of tables."""
        width = self.own if self.run.ranks == 1 else sum(self.widths)
        return r.tensor((self.run.batch, width), self.dtype)

    def _share(self, r: Recorder, x: Tensor) -> Tensor:
        """Of `[batch, tables, dim]` the tables that are exchanged."""
        count = x.shape[1] - len(self.run.replicas)
        return r.view(x, (x.shape[0], count, x.shape[2]), x.strides)


def _fused_mlp(r: Recorder, x: Tensor, stack: Sequence[Layer], *, last: str) -> Tensor:
    """`x` through the layers: each one matrix product with bias and ReLU in its epilogue.

    `last` (`relu none`) is what ends the last layer.
    """
    for layer in stack:
        x = _fused_layer(r, x, layer, f"bias_{last if layer is stack[-1] else 'relu'}")
    return x


def _fused_layer(r: Recorder, x: Tensor, layer: Layer, epilogue: str) -> Tensor:
    out, wants_x = _product(r, x, layer, epilogue), r.needs_gradient(x)

    def backward(gradient: Tensor) -> Gradients:
        """Two products: the bias and the ReLU mask ride along."""
        of_weight, of_bias = mm(r, r.t(gradient), x), r.tensor(layer.bias.shape, gradient.dtype)
        return [mm(r, gradient, layer.weight) if wants_x else None, of_weight, of_bias]

    return r.track("fused_layer_backward", (x, layer.weight, layer.bias), out, backward)


def _interaction(r: Recorder, features: Tensor, sparse: Tensor, dot_width: int) -> Tensor:
    """Of features `[b, d]` and sparse `[b, t, d]` the dot interaction `[b, dot_width]`: one kernel
    multiplies all pairs and keeps a half; with a width of 0, both in one row."""
    both, batch = (features, sparse), sparse.shape[0]
    name = "hugectr::interaction" if dot_width else "hugectr::concat"
    width = dot_width or (sparse.elements + features.elements) // batch
    out = r.made(name, both, (batch, width), features.dtype)

    def backward(gradient: Tensor) -> Gradients:
        """One kernel, from the gradient (of products with both inputs) to gradients in places."""
        made = tuple(map(r.like, both))
        r.leaf(f"{name}_backward", (gradient, *(both if dot_width else ())), made)
        return made

    return r.track(f"{name}_backward", both, out, backward)


def _crossed(r: Recorder, x: Tensor, crosses: Sequence[Cross]) -> Tensor:
    """Low-rank cross layers: two products each, and one kernel for x0 * high + x."""
    first, kept = x, []
    for layer in crosses:
        shape, down = (x.shape[0], layer.down.shape[0]), _transposed(r, layer.down)
        low = r.made("aten::mm", (x, down), shape, x.dtype)
        high = _product(r, low, layer.up, "bias")
        kept.append((layer, x, low, high))
        x = r.made("aten::addcmul", (x, first, high, 1), x.shape, x.dtype)
    weights = [part for each in crosses for part in (each.down, each.up.weight, each.up.bias)]

    def backward(gradient: Tensor) -> Gradients:
        """Per layer one kernel for two products with what came, and four matrix products; what
        comes is added to the gradient of a layer's input in the epilogue of the last of them."""
        total = r.made("hugectr::zero", (), first.shape, first.dtype)
        made: list[Tensor] = []
        for layer, x, low, high in reversed(kept):
            of_high, summed = r.like(first), r.like(first)
            inputs = (gradient, first, high, total)
            r.leaf("hugectr::multi_cross_products", inputs, of_high, summed)
            bias = r.tensor(layer.up.bias.shape, first.dtype)
            of_up, of_low = mm(r, r.t(of_high), low), mm(r, of_high, layer.up.weight)
            of_down = mm(r, r.t(of_low), x)
            total, gradient = summed, mm(r, of_low, layer.down)
            made = [of_down, of_up, bias, *made]
        return [r.made("aten::add", (total, gradient, 1), first.shape, first.dtype), *made]

    return r.track("hugectr::multi_cross_backward", (first, *weights), x, backward)


def _product(r: Recorder, x: Tensor, layer: Layer, epilogue: str) -> Tensor:
    shape = (x.shape[0], layer.weight.shape[0])
    inputs = (layer.bias, x, _transposed(r, layer.weight), 1, 1, False)
    about = {"epilogue": epilogue}
    return r.made("aten::_addmm_activation", inputs, shape, x.dtype, about=about)


def _transposed(r: Recorder, x: Tensor) -> Tensor:
    return r.view(x, x.shape[::-1], x.strides[::-1])

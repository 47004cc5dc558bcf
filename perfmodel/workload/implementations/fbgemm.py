"""The benchmark of Lin et al. 2022: DLRM with table-batched embeddings and fused SGD.

What it stands for: PyTorch of 2022 with FBGEMM of the same time, one process per GPU, batches from
pageable memory, dense SGD parameter by parameter, the loss copied to the host in every step.
Source: execution graph of DLRM_default, github.com/moderato/param.
"""

from __future__ import annotations

from perfmodel.graph.ops import INPUT, Tensor
from perfmodel.workload.eager.batched import look_up
from perfmodel.workload.eager.creation import to_device
from perfmodel.workload.eager.indexing import index_pairs, whole
from perfmodel.workload.eager.joins import cat
from perfmodel.workload.eager.losses import LOSSES
from perfmodel.workload.eager.products import bmm
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.views import detach, reshape, select, transpose
from perfmodel.workload.implementations.pytorch import module
from perfmodel.workload.parts.dense import dense_layers
from perfmodel.workload.parts.exchange import all_to_all, like
from perfmodel.workload.parts.fused import fused_tables, total_lookups
from perfmodel.workload.parts.gpu import sent
from perfmodel.workload.parts.interaction import meet, pair_indices
from perfmodel.workload.parts.mlp import COMPUTE
from perfmodel.workload.parts.training import LAST, learn
from perfmodel.workload.run import IMPLEMENTATIONS, Run


@IMPLEMENTATIONS.register("fbgemm")
def fbgemm(r: Recorder, run: Run) -> None:
    """One step of one rank."""
    workload = run.workload
    layers = dense_layers(r, workload)
    bags = run.global_batch
    tables = fused_tables(r, run, run.tables, bags, is_modern=False)
    with r.during(INPUT):
        indices = sent(r, (total_lookups(run.tables, bags),), "int32", pinned=False)
        offsets = sent(r, (len(run.tables) * bags + 1,), "int32", pinned=False)
        dense = sent(r, (run.batch, workload.model.dense_features), "fp32", pinned=False)
    dtype = COMPUTE[workload.implementation.precision]
    features = module(r, run, dense, layers.bottom, "relu", dtype)
    pooled = look_up(r, tables, indices, offsets, bags)
    sparse = _exchange(r, run, pooled)
    if workload.interaction.kind == "dot":
        joined = _dot(r, run, features, sparse)
    else:
        joined = meet(r, workload, features, sparse, layers.crosses, dtype)
    output = module(r, run, joined, layers.top, LAST[workload.training.loss], dtype)
    if not run.train:
        return
    labels = sent(r, (run.batch, 1), "fp32", pinned=False)
    loss = LOSSES[workload.training.loss](r, output, labels)
    to_device(r, detach(r, loss), "cpu")
    learn(r, run, loss, layers.modules)


def _exchange(r: Recorder, run: Run, pooled: Tensor) -> Tensor:
    """`[global batch, own dims]` -> `[batch, tables, dim]`."""
    workload = run.workload
    shape = (run.batch, len(workload.tables), workload.dim)
    if run.ranks == 1:
        return reshape(r, pooled, shape)
    width = run.batch * workload.dim
    held = [len(shards) * width for shards in run.plan.shards]
    received = like(r, pooled, sum(held))
    mine = [len(run.tables) * width] * run.ranks
    got = all_to_all(r, reshape(r, pooled, (-1,)), received, mine, held)
    return transpose(r, reshape(r, got, (shape[1], shape[0], shape[2])), 0, 1)


def _dot(r: Recorder, run: Run, features: Tensor, sparse: Tensor) -> Tensor:
    """The dot interaction, its places made on the host and sent in each step."""
    batch, dim = features.shape
    joined = cat(r, [reshape(r, features, (batch, 1, dim)), sparse], 1)
    products = bmm(r, joined, transpose(r, joined, 1, 2))
    places = pair_indices(r, run.workload, place="cpu")
    vectors = joined.shape[1]
    r.leaf("aten::tril_indices", (vectors, vectors, -1, 4, None, "cpu", False), places)
    r.begin("aten::unbind", places, 0)
    rows, columns = (select(r, places, 0, number) for number in range(2))
    r.end((rows, columns))
    return cat(r, [features, index_pairs(r, whole(r, products), rows, columns)], 1)

"""The published DLRM code: one `nn.EmbeddingBag` per table.

What it stands for: dlrm_s_pytorch.py of github.com/facebookresearch/dlrm, as recalled. Batches are
sent from pageable memory, pooled rows are concatenated, and the places of the interaction are made
on the host in each step and sent to the device.
"""

from __future__ import annotations

from perfmodel.graph.ops import INPUT, Tensor
from perfmodel.workload.eager.embedding import embedding_bag
from perfmodel.workload.eager.joins import cat
from perfmodel.workload.eager.losses import LOSSES
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.views import reshape
from perfmodel.workload.implementations.pytorch import exchange, module
from perfmodel.workload.parts.dense import dense_layers
from perfmodel.workload.parts.embedding import sparse_sgd, weights
from perfmodel.workload.parts.gpu import sent
from perfmodel.workload.parts.interaction import meet, pair_indices
from perfmodel.workload.parts.mlp import COMPUTE
from perfmodel.workload.parts.training import LAST, learn
from perfmodel.workload.run import IMPLEMENTATIONS, Run


@IMPLEMENTATIONS.register("reference")
def reference(r: Recorder, run: Run) -> None:
    """One step of one rank."""
    workload = run.workload
    layers = dense_layers(r, workload)
    tables = weights(r, run)
    with r.during(INPUT):
        dense = sent(r, (run.batch, workload.model.dense_features), "fp32", pinned=False)
        indices = _indices(r, run)
    dtype = COMPUTE[workload.implementation.precision]
    features = module(r, run, dense, layers.bottom, "relu", dtype)
    pooled = [
        embedding_bag(r, weight, flat, offsets, about)
        for weight, (flat, offsets), about in zip(tables, indices, run.attributes, strict=True)
    ]
    sparse = _together(r, pooled) if run.ranks == 1 else exchange(r, run, pooled)
    places = pair_indices(r, workload, place="cpu")
    joined = meet(r, workload, features, sparse, layers.crosses, dtype, places)
    output = module(r, run, joined, layers.top, LAST[workload.training.loss], dtype)
    if run.train:
        labels = sent(r, (run.batch, 1), "fp32", pinned=False)
        loss = LOSSES[workload.training.loss](r, output, labels)
        learn(r, run, loss, layers.modules, lambda found: sparse_sgd(r, run, tables, found))


def _indices(r: Recorder, run: Run) -> list[tuple[Tensor, Tensor]]:
    """Flat indices and offsets of each table."""
    bags = run.global_batch
    return [
        (
            sent(r, (table.lookups(bags),), "int64", pinned=False),
            sent(r, (bags,), "int64", pinned=False),
        )
        for table in run.tables
    ]


def _together(r: Recorder, pooled: list[Tensor]) -> Tensor:
    batch, dim = pooled[0].shape
    return reshape(r, cat(r, pooled, 1), (batch, len(pooled), dim))

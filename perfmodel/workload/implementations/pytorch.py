"""Plain PyTorch: one `nn.EmbeddingBag` per table, DDP, pooled all-to-all, SGD.

What it stands for: a DLRM written without embedding libraries, as `perfmodel collect trace --model
dlrm` captures it. Batches are copied into buffers on the device.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import INPUT, Tensor
from perfmodel.workload.eager.creation import copy
from perfmodel.workload.eager.joins import stack
from perfmodel.workload.eager.losses import LOSSES
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.views import reshape, transpose
from perfmodel.workload.parts.data_parallel import LABEL
from perfmodel.workload.parts.dense import dense_layers
from perfmodel.workload.parts.embedding import index_tensors, lookup, sparse_sgd, weights
from perfmodel.workload.parts.exchange import all_to_all, like
from perfmodel.workload.parts.interaction import meet
from perfmodel.workload.parts.mlp import COMPUTE, Layer, mlp
from perfmodel.workload.parts.training import LAST, learn
from perfmodel.workload.run import IMPLEMENTATIONS, Run


@IMPLEMENTATIONS.register("pytorch")
def pytorch(r: Recorder, run: Run) -> None:
    """One step of one rank."""
    workload = run.workload
    layers = dense_layers(r, workload)
    tables = weights(r, run)
    dense, labels, *indices = _load(r, run)
    dtype = COMPUTE[workload.implementation.precision]
    pooled = lookup(r, run, tables, indices)
    features = module(r, run, dense, layers.bottom, "relu", dtype)
    sparse = stack(r, pooled, 1) if run.ranks == 1 else exchange(r, run, pooled)
    joined = meet(r, workload, features, sparse, layers.crosses, dtype)
    output = module(r, run, joined, layers.top, LAST[workload.training.loss], dtype)
    if run.train:
        loss = LOSSES[workload.training.loss](r, output, labels)
        learn(r, run, loss, layers.modules, lambda found: sparse_sgd(r, run, tables, found))


def _load(r: Recorder, run: Run) -> list[Tensor]:
    """Copy a batch into the buffers that the step reads: features, labels, indices."""
    buffers = [
        r.tensor((run.batch, run.workload.model.dense_features)),
        r.tensor((run.batch, 1)),
        *index_tensors(r, run),
    ]
    with r.during(INPUT):
        for buffer in buffers:
            source = r.tensor(buffer.shape, buffer.dtype, place="cpu")
            copy(r, buffer, source, non_blocking=True)
    return buffers


def module(
    r: Recorder, run: Run, x: Tensor, stack: Sequence[Layer], last: str, dtype: str
) -> Tensor:
    """An MLP, wrapped by DDP where there are several ranks."""
    if run.ranks == 1:
        return mlp(r, x, stack, last=last, dtype=dtype)
    with r.label(LABEL):
        return mlp(r, x, stack, last=last, dtype=dtype)


def exchange(r: Recorder, run: Run, pooled: Sequence[Tensor]) -> Tensor:
    """Pooled rows of own tables for the global batch -> of all tables for the own batch."""
    dim, ranks = run.workload.dim, run.ranks
    each = [reshape(r, rows, (ranks, run.batch, -1)) for rows in pooled]
    sent = stack(r, each, 1)
    width = run.batch * dim
    held = [len(shards) * width for shards in run.plan.shards]
    received = like(r, sent, sum(held))
    mine = [len(pooled) * width] * ranks
    got = all_to_all(r, reshape(r, sent, (-1,)), received, mine, held)
    tables = reshape(r, got, (len(run.workload.tables), run.batch, -1))
    return transpose(r, tables, 0, 1)

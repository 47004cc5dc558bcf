"""Plain PyTorch: one `nn.EmbeddingBag` per table, DDP, pooled all-to-all, SGD.

What it stands for: a DLRM written without embedding libraries, as `perfmodel collect trace --model
dlrm` captures it. Batches are copied into buffers on the device.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.graph.ops import INPUT, OPTIMIZER, Tensor
from perfmodel.workload.autograd.engine import backward
from perfmodel.workload.eager.creation import copy
from perfmodel.workload.eager.joins import stack
from perfmodel.workload.eager.losses import LOSSES
from perfmodel.workload.eager.optimizers import optimizer_step
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.views import reshape, transpose
from perfmodel.workload.parts.data_parallel import LABEL, Reducer
from perfmodel.workload.parts.embedding import index_tensors, lookup, sparse_sgd, weights
from perfmodel.workload.parts.exchange import all_to_all, like
from perfmodel.workload.parts.interaction import cross_layers, cross_parameters, meet
from perfmodel.workload.parts.mlp import COMPUTE, Layer, layers, mlp, parameters
from perfmodel.workload.run import IMPLEMENTATIONS, Run

LAST = {"bce": "sigmoid", "mse": "sigmoid", "bce_with_logits": "none"}


@IMPLEMENTATIONS.register("pytorch")
def pytorch(r: Recorder, run: Run) -> None:
    """One step of one rank."""
    workload = run.workload
    bottom = layers(r, workload.bottom_widths)
    crosses = cross_layers(r, workload)
    top = layers(r, workload.top_widths)
    tables = weights(r, run)
    dense, labels, *indices = _load(r, run)
    dtype = COMPUTE[workload.implementation.precision]
    pooled = lookup(r, run, tables, indices)
    features = _module(r, run, dense, bottom, "relu", dtype)
    sparse = stack(r, pooled, 1) if run.ranks == 1 else _exchange(r, run, pooled)
    joined = meet(r, workload, features, sparse, crosses, dtype)
    output = _module(r, run, joined, top, LAST[workload.training.loss], dtype)
    if not run.train:
        return
    loss = LOSSES[workload.training.loss](r, output, labels)
    _learn(r, run, loss, [parameters(bottom), cross_parameters(crosses), parameters(top)], tables)


def _load(r: Recorder, run: Run) -> list[Tensor]:
    """Copy a batch into the buffers that the step reads: features, labels, indices."""
    like_buffers = [
        r.tensor((run.batch, run.workload.model.dense_features)),
        r.tensor((run.batch, 1)),
        *index_tensors(r, run),
    ]
    with r.during(INPUT):
        for buffer in like_buffers:
            source = r.tensor(buffer.shape, buffer.dtype, place="cpu")
            copy(r, buffer, source, non_blocking=True)
    return like_buffers


def _module(
    r: Recorder, run: Run, x: Tensor, stack: Sequence[Layer], last: str, dtype: str
) -> Tensor:
    if run.ranks == 1:
        return mlp(r, x, stack, last=last, dtype=dtype)
    with r.label(LABEL):
        return mlp(r, x, stack, last=last, dtype=dtype)


def _exchange(r: Recorder, run: Run, pooled: Sequence[Tensor]) -> Tensor:
    """Pooled rows of own tables for the global batch -> of all tables for the own batch."""
    dim, ranks = run.workload.dim, run.ranks
    each = [reshape(r, rows, (ranks, run.batch, -1)) for rows in pooled]
    sent = stack(r, each, 1)
    width = run.batch * dim
    held = [len(owned) * width for owned in run.owned]
    received = like(r, sent, sum(held))
    mine = [len(pooled) * width] * ranks
    got = all_to_all(r, reshape(r, sent, (-1,)), received, mine, held)
    tables = reshape(r, got, (len(run.workload.tables), run.batch, -1))
    return transpose(r, tables, 0, 1)


def _learn(
    r: Recorder,
    run: Run,
    loss: Tensor,
    modules: Sequence[Sequence[Tensor]],
    tables: Sequence[Tensor],
) -> None:
    """Backward pass, exchange of dense gradients, both optimizers."""
    reducers = [Reducer(module, run.ranks) for module in modules if module]
    owner = {x.tensor_id: reducer for reducer in reducers for x in reducer.parameters}

    def arrived(r: Recorder, parameter: Tensor, gradient: Tensor) -> None:
        if parameter.tensor_id in owner:
            owner[parameter.tensor_id].arrived(r, parameter, gradient)

    found = backward(r, loss, arrived if run.ranks > 1 else None)
    if run.ranks > 1:
        with r.during("backward"):
            for reducer in reversed(reducers):
                reducer.finish(r)
    training = run.workload.training
    dense = [parameter for module in modules for parameter in module]
    with r.during(OPTIMIZER):
        with r.label("Optimizer.step#SGD.step"):
            gradients = [found[parameter.tensor_id] for parameter in dense]
            optimizer_step(r, training.dense_optimizer, run.style, dense, gradients)
        with r.label("Optimizer.step#SGD.step"):
            sparse_sgd(r, run, tables, found)

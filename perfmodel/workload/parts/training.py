"""The second half of a training step: backward pass, dense gradients of all ranks, optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perfmodel.graph.ops import BACKWARD, OPTIMIZER, Tensor
from perfmodel.workload.autograd.engine import backward
from perfmodel.workload.eager.optimizers import optimizer_step
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.parts.data_parallel import Reducer
from perfmodel.workload.parts.exchange import DENSE, all_reduce, group_of
from perfmodel.workload.run import Run

NAMES = {"sgd": "SGD", "adagrad": "Adagrad", "adam": "Adam"}
LAST = {"bce": "sigmoid", "mse": "sigmoid", "bce_with_logits": "none"}
"""What ends the top MLP, by loss."""
TableStep = Callable[[dict[int, Tensor]], None]


def learn(
    r: Recorder,
    run: Run,
    loss: Tensor,
    modules: Sequence[Sequence[Tensor]],
    table_step: TableStep | None = None,
    *,
    replicated: Sequence[Tensor] = (),
    wrapped: bool = False,
) -> None:
    """Backward from `loss`; of each module one set of DDP buckets; the optimizer steps.

    `table_step` is given the gradients where tables have an optimizer of their own; `replicated`
    are the weights of tables whose gradients are summed over the ranks. `wrapped`: DDP is there for
    one rank as well.
    """
    given = [module for module in modules if module]
    found = _backward(r, run, loss, given, wrapped or run.ranks > 1)
    optimizer = run.workload.training.dense_optimizer
    label = f"Optimizer.step#{NAMES[optimizer]}.step"
    dense = [parameter for module in given for parameter in module]
    with r.during(BACKWARD):
        for weight in replicated:
            all_reduce(r, r.tensor(weight.shape), run.ranks, group=group_of(run, DENSE))
    with r.during(OPTIMIZER):
        with r.label(label):
            gradients = [found[parameter.tensor_id] for parameter in dense]
            optimizer_step(r, optimizer, run.style, dense, gradients)
        if table_step is not None:
            with r.label(label):
                table_step(found)


def _backward(
    r: Recorder, run: Run, loss: Tensor, modules: Sequence[Sequence[Tensor]], wrapped: bool
) -> dict[int, Tensor]:
    if not wrapped:
        return backward(r, loss)
    bucket_bytes = run.workload.implementation.ddp_bucket_bytes
    group = group_of(run, DENSE)
    reducers = [Reducer(module, run.ranks, bucket_bytes, group) for module in modules]
    owner = {x.tensor_id: reducer for reducer in reducers for x in reducer.parameters}

    def arrived(r: Recorder, parameter: Tensor, gradient: Tensor) -> None:
        if parameter.tensor_id in owner:
            owner[parameter.tensor_id].arrived(r, parameter, gradient)

    found = backward(r, loss, arrived)
    with r.during(BACKWARD):
        for reducer in reversed(reducers):
            reducer.finish(r)
    return found

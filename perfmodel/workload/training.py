"""The second half of a training step: backward pass, DDP's gradient buckets, optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from perfmodel.ops.dtypes import item_bytes
from perfmodel.ops.graph import BACKWARD, OPTIMIZER, Tensor
from perfmodel.workload.autograd import backward
from perfmodel.workload.collectives import DENSE, GROUP, all_reduce, group_of
from perfmodel.workload.eager.arithmetic import optimizer_step
from perfmodel.workload.eager.recorder import Recorder, contiguous
from perfmodel.workload.eager.tensors import as_strided, copy
from perfmodel.workload.step import Run

FIRST_BUCKET_BYTES = 1 << 20
"""The first all-reduce starts early.

Source: PyTorch, `DistributedDataParallel`, default of the first bucket.
"""
LABEL = "DistributedDataParallel.forward"


@dataclass
class Reducer:
    """The buckets of one module, filled as its gradients arrive, to `bucket_bytes` at least."""

    parameters: Sequence[Tensor]
    ranks: int
    bucket_bytes: int
    group: str = GROUP
    arrivals: int = 0
    held: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    buckets: list[tuple[Tensor, list[tuple[Tensor, Tensor]]]] = field(default_factory=list)

    def arrived(self, r: Recorder, parameter: Tensor, gradient: Tensor) -> None:
        """One gradient: divided by the number of ranks into its bucket; a full one is reduced."""
        self.arrivals += 1
        place, share = r.like(gradient), r.tensor((), "fp64", place="cpu")
        r.begin("torch::distributed::reducer::mul_out", gradient)
        r.leaf("aten::mul", (gradient, share, place), place)
        r.end()
        self.held.append((parameter, gradient))
        limit = self.bucket_bytes if self.buckets else min(FIRST_BUCKET_BYTES, self.bucket_bytes)
        elements = sum(held.elements for _, held in self.held)
        is_full = elements * item_bytes([gradient.dtype])[0] >= limit
        if is_full or self.arrivals == len(self.parameters):
            bucket = r.tensor((elements,), gradient.dtype)
            all_reduce(r, bucket, self.ranks, group=self.group)
            self.buckets.append((bucket, self.held))
            self.held = []

    def finish(self, r: Recorder) -> None:
        """After the backward pass: the reduced gradients out of the buckets."""
        for bucket, held in self.buckets:
            parts, start = [], 0
            for _, gradient in held:
                strides = contiguous(gradient.shape)
                parts.append(as_strided(r, bucket, gradient.shape, strides, start))
                start += gradient.elements
            for (parameter, gradient), part in zip(held, parts, strict=True):
                r.begin("torch.distributed.ddp.reducer::copy_bucket_to_grad", parameter)
                copy(r, gradient, part)
                r.end()


NAMES = {"sgd": "SGD", "adagrad": "Adagrad", "adam": "Adam"}
LAST = {"bce": "sigmoid", "mse": "sigmoid", "bce_with_logits": "none"}
"""What ends the top MLP, by loss."""


def backward_and_update(
    r: Recorder,
    run: Run,
    loss: Tensor,
    modules: Sequence[Sequence[Tensor]],
    table_step: Callable[[dict[int, Tensor]], None] | None = None,
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
    group, bucket_bytes = group_of(run, DENSE), run.workload.implementation.ddp_bucket_bytes
    is_wrapped = wrapped or run.ranks > 1
    reducers = [Reducer(each, run.ranks, bucket_bytes, group) for each in given if is_wrapped]
    owner = {x.tensor_id: reducer for reducer in reducers for x in reducer.parameters}

    def arrived(r: Recorder, parameter: Tensor, gradient: Tensor) -> None:
        if parameter.tensor_id in owner:
            owner[parameter.tensor_id].arrived(r, parameter, gradient)

    by_tensor = backward(r, loss, arrived)
    with r.during(BACKWARD):
        for reducer in reversed(reducers):
            reducer.finish(r)
        for weight in replicated:
            all_reduce(r, r.tensor(weight.shape), run.ranks, group=group)
    optimizer = run.workload.training.dense_optimizer
    label = f"Optimizer.step#{NAMES[optimizer]}.step"
    dense = [parameter for module in given for parameter in module]
    with r.during(OPTIMIZER):
        with r.label(label):
            gradients = [by_tensor[parameter.tensor_id] for parameter in dense]
            optimizer_step(r, optimizer, run.style, dense, gradients)
        if table_step is not None:
            with r.label(label):
                table_step(by_tensor)

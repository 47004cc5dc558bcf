"""The second half of a training step: backward pass, DDP's gradient buckets, optimizer.

The engine of the backward pass runs ready nodes, the one recorded last first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from perfmodel.ops.graph import AUTOGRAD_NODE, BACKWARD, OPTIMIZER, Argument, Tensor
from perfmodel.ops.spec import item_bytes
from perfmodel.trace.window import AUTOGRAD_THREAD
from perfmodel.workload.eager.calls import ACCUMULATE, NOTHING, Gradients, Node, Shape, contiguous
from perfmodel.workload.eager.embedding_bag import accumulate_sparse
from perfmodel.workload.eager.recorder import DENSE, GROUP, Recorder
from perfmodel.workload.step import Run

Hook = Callable[[Recorder, Tensor, Tensor], None]
"""Called with a parameter and its gradient as soon as that is there."""


def backward(r: Recorder, loss: Tensor, hook: Hook | None = None) -> dict[int, Tensor]:
    """The backward pass from `loss`; gradients of the parameters by their tensor id.

    On a GPU it runs on a thread of its own, on a CPU on the thread that called it.
    """
    tape, r.tape = r.tape or {}, None
    if loss.tensor_id not in tape:
        return {}
    root, number = tape[loss.tensor_id]
    ones = r.made("aten::ones_like", (loss,), loss.shape, loss.dtype, about=r.waiting)
    r.waiting = NOTHING
    root.gradients[number] = ones
    left, seen = [root], {id(root)}
    while left:  # how many gradients each node waits for
        for node, _ in filter(None, left.pop().next):
            node.waiting += 1
            if id(node) not in seen:
                seen.add(id(node))
                left.append(node)
    reached: dict[int, Tensor] = {}
    ready, arrived = [(-root.sequence, 0, root)], 0
    with r.during(BACKWARD, "" if r.is_cpu else AUTOGRAD_THREAD):
        while ready:
            node = heappop(ready)[-1]
            with r.of_engine(node.name and f"{AUTOGRAD_NODE}{node.name}"):
                if node.backward is None:
                    _accumulate(r, node, reached, hook)
                else:
                    _evaluate(r, node)
            for edge in filter(None, node.next):
                edge[0].waiting -= 1
                if edge[0].waiting == 0:
                    arrived += 1
                    heappush(ready, (-edge[0].sequence, arrived, edge[0]))
    return reached


def _evaluate(r: Recorder, node: Node) -> None:
    """Run a node, then hand its results on: of no gradient follows none."""
    given = [node.gradients[number] for number in sorted(node.gradients)]
    assert node.backward is not None
    results: Gradients = [None] * len(node.inputs)
    with r.of_engine(node.name, *given, about=node.about):
        if given:
            results = node.backward(given if node.has_several else given[0])
    results = [
        _sum_to(r, result, x.shape) if edge and result and result.shape != x.shape else result
        for edge, x, result in zip(node.next, node.inputs, results, strict=True)
    ]
    for edge, result in zip(node.next, results, strict=True):
        if edge is None or result is None:
            continue
        target, number = edge
        before = target.gradients.setdefault(number, result)
        if before is result:
            continue
        if before.tensor_id in r.views:
            total = r.made("aten::add", (before, result, 1), before.shape, before.dtype)
            target.gradients[number] = total
        else:  # nothing else can see that
            r.leaf("aten::add_", (before, result, 1), before)


def _sum_to(r: Recorder, x: Tensor, shape: Shape) -> Tensor:
    """Sum over the leading dims that `shape` lacks, as autograd does for what was broadcast."""
    extra = len(x.shape) - len(shape)
    given = (x, tuple(range(extra)), True)
    return r.aten_view(r.made("aten::sum", given, (1,) * extra + x.shape[extra:], x.dtype), shape)


def _accumulate(r: Recorder, node: Node, reached: dict[int, Tensor], hook: Hook | None) -> None:
    """The gradient of a parameter becomes its `.grad`; one updated in backward has none."""
    gradient, (parameter,) = node.gradients.get(0), node.inputs
    with r.of_engine(ACCUMULATE, *((gradient,) if gradient else ())):
        if gradient and not r.is_bare:
            gradient = accumulate_sparse(r, gradient) if gradient.layout else r.detach(gradient)
    if gradient is None:
        return
    reached[parameter.tensor_id] = gradient
    if hook is not None:
        hook(r, parameter, gradient)


FIRST_BUCKET_BYTES = 1 << 20
"""The first all-reduce starts early, where a program does not set the size of buckets.

Source: PyTorch, `DistributedDataParallel`; TorchRec sets it for dense layers, not for tables.
"""
LABEL = "DistributedDataParallel.forward"


@dataclass
class Reducer:
    """The buckets of one module, filled as its gradients arrive, to `bucket_bytes` at least."""

    parameters: Sequence[Tensor]
    ranks: int
    bucket_bytes: int
    group: str = GROUP
    first_bytes: int = FIRST_BUCKET_BYTES
    arrivals: int = 0
    place: Tensor | None = None  # of the last gradient, in the bucket that is being filled
    held: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    buckets: list[tuple[Tensor, list[tuple[Tensor, Tensor]]]] = field(default_factory=list)

    def arrived(self, r: Recorder, parameter: Tensor, gradient: Tensor) -> None:
        """One gradient: divided by the number of ranks into its bucket; a full one is reduced."""
        self.arrivals += 1
        share, place, shape = r.tensor((), "fp64", place="cpu"), self.place, gradient.shape
        self.place = place = r.view(place, shape, contiguous(shape)) if place else r.like(gradient)
        r.begin("torch::distributed::reducer::mul_out", gradient)
        r.leaf("aten::mul", (gradient, share, place), place)
        r.end()
        self.held.append((parameter, gradient))
        limit = self.bucket_bytes if self.buckets else min(self.first_bytes, self.bucket_bytes)
        elements = sum(held.elements for _, held in self.held)
        is_full = elements * item_bytes(gradient.dtype) >= limit
        if is_full or self.arrivals == len(self.parameters):
            bucket = r.view(place, (elements,), (1,))
            r.all_reduce(bucket, self.ranks, group=self.group)
            self.buckets.append((bucket, self.held))
            self.held, self.place = [], None

    def views(self, r: Recorder) -> dict[int, Tensor]:
        """Reduced gradients as parts of the buckets, by the tensor id of their parameter."""
        return {
            parameter.tensor_id: r.view(bucket, gradient.shape, contiguous(gradient.shape))
            for bucket, held in self.buckets
            for parameter, gradient in held
        }

    def copy_out(self, r: Recorder) -> None:
        for bucket, held in self.buckets:
            parts, start = [], 0
            for _, gradient in held:
                strides = contiguous(gradient.shape)
                parts.append(r.as_strided(bucket, gradient.shape, strides, start))
                start += gradient.elements
            for (parameter, gradient), part in zip(held, parts, strict=True):
                r.begin("torch.distributed.ddp.reducer::copy_bucket_to_grad", parameter)
                r.copy(gradient, part)
                r.end()


LEARNING_RATE = 0.01
EPSILON = 1e-8
_STEPS: dict[str, tuple[tuple[str, str, tuple[float, ...]], ...]] = {
    "sgd": (("add_", "pg", (-LEARNING_RATE,)),),
    "adagrad": (
        ("addcmul_", "sgg", (1,)),
        ("sqrt", "s", ()),
        ("add_", "r", (EPSILON,)),
        ("addcdiv_", "pgr", (-LEARNING_RATE,)),
    ),
    "adam": (
        ("lerp_", "mg", (0.1,)),
        ("mul_", "s", (0.999,)),
        ("addcmul_", "sgg", (0.001,)),
        ("sqrt", "s", ()),
        ("div_", "r", (1.0,)),
        ("add_", "r", (EPSILON,)),
        ("addcdiv_", "pmr", (-LEARNING_RATE,)),
    ),
}
"""What an update calls, of parameters, gradients, means, squares and roots, with which numbers."""
_STATES = {"sgd": "", "adagrad": "s", "adam": "ms"}


def optimizer_passes(optimizer: str) -> int:
    """How often a `foreach` step reads or writes a tensor as large as the parameters."""
    calls = [set(operands) for name, operands, _ in _STEPS[optimizer] if name != "div_"]
    return sum(len(each) + 1 for each in calls)


def optimizer_step(
    r: Recorder, optimizer: str, style: str, weights: Sequence[Tensor], gradients: Sequence[Tensor]
) -> None:
    """One step of `optimizer` (`sgd adagrad adam`) in `style`: a `loop` over parameters, or
    `foreach` or `fused` calls over all; of these one makes the roots and divides by no correction.
    """
    is_loop, states = style == "loop", _STATES[optimizer]
    pairs = list(zip(weights, gradients, strict=True))
    for group in [[pair] for pair in pairs] if is_loop else [pairs] * bool(pairs):
        held = {"p": tuple(weight for weight, _ in group), "g": tuple(each for _, each in group)}
        made = states + "r" if states and is_loop else states
        held |= {name: tuple(r.tensor(x.shape, x.dtype) for x in held["p"]) for name in made}
        if style == "fused":
            r.leaf(f"aten::_fused_{optimizer}_", tuple(held.values()))
            continue
        for name, operands, numbers in _STEPS[optimizer]:
            if is_loop:
                written = held["r" if name == "sqrt" else operands[0]][0]
                given: tuple[Argument, ...] = (*(held[each][0] for each in operands), *numbers)
                r.leaf(f"aten::{name}", given, written)
            elif name != "div_":
                if name == "sqrt":
                    held["r"] = tuple(r.tensor(x.shape, x.dtype) for x in held["p"])
                roots = (held["r"],) if name == "sqrt" else ()
                every: tuple[Argument, ...] = (*(held[each] for each in operands), *numbers)
                r.leaf(f"aten::_foreach_{name}", every, *roots)


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
    by_torchrec: bool = False,
) -> None:
    """Backward from `loss`; of each module one set of DDP buckets; the optimizer steps.

    `table_step` is given the gradients where tables have an optimizer of their own. `by_torchrec`:
    DDP is there for one rank as well, and gradients are views of its buckets (pytorch/torchrec,
    distributed/model_parallel.py; its traces have no `copy_bucket_to_grad`).
    """
    given = [module for module in modules if module]
    group = DENSE if run.copies > 1 else GROUP
    software = run.workload.implementation
    is_wrapped = by_torchrec or run.world > 1
    most = software.ddp_bucket_bytes
    reducers = [Reducer(each, run.world, most, group) for each in given if is_wrapped]
    if by_torchrec and modules[-1]:  # the layers
        reducers[-1].first_bytes = most
    owner = {x.tensor_id: reducer for reducer in reducers for x in reducer.parameters}

    def arrived(r: Recorder, parameter: Tensor, gradient: Tensor) -> None:
        if parameter.tensor_id in owner:
            owner[parameter.tensor_id].arrived(r, parameter, gradient)

    by_tensor = backward(r, loss, arrived)
    with r.during(BACKWARD):
        for reducer in reversed(reducers):
            if by_torchrec:
                by_tensor |= reducer.views(r)
            else:
                reducer.copy_out(r)
    optimizer, style = run.workload.training.dense_optimizer, software.optimizer_style
    if style == "default":  # what PyTorch picks
        style = "loop" if run.target == "cpu" else "foreach"
    label = f"Optimizer.step#{NAMES[optimizer]}.step"
    dense = [parameter for module in given for parameter in module]
    with r.during(OPTIMIZER):
        with r.label(label):
            gradients = [by_tensor[parameter.tensor_id] for parameter in dense]
            optimizer_step(r, optimizer, style, dense, gradients)
        if table_step is not None:
            with r.label(label):
                table_step(by_tensor)

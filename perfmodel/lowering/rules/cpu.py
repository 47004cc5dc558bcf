"""A step on a CPU: what operators become, one stretch of their thread's time each, with all that a
kernel calls inside; its pieces in order are its rows, and an execution graph of one host thread.

`step_bytes` is what all of them write, `first_frac` is 1 for the first of its op and direction,
whose code and whose threads have been idle since the step before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.lowering.arguments import by_record, made, rule_of, tensor
from perfmodel.lowering.draft import Built, Draft
from perfmodel.lowering.lower import lower, row_of
from perfmodel.lowering.piece import ANY, LEAF, WHOLE, MissingArguments, Piece, rule
from perfmodel.lowering.rules.copies import ALLOCATIONS, VIEWS
from perfmodel.ops.graph import AUTOGRAD_NODE, NO_OP, OPTIMIZER, Op, OpGraph
from perfmodel.ops.operators import Operator
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.streaming import BUCKET, CALL, NODE, STEP, UPDATE, VIEW
from perfmodel.timeline.graph.kinds import Cause, EdgeKind, NodeKind, Scope
from perfmodel.trace.window import MAIN_THREAD


@rule("index _unsafe_index", target="cpu", scope=WHOLE)
@rule("_index_put_impl_ index_put index_put_ _unsafe_index_put", target="cpu", scope=WHOLE)
def by_elements(op: Op) -> Sequence[Piece]:
    """`index(table, indices)` and `index_put(table, indices, values)`: an element at a time."""
    is_put = "index_put" in op.name
    table, elements = tensor(op, 0), (op.tensors[-1] if is_put else made(op)).elements
    dims = {"rows": float(elements), "cols": 1.0, "hash_size": float(table.elements)}
    name = "index_put" if is_put else "gather"
    return (Piece(name, dims, table.dtype),) if elements else ()


for _name, _places, _direction in (
    ("binary_cross_entropy", "x[*r,c]", ""),
    ("binary_cross_entropy_backward", "_ x[*r,c]", ".bwd"),
):
    _record = Operator(_places, f"binary_cross_entropy{_direction} rows=r cols=c")
    rule(_name, target="cpu", scope=WHOLE)(by_record(_record))

NATIVE = (
    "mm addmm bmm baddbmm addbmm mv dot convolution convolution_backward add sub sub_ mul mul_ "
    "div div_ pow addcdiv_ addcmul_ lerp_ sqrt rsqrt exp log abs neg relu relu_ clamp_min sigmoid "
    "tanh gelu silu threshold_backward sigmoid_backward tanh_backward gelu_backward sum mean amax "
    "amin max min argmax norm linalg_vector_norm cat stack copy_ clone fill_ zero_ zeros ones "
    "full new_zeros ones_like zeros_like full_like arange index_select index_add_ gather scatter_ "
    "scatter_add_ sort topk cumsum embedding embedding_dense_backward _log_softmax "
    "_log_softmax_backward_data _softmax _softmax_backward_data native_layer_norm "
    "native_layer_norm_backward native_batch_norm native_batch_norm_backward nll_loss_forward "
    "nll_loss_backward native_dropout mse_loss mse_loss_backward binary_cross_entropy_with_logits "
    "select_backward slice_backward _local_scalar_dense repeat_interleave max_pool2d_with_indices "
    "max_pool2d_with_indices_backward avg_pool2d _adaptive_avg_pool2d "
    "_scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward"
)


@rule(NATIVE, target="cpu", scope=WHOLE)
def native(op: Op) -> Sequence[Piece]:
    """As the rule of the op on any target has it, or that of it as a leaf."""
    usual = rule_of(op.name, ANY, WHOLE) or rule_of(op.name, ANY) or rule_of(op.name, ANY, LEAF)
    if usual is None:
        raise MissingArguments
    return usual(op)


_KINDS = {
    **dict.fromkeys(("detach", "alias"), "host_detach"),
    **dict.fromkeys(("t", "transpose", "permute"), "host_transpose"),
    "select": "host_select",
    **dict.fromkeys(("slice", "narrow"), "host_slice"),
}


@rule(VIEWS, ALLOCATIONS, target="cpu", scope=WHOLE)
def view(op: Op) -> Sequence[Piece]:
    """A new tensor object, without a kernel."""
    return (Piece(_KINDS.get(op.name.removeprefix("aten::"), VIEW), kind="host"),)


_HOST = (NodeKind.HOST, Cause.HOST_OP_WITHOUT_LAUNCH, Scope.HOST)
_MARK = (NodeKind.MARK, Cause.END_OF_STEP, Scope.NONE)
_COLLECTIVE = (NodeKind.COLLECTIVE, Cause.COMMUNICATION, Scope.COMM)


def cpu_graph(steps: Sequence[Sequence[Piece]], duration_us: Floats, rank: int = 0) -> Built:
    """The graph of `steps` (of `cpu_steps`) with their pieces' durations: one chain, each step
    between two marks.

    The threads that an operator works with are part of its duration; collectives are waited for.
    """
    draft, marks, place = Draft(rank), [], 0
    taken_us = duration_us.tolist()
    for number, step in enumerate(steps):
        start = draft.add(*_MARK, MAIN_THREAD, f"step {number}")
        for piece in step:
            what = _COLLECTIVE if piece.kind == "collective" else _HOST
            draft.add(*what, MAIN_THREAD, piece.op, taken_us[place], place)
            place += 1
        marks.append((number, start, draft.add(*_MARK, MAIN_THREAD, f"end of step {number}")))
    for node in range(1, len(draft.nodes)):
        draft.edge(node - 1, node, EdgeKind.PROGRAM)
    return draft.built(marks)


ALL_REDUCE = "c10d::allreduce_"
"""The call that `DistributedDataParallel` makes per bucket."""
ANNOTATION_PREFIXES = ("Optimizer.", "ProfilerStep", "enumerate(DataLoader)")


def cpu_steps(graph: OpGraph) -> list[list[Piece]]:
    """What the host does in each step: kernels, views, and what Python and autograd take.

    What ran before the first step is no step, unless nothing else is there.
    """
    numbers = sorted({op.step for op in graph.ops}) or [0]
    numbers = [number for number in numbers if number >= 0] or numbers
    lowered = lower(graph, "cpu")
    steps: dict[int, list[Piece]] = {number: [] for number in numbers}
    for piece, owner in zip(lowered.pieces, lowered.owner.tolist(), strict=True):
        step = lowered.graph.ops[owner].step
        if step in steps:
            steps[step].append(piece)
    return [[*own, *_host_pieces(graph, number)] for number, own in steps.items()]


def _host_pieces(graph: OpGraph, step: int) -> list[Piece]:
    """Calls from Python, autograd nodes, buckets of gradients, parameters that an optimizer visits,
    and the step; of each beside what it calls."""
    counts = dict.fromkeys((CALL, NODE, BUCKET, UPDATE), 0)
    for op in graph.ops:
        if op.step != step:
            continue
        if op.name.startswith(AUTOGRAD_NODE):
            counts[NODE] += 1
        elif op.name == ALL_REDUCE:
            counts[BUCKET] += 1
        elif not op.name.startswith(ANNOTATION_PREFIXES):
            above = "" if op.parent == NO_OP else graph.ops[op.parent].name
            if not above or above.startswith(ANNOTATION_PREFIXES):
                counts[UPDATE if op.phase == OPTIMIZER else CALL] += 1
    pieces = [Piece(kind, {"count": float(n)}, kind="host") for kind, n in counts.items() if n]
    return [*pieces, Piece(STEP, kind="host")]


STEP_BYTES, FIRST_FRAC = "step_bytes", "first_frac"


def rows_of(pieces: Sequence[Piece]) -> Rows:
    rows = Rows.of([row_of(piece) for piece in pieces])
    written, first = np.zeros((2, len(rows)))
    for (op, direction), index in rows.grouped(lambda kind: (kind.op, kind.direction)):
        dims, item = rows.dims_of(op, index), rows.item_bytes[index]
        written[index] = OPS[op].of(direction).written_bytes(dims, item)
        first[index[0]] = 1.0  # the others of its kind follow it
    told = {STEP_BYTES: np.full(len(rows), written.sum()), FIRST_FRAC: first}
    return replace(rows, dims={**rows.dims, **told})

"""HSTU: a sequential recommender over unpooled rows, in PyTorch with fused jagged kernels.

What it stands for: DLRMv4 of MLPerf Training: TorchRec's sharded embedding collection (distinct
rows alone with `index_dedup`), generative-recommenders' layers with Triton kernels, DDP. Sequences
lie one after the other, without padding. A rank's step is that of the rank with the most positions:
it takes so many more than the mean as the largest of all ranks' sums is expected to have.
Source: mlcommons/training@f5517968, recommendation_v4: README, modules and ops, counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfmodel.embedding import Pipeline
from perfmodel.errors import WorkloadError
from perfmodel.ops.graph import INPUT, Tensor
from perfmodel.ops.rows import FRAMEWORK
from perfmodel.workload.eager.calls import Gradients
from perfmodel.workload.eager.dense import (
    COMPUTE,
    LOSSES,
    Layer,
    add,
    dropout,
    layers,
    mlp,
    mm,
    mul,
    parameters,
)
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.model import ACTION_WIDTH, Workload, branch_widths
from perfmodel.workload.sequences import (
    Lengths,
    exchange_sequences,
    sequence_rows,
    slowest_lengths,
)
from perfmodel.workload.settings import implementation
from perfmodel.workload.step import Run
from perfmodel.workload.tiered.source import read_one_by_one
from perfmodel.workload.training import LABEL, backward_and_update

WAVE = 64
"""Threads that AMD's CDNA runs in step."""
LAYOUTS = ("row_wise", "table_wise", "balanced")
BUCKETS = (8192, 2048)
"""Rows of the position and of the time embedding. Source: recommendation_v4, README."""
TIMES = 3
"""Of each position, beside its rows: when, what was done, and for how long."""
COPIES = 2
"""Times that a batch is sent to the device: its histories, and with the candidates' all that is
looked up; from memory that the loader has not pinned. Source: mlcommons/training@f5517968,
recommendation_v4, `Samples.to`."""
ROUNDING_LIKE = "trtllm"
"""assumed: a layer in fp8 rounds its input as TensorRT-LLM does, in one kernel with one scale."""
DRAWS = {"random": repr(3 / 4)}
"""Calls of Philox ahead of a norm: three for four rows, three bits of a byte each. Source:
recommendation_v4, `_generate_random_mask`."""
NORM, NORM_BACKWARD = {"flop_per_element": "24.0"}, {"flop_per_element": "55.0"}
"""Work of a gated norm per element of what it writes beside one another, forward, and reads,
backward. Source: traces/h200/sequential.csv.gz, what is left of 2.63 and 3.39 ms for 1 million rows
of 512 on an H200 when random numbers take 2.06."""


@implementation("hstu", mixed_dims=False, layer_precisions=False, int32_keys=False, fp8=True)
def hstu(r: Recorder, run: Run) -> None:
    """One step of one rank."""
    workload = run.workload
    if problem := next(_problems(run), ""):
        raise WorkloadError(f"{workload.name}: {problem}")
    dtype = COMPUTE[workload.implementation.precision]
    lengths = slowest_lengths(workload, run.batch, run.world)
    names = sum(table.pooling > 1 for table in workload.tables)
    extra_rows = run.batch * (len(workload.tables) - names)
    positions = max(lengths.tokens - extra_rows, run.batch)
    item = layers(r, workload.bottom_widths)
    head = layers(r, workload.top_widths)
    branches = [layers(r, widths) for widths in branch_widths(workload)]
    context = layers(r, (workload.dim, workload.dim))
    stack = [_layer_weights(r, workload) for _ in range(workload.sequence.layers)]
    with r.during(INPUT):
        elements = positions * (names + TIMES) + extra_rows
        for _ in range(COPIES):
            values = r.send_from_host((elements,), "int64", pinned=False)
        if workload.sequence.balanced and run.ranks > 1:
            exchange_sequences(r, run, elements + run.batch)
    asked = [positions if table.pooling > 1 else run.batch for table in workload.tables]
    with r.label(LABEL):
        ids = [r.view(values, (count,), (1,)) for count in asked]
        rows = sequence_rows(r, run, ids, read_one_by_one)
        extra = r.cat([r.cast(each, dtype) for each in rows[names:]], 0)
        x = _content(r, run, rows[:names], branches, dtype)
        extra = mlp(r, extra, context, last="none", dtype=dtype)
        x = _joined(r, run, (x, extra), lengths.tokens)
        x = _positions(r, x, r.view(values, (positions,), (1,)))
        x = dropout(r, x) if run.train else x
        for weights in stack:
            x = _layer(r, workload, x, weights, lengths)
        user = _last_positions(r, run, x)
        candidate = r.tensor((run.batch, workload.candidate_width))
        both = mul(r, user, _normed_mlp(r, candidate, item, dtype))
        scores = _normed_mlp(r, both, head, dtype, last=False)
        output = r.squeeze(r.to_dtype(scores, "fp32"), -1)
        if not run.train:
            return
        labels = r.view(values, output.shape, output.strides)
        loss = LOSSES[workload.training.loss](r, output, r.to_dtype(labels, "fp32"))
    dense = parameters(*stack, *branches, context, item, head)
    backward_and_update(r, run, loss, [dense], by_torchrec=True)


def _content(
    r: Recorder, run: Run, rows: Sequence[Tensor], branches: Sequence[tuple[Layer, ...]], dtype: str
) -> Tensor:
    """Of each position, an MLP of its first row, one of its other rows, one of what was done; added
    up. Each table's rows of the candidates come to those of histories first, in fp32.
    """
    merged = [_joined(r, run, (each,), each.shape[0]) for each in rows]
    others = merged[1:]
    actions = r.made("hstu::action_encoder", (), (rows[0].shape[0], ACTION_WIDTH))
    parts = [merged[0], *([r.cat(others, 1)] if others else []), actions]
    total = _normed_mlp(r, parts[0], branches[0], dtype)
    for part, branch in zip(parts[1:], branches[1:], strict=True):
        total = add(r, total, _normed_mlp(r, part, branch, dtype))
    return total


def _normed_mlp(
    r: Recorder, x: Tensor, stack: Sequence[Layer], dtype: str, *, last: bool = True
) -> Tensor:
    """Layers with a gated norm between them, and with `last` a norm at the end."""
    for number, layer in enumerate(stack, 1):
        x = mlp(r, x, (layer,), last="none", dtype=dtype)
        if number < len(stack):
            x = _normed(r, "hstu::swish_layer_norm", x)
        elif last:
            x = _normed(r, "hstu::layer_norm", x)
    return x


def _normed(r: Recorder, name: str, x: Tensor) -> Tensor:
    out, back = r.made_like(x, name, x), f"{name}_backward"
    return r.track("LayerNormFunctionBackward", (x,), out, lambda g: [r.made_like(x, back, g, x)])


def _last_positions(r: Recorder, run: Run, x: Tensor) -> Tensor:
    """The candidates' positions; a kernel parts them from all others, which it writes too."""
    left = r.tensor((x.shape[0] - run.batch, x.shape[1]), x.dtype)
    right = r.tensor((run.batch, x.shape[1]), x.dtype)
    r.leaf("hstu::split_jagged", (x,), left, right, about=_by_rows(run, x))

    def backward(gradient: Tensor) -> list[Tensor]:
        """Zeros for the other positions, then all in one tensor."""
        both, about = (r.new_zeros(gradient, left.shape, x.dtype), gradient), _by_rows(run, x)
        return [r.made("hstu::concat_jagged", both, x.shape, x.dtype, about=about)]

    return r.track("Split2DJaggedBackward", (x,), right, backward)


def _problems(run: Run) -> Iterator[str]:
    """What is not modelled: tables lie in shards, and at most rows are fetched ahead."""
    about, sharding = run.workload.sequence, run.workload.implementation.sharding
    if not about.layers:
        yield 'implementation "hstu" needs sequence.layers'
    if sharding not in LAYOUTS:
        choices = ", ".join(LAYOUTS)
        yield f'implementation "hstu": sharding: expected one of {choices}, got "{sharding}"'
    if run.plan.replicated:
        yield (
            f"table {run.plan.replicated[0]} on every rank, or looked up by the host: of a model "
            "of sequences this is not modelled, its tables lie in shards"
        )
    if run.pipeline not in (Pipeline(), Pipeline(rows_ahead=True)):
        yield (
            "of a model of sequences only rows are fetched ahead of a step: batches ahead, "
            "micro-batches and rows that go back behind are not modelled"
        )
    if about.kernels == "cutlass" and run.target != "cuda":
        yield 'sequence: kernels: "cutlass" needs an NVIDIA GPU: "triton" runs here'


def _joined(r: Recorder, run: Run, inputs: tuple[Tensor, ...], rows: int) -> Tensor:
    """Rows of jagged tensors sequence by sequence; backward parted, the first into zeros."""
    out = r.tensor((rows, inputs[0].shape[1]), inputs[0].dtype)
    r.leaf("hstu::concat_jagged", inputs, out, about=_by_rows(run, out))

    def backward(gradient: Tensor) -> list[Tensor]:
        first, *others = inputs
        made = [r.new_zeros(gradient, first.shape, first.dtype), *map(r.like, others)]
        r.leaf("hstu::split_jagged", (gradient,), *made, about=_by_rows(run, gradient))
        return made

    return r.track("Concat2DJaggedBackward", inputs, out, backward)


def _by_rows(run: Run, x: Tensor) -> dict[str, str]:
    """Joins and splits have a block of four warps per row. On NVIDIA's GPUs those of several rows
    are compiled, or bytes take longer."""
    by_rows = {"by_rows": repr(float(x.shape[0])), "threads": repr(4.0 * WAVE)}
    return by_rows if run.target == "rocm" else {}


def _positions(r: Recorder, x: Tensor, times: Tensor) -> Tensor:
    """Rows by position and by age added."""
    out = r.made("hstu::position_time_embedding", (x, times), x.shape, x.dtype)

    def backward(gradient: Tensor) -> list[Tensor]:
        """Positions are sorted by row of either table, then gradients of the same row added up."""
        for rows in BUCKETS:
            ids = r.tensor((gradient.shape[0],), "int32")
            ordered, order = (r.tensor(ids.shape, dtype) for dtype in ("int32", "int64"))
            r.leaf("aten::sort", (ids, 0, False), ordered, order)
            table = (rows, gradient.shape[1])
            r.made("hstu::add_sorted_rows", (gradient, order), table, gradient.dtype)
        return [gradient]

    return r.track("PositionTimeEmbeddingBackward", (x,), out, backward)


def _layer_weights(r: Recorder, workload: Workload) -> tuple[Layer, ...]:
    """The product to gates, values, queries and keys, and the one of gate, attention and both."""
    about = workload.sequence
    wide = 2 * about.heads * (about.attention_dim + about.hidden_dim)
    (uvqk,) = layers(r, (workload.dim, wide))
    (out,) = layers(r, (3 * about.heads * about.hidden_dim, workload.dim))
    return uvqk, out


def _layer(
    r: Recorder, workload: Workload, x: Tensor, weights: tuple[Layer, ...], lengths: Lengths
) -> Tensor:
    """One HSTU layer: norm, product, SiLU of the gate, attention, gated norm, product, residual."""
    about, (first, second) = workload.sequence, weights
    normed, uvqk = _into_layer(r, workload, x, first)
    u, attended = (
        r.tensor((x.shape[0], about.heads * about.hidden_dim), x.dtype) for _ in range(2)
    )
    r.leaf("aten::silu", (r.view(uvqk, u.shape, uvqk.strides),), u)
    dims = _attention_dims(workload, lengths)
    attending = _queries(r, uvqk, u)
    if r.tape is None and workload.implementation.precision == "fp8":
        attending = replace(attending, dtype="fp8")  # as the product before may write it
    r.leaf("hstu::attention", (attending,), attended, about=dims)
    given: tuple[Tensor, ...] = (u, attended)
    if r.tape is not None:  # what dropout keeps is drawn ahead
        given = (*given, r.made("hstu::dropout_mask", (), u.shape, "bool", about=DRAWS))
    joined = r.tensor((u.shape[0], 3 * u.shape[1]), u.dtype)
    r.leaf("hstu::norm_mul_dropout", given, joined, about=NORM)
    low = _product(r, workload, joined, r.cast(r.t(second.weight), x.dtype))
    out = r.made("aten::add", (low, x, 1), x.shape, x.dtype)

    def backward(gradient: Tensor) -> Gradients:
        of_u, of_attended = r.like(u), r.like(u)
        made, before = [of_u, of_attended], (normed, uvqk, joined)
        if about.recompute:
            made.append(r.like(joined))
            before = (*_into_layer(r, workload, x, first), made[-1])
        into, wide, gated = before
        of_joined = _product(r, workload, gradient, r.cast(second.weight, x.dtype))
        name = "hstu::norm_mul_dropout_backward"
        r.leaf(name, (of_joined, *given), *made, about=NORM_BACKWARD)
        of_out = _product(r, workload, r.t(gradient), gated)
        of_wide = r.empty_like(wide)
        part = _queries(r, of_wide, u)
        queries = (part.shape[0], about.heads * about.attention_dim)
        r.zero(r.view(part, queries, part.strides))
        both = (of_attended, _queries(r, wide, u))
        r.leaf("hstu::attention_backward", both, part, about=dims)
        gates, of_gates = (r.view(each, u.shape, each.strides) for each in (wide, of_wide))
        r.leaf("aten::silu_backward", (of_u, gates), of_gates)
        of_normed = _product(r, workload, of_wide, r.cast(first.weight, x.dtype))
        of_first = _product(r, workload, r.t(of_wide), into)
        shift = r.made("aten::sum", (of_wide, (0,), True), first.bias.shape, x.dtype)
        of_x = r.made("hstu::layer_norm_backward", (of_normed, x), x.shape, x.dtype)
        of_shift = r.tensor(second.bias.shape, x.dtype)
        return [add(r, of_x, gradient), of_first, shift, of_out, of_shift]

    return r.track("HstuLayerBackward", (x, *parameters(weights)), out, backward)


def _queries(r: Recorder, uvqk: Tensor, gates: Tensor) -> Tensor:
    return r.view(uvqk, (uvqk.shape[0], uvqk.shape[1] - gates.shape[1]), uvqk.strides)


def _into_layer(r: Recorder, workload: Workload, x: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
    normed = r.made("hstu::layer_norm", (x,), x.shape, x.dtype)
    return normed, _product(r, workload, normed, r.cast(r.t(layer.weight), x.dtype))


def _product(r: Recorder, workload: Workload, x: Tensor, y: Tensor) -> Tensor:
    """`x` times `y`; in fp8, rounding `x` as a quantised layer does, and `y` in a pass ahead."""
    if workload.implementation.precision != "fp8":
        return mm(r, x, y)
    rounded = r.made("hstu::to_fp8", (y,), (y.shape[1], y.shape[0]), "fp8")
    shape, about = (x.shape[0], y.shape[1]), {FRAMEWORK: ROUNDING_LIKE}
    return r.made("quantised::linear", (x, rounded), shape, x.dtype, about=about)


def _attention_dims(workload: Workload, lengths: Lengths) -> dict[str, str]:
    """Of fused attention without softmax, over jagged sequences."""
    about = workload.sequence
    dims = {
        "tokens": lengths.tokens,
        "pairs": lengths.pairs,
        "heads": about.heads,
        "head_dim": about.attention_dim,
        "value_dim": about.hidden_dim,
        "cutlass": about.kernels == "cutlass",
        "sequences": lengths.samples if about.length_std > 0 else 0,
    }
    return {name: repr(float(value)) for name, value in dims.items()}

"""Attention over jagged sequences without softmax, fused or by PyTorch's operators, and the bias of
its scores by distance in places and in time.

Source: meta-recsys/generative-recommenders, ops/triton/triton_ragged_hstu_attention.py (a kernel of
its own for the bias' gradient) and research/modeling/sequential/hstu.py (unfused), counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.ops.graph import Tensor
from perfmodel.workload.dense import Layer
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.tensors import copy, zero
from perfmodel.workload.model import Workload
from perfmodel.workload.rank_work import Lengths

TIME_BUCKETS = 2048
"""Rows of a layer's bias by time (assumed: as many as DLRMv4's time embedding has)."""


def bias_tables(r: Recorder, workload: Workload) -> tuple[Layer, ...]:
    """Of one layer: the bias by places apart and that by time apart; none without such a bias."""
    if not workload.sequence.relative_bias:
        return ()
    places, times = r.tensor((2 * workload.sequence.max_length - 1,)), r.tensor((TIME_BUCKETS,))
    r.parameter(places, times)
    return (Layer(places, times),)


def attention(
    r: Recorder,
    workload: Workload,
    lengths: Lengths,
    qkv: Tensor,
    out: Tensor,
    bias: Sequence[Layer],
) -> tuple[Tensor, ...]:
    """`out` from queries, keys and values; what the backward pass needs beside them."""
    if workload.sequence.kernels == "unfused":
        return _unfused(r, workload, lengths, qkv, out, bias)
    r.leaf("hstu::attention", (qkv,), out, about=_about(workload, lengths))
    return ()


def attention_backward(
    r: Recorder,
    workload: Workload,
    lengths: Lengths,
    kept: tuple[Tensor, ...],
    given: tuple[Tensor, Tensor],
    out: Tensor,
    bias: Sequence[Layer],
) -> tuple[Tensor, ...]:
    """Into `out` the gradients of queries, keys and values; returns those of the `bias` tables.

    `given`: the gradient of what was attended to, and queries, keys and values.
    """
    of_bias = tuple(r.like(x) for each in bias for x in (each.weight, each.bias))
    if kept:
        _unfused_backward(r, kept, given[0], out, of_bias)
    else:
        queries = workload.sequence.heads * workload.sequence.attention_dim
        of_queries = r.view(out, (out.shape[0], queries), out.strides)
        is_collected = workload.sequence.kernels == "collected"
        total = r.tensor(of_queries.shape) if is_collected else of_queries
        zero(r, total)
        about = _about(workload, lengths)
        r.leaf("hstu::attention_backward", given, out, about=about)
        if is_collected:
            copy(r, of_queries, total)
        if of_bias:
            r.leaf("hstu::attention_bias_backward", given, of_bias, about=about)
    return of_bias


def _about(workload: Workload, lengths: Lengths) -> dict[str, str]:
    about = workload.sequence
    dims = {
        "tokens": lengths.tokens,
        "pairs": lengths.pairs,
        "heads": about.heads,
        "head_dim": about.attention_dim,
        "value_dim": about.hidden_dim,
        "cutlass": about.kernels == "cutlass",
        "bias_buckets": TIME_BUCKETS * about.relative_bias,
        "sequences": lengths.samples if about.length_std > 0 else 0,
    }
    return {name: repr(float(value)) for name, value in dims.items()}


def _unfused(
    r: Recorder,
    workload: Workload,
    lengths: Lengths,
    qkv: Tensor,
    out: Tensor,
    bias: Sequence[Layer],
) -> tuple[Tensor, ...]:
    """PyTorch's operators over sequences that are padded to the longest; all pairs are computed."""
    about = workload.sequence
    blocks, length = lengths.samples * about.heads, about.max_length
    sides = (about.attention_dim, about.attention_dim, about.hidden_dim)
    q, k, v = (r.tensor((blocks, length, side), qkv.dtype) for side in sides)
    r.leaf("hstu::pad_jagged", (qkv,), (q, k, v))
    scores, gated, weights = (r.tensor((blocks, length, length), qkv.dtype) for _ in range(3))
    r.leaf("aten::bmm", (q, _transposed(r, k)), scores)
    buckets = [_biased(r, scores, lengths.samples, each) for each in bias]
    r.leaf("aten::silu", (scores,), gated)
    mask = r.tensor((length, length), qkv.dtype)
    r.leaf("aten::mul", (gated, mask), weights)
    attended = r.made("aten::bmm", (weights, v), v.shape, qkv.dtype)
    r.leaf("hstu::split_jagged", (attended,), out)
    return q, k, v, scores, weights, mask, *buckets


def _biased(r: Recorder, scores: Tensor, samples: int, bias: Layer) -> Tensor:
    """Adds to the `scores` of all heads; returns the bucket of each pair's time."""
    shape = (samples, *scores.shape[1:])
    apart, limited, whole, buckets = (r.tensor(shape, "int64") for _ in range(4))
    logarithms, scaled, by_time, both = (r.tensor(shape) for _ in range(4))
    times = r.tensor(shape[:2], "int64")
    r.leaf("aten::sub", (times, times, 1), apart)
    r.leaf("aten::abs", (apart,), limited)
    r.leaf("aten::clamp", (limited, 1, None), apart)
    r.leaf("aten::log", (apart,), logarithms)
    r.leaf("aten::div", (logarithms, 0.301), scaled)
    r.leaf("aten::_to_copy", (scaled,), whole)
    r.leaf("aten::clamp", (whole, 0, TIME_BUCKETS), buckets)
    flat = r.view(buckets, (buckets.elements,), (1,))
    r.leaf("aten::index_select", (bias.bias, 0, flat), by_time)
    by_place = r.tensor(shape[1:])
    r.leaf("aten::add", (by_place, by_time, 1), both)
    r.leaf("aten::add_", (scores, both, 1), scores)
    return flat


def _unfused_backward(
    r: Recorder,
    kept: tuple[Tensor, ...],
    gradient: Tensor,
    out: Tensor,
    of_bias: tuple[Tensor, ...],
) -> None:
    q, k, v, scores, weights, mask, *buckets = kept
    padded = r.made("hstu::pad_jagged", (gradient,), v.shape, v.dtype)
    of_q, of_k, of_v = map(r.like, (q, k, v))
    of_weights, of_gated, of_scores = (r.like(scores) for _ in range(3))
    r.leaf("aten::bmm", (_transposed(r, weights), padded), of_v)
    r.leaf("aten::bmm", (padded, _transposed(r, v)), of_weights)
    r.leaf("aten::mul", (of_weights, mask), of_gated)
    r.leaf("aten::silu_backward", (of_gated, scores), of_scores)
    for flat in buckets:
        _of_bias(r, of_scores, flat, *of_bias)
    r.leaf("aten::bmm", (of_scores, k), of_q)
    r.leaf("aten::bmm", (_transposed(r, of_scores), q), of_k)
    r.leaf("hstu::split_jagged", (of_q, of_k, of_v), out)


def _of_bias(
    r: Recorder, of_scores: Tensor, flat: Tensor, of_places: Tensor, of_times: Tensor
) -> None:
    """Summed over heads, then by bucket of time, and over samples for places."""
    blocks, length, _ = of_scores.shape
    heads = blocks * length * length // flat.elements
    shape = (blocks // heads, heads, length, length)
    summed, by_place = r.tensor((flat.elements,)), r.tensor((length, length))
    strides = (heads * length * length, length * length, length, 1)
    r.leaf("aten::sum", (r.view(of_scores, shape, strides), (1,), False), summed)
    r.leaf("aten::index_add", (of_times, 0, flat, summed, 1), of_times)
    samples = r.view(summed, (shape[0], length, length), (length * length, length, 1))
    r.leaf("aten::sum", (samples, (0,), False), by_place)
    r.leaf("aten::index_add", (of_places, 0, by_place, by_place, 1), of_places)


def _transposed(r: Recorder, x: Tensor) -> Tensor:
    """`x` with rows and columns of each block swapped."""
    return r.view(x, (x.shape[0], x.shape[2], x.shape[1]), (x.strides[0], 1, x.strides[1]))

"""Where dense and sparse features meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.graph.ops import Tensor
from perfmodel.workload.eager.indexing import index_pairs
from perfmodel.workload.eager.joins import cat
from perfmodel.workload.eager.pointwise import add, mul
from perfmodel.workload.eager.products import bmm, linear, mm
from perfmodel.workload.eager.recorder import Recorder
from perfmodel.workload.eager.views import reshape, select, t, transpose, unsqueeze
from perfmodel.workload.model import Workload
from perfmodel.workload.parts.mlp import Layer, cast


@dataclass(frozen=True)
class Cross:
    """A cross layer of low rank: `down` `[rank, width]`, then `up` `[width, rank]` and its bias."""

    down: Tensor
    up: Layer


def cross_layers(r: Recorder, workload: Workload, dtype: str = "fp32") -> tuple[Cross, ...]:
    """Parameters of the cross layers; none for other interactions."""
    if workload.interaction.kind != "dcn_v2":
        return ()
    width, rank = workload.joined_width, workload.interaction.rank
    made = []
    for _ in range(workload.interaction.layers):
        down = r.tensor((rank, width), dtype)
        up = Layer(r.tensor((width, rank), dtype), r.tensor((width,), dtype))
        if r.tape is not None:
            for parameter in (down, up.weight, up.bias):
                r.tape.parameter(parameter)
        made.append(Cross(down, up))
    return tuple(made)


def cross_parameters(crosses: Sequence[Cross]) -> list[Tensor]:
    """All their tensors, in the order of a module's `parameters()`."""
    return [tensor for cross in crosses for tensor in (cross.down, cross.up.weight, cross.up.bias)]


def dot(r: Recorder, features: Tensor, sparse: Tensor, pairs: Tensor) -> Tensor:
    """Products of all pairs of features `[b, d]` and sparse `[b, t, d]`, after the features.

    `pairs` `[2, p]` holds the places below the diagonal.
    """
    joined = cat(r, [unsqueeze(r, features, 1), sparse], 1)
    products = bmm(r, joined, transpose(r, joined, 1, 2))
    flat = index_pairs(r, products, select(r, pairs, 0, 0), select(r, pairs, 0, 1))
    return cat(r, [features, flat], 1)


def side_by_side(r: Recorder, features: Tensor, sparse: Tensor) -> Tensor:
    """Features `[b, d]` and sparse `[b, t, d]` in one row."""
    return cat(r, [features, reshape(r, sparse, (features.shape[0], -1))], 1)


def cross(r: Recorder, x: Tensor, crosses: Sequence[Cross], dtype: str) -> Tensor:
    """Low-rank cross layers: x0 * (up (down x) + bias) + x.

    Source: DCN V2 (Wang et al. 2021), in the form that the MLPerf DLRM-DCNv2 reference has it.
    """
    first = x = cast(r, x, dtype)
    for layer in crosses:
        low = mm(r, x, t(r, cast(r, layer.down, dtype)))
        high = linear(r, low, cast(r, layer.up.weight, dtype), cast(r, layer.up.bias, dtype))
        x = add(r, mul(r, first, high), x)
    return x


def meet(
    r: Recorder,
    workload: Workload,
    features: Tensor,
    sparse: Tensor,
    crosses: Sequence[Cross],
    dtype: str,
    pairs: Tensor | None = None,
) -> Tensor:
    """The interaction of `workload`: what the top MLP gets, `[b, width]`.

    `pairs` are the places below the diagonal, on the device unless given.
    """
    if workload.interaction.kind == "dot":
        out = dot(r, features, sparse, pairs or pair_indices(r, workload))
    else:
        out = cross(r, side_by_side(r, features, sparse), crosses, dtype)
    return _padded(r, workload, out)


def pair_indices(r: Recorder, workload: Workload, place: str = "") -> Tensor:
    """Places below the diagonal."""
    vectors = len(workload.tables) + 1
    return r.tensor((2, vectors * (vectors - 1) // 2), "int64", place=place)


def _padded(r: Recorder, workload: Workload, x: Tensor) -> Tensor:
    missing = workload.top_width - x.shape[1]
    return cat(r, [x, r.tensor((x.shape[0], missing), x.dtype)], 1) if missing else x

"""Parts of a sequential recommender by PyTorch's operators, sequence by sequence, on any device:
what `fused.py` computes by Triton's kernels, function by function.

Rows of all sequences lie one after the other; `ends` (int64, one more than there are sequences) say
where each begins, `longest` bounds their lengths. Imports PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from hstu_collector.cases import CONTEXT, KEPT, TARGETS

EPSILON = 1e-6


def norm(x: Any, weight: Any, bias: Any, swish: bool) -> Any:
    """Layer norm, or with `swish` `x` times the sigmoid of that."""
    normed = functional.layer_norm(x.float(), weight.shape, weight, bias, EPSILON)
    return (x * torch.sigmoid(normed) if swish else normed).to(x.dtype)


def join(left: Any, right: Any, left_ends: Any, right_ends: Any, longest: int) -> Any:
    """Per sequence its rows of `left`, then those of `right`."""
    pairs = zip(_parts(left, left_ends), _parts(right, right_ends), strict=True)
    return torch.cat([part for pair in pairs for part in pair])


def split(x: Any, left_ends: Any, right_ends: Any, longest: int) -> tuple[Any, Any]:
    """What `join` had joined."""
    lengths = torch.stack([left_ends.diff(), right_ends.diff()], 1).flatten().tolist()
    parts = x.split(lengths)
    return torch.cat(parts[::2]), torch.cat(parts[1::2])


def add_positions(x: Any, ages: Any, by_place: Any, by_age: Any, ends: Any, longest: int) -> Any:
    """`x` and rows by place and by age, an integer that contextual positions have not."""
    places = torch.cat([torch.arange(length, device=x.device) for length in ends.diff().tolist()])
    buckets = torch.zeros_like(places)
    buckets[places >= CONTEXT] = ages.float().sqrt().long()
    rows = (
        by_place[places.clamp(max=len(by_place) - 1)] + by_age[buckets.clamp(max=len(by_age) - 1)]
    )
    return (x + rows).to(x.dtype)


def attend(uvqk: Any, ends: Any, longest: int, heads: int) -> tuple[Any, Any]:
    """SiLU of the gates, and what each position attends to, each `[n, heads * dim]`.

    `uvqk` are gates, values, queries and keys beside one another.
    """
    u, *others = uvqk.chunk(4, 1)
    parts = (_parts(each.unflatten(1, (heads, -1)), ends) for each in others)
    attended = [_attend(v, q, k, longest) for v, q, k in zip(*parts, strict=True)]
    return functional.silu(u), torch.cat(attended).flatten(1)


def _attend(v: Any, q: Any, k: Any, longest: int) -> Any:
    place = torch.arange(len(q), device=q.device)
    ids = (place - CONTEXT + 1).clamp(0, len(q) - TARGETS - CONTEXT + 1)
    seen = (ids[:, None] > ids) | (place[:, None] == place) | ((ids[:, None] == 0) & (ids == 0))
    scores = torch.einsum("ihd,jhd->hij", q, k) * q.shape[2] ** -0.5
    weights = functional.silu(scores) * seen / longest
    return torch.einsum("hij,jhd->ihd", weights, v)


def gate(u: Any, attended: Any, weight: Any, bias: Any, seed: int, kept: float = KEPT) -> Any:
    """Gates, `attended`, and its norm times the gates beside one another, with dropout."""
    normed = norm(attended.float(), weight, bias, False)
    joined = torch.cat([u, attended, (normed * u).to(u.dtype)], 1)
    return functional.dropout(joined, 1.0 - kept)


def update_rows(table: Any, state: Any, rows: Any, gradient: Any, rate: float) -> None:
    """Row-wise Adagrad on `rows` of `table`, each of which occurs once."""
    state.index_add_(0, rows, gradient.square().mean(1))
    step = gradient / (state[rows].sqrt()[:, None] + 1e-8)
    table.index_add_(0, rows, step, alpha=-rate)


def _parts(x: Any, ends: Any) -> Sequence[Any]:
    parts: Sequence[Any] = x.split(ends.diff().tolist())
    return parts

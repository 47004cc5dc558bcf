"""How much of what a profile measured on the device is lowered, and as what."""

from __future__ import annotations

from collections import defaultdict

from perfmodel.lowering.lower import Lowered
from perfmodel.lowering.observed import answered_by
from perfmodel.ops.families import family_of_kernel
from perfmodel.ops.graph import NO_OP
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.streaming import UNKNOWN
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.link import Links

_STREAMED = ("elementwise", "random", "dropout", "memcpy", "memset", "optimizer", "loss")
_GATHERED = ("gather_scatter", "elementwise", "embedding")
KERNEL_FAMILIES: dict[str, tuple[str, ...]] = {
    "matmul": ("matmul", "gemv", "reduction", "memset", "elementwise", "transpose"),
    "convolution": (*("convolution", "matmul", "transpose", "elementwise", "memset", "reduction"),),
    "attention": ("attention", "elementwise"),
    "embedding": ("embedding",),
    "optimizer": ("optimizer", "elementwise"),
    "sort": ("sort", "scan", "memset", "gather_scatter"),
    "collective": ("communication",),
    "transfer": ("memcpy_host", "memcpy", "memcpy_peer", "elementwise"),
}
"""Family of the vocabulary to those of kernel names that its ops become."""
SET_UPS = ("scan", "embedding")
"""What tiny kernels before others are called; they are lowered as fills."""
KERNEL_FAMILIES_OF_OP: dict[str, tuple[str, ...]] = {
    "fill": (*_STREAMED, *SET_UPS),
    "softmax": ("softmax",),
    "log_softmax": ("softmax",),
    "batch_norm": ("norm",),
    "layer_norm": ("norm",),
    "group_norm": ("norm",),
    "rms_norm": ("norm",),
    "max_pool": ("pooling",),
    "avg_pool": ("pooling", "reduction"),
    "cat": ("cat_split", "memcpy"),
    "split": ("cat_split",),
    "transpose_copy": ("elementwise", "transpose", "memcpy"),
    "permute_pooled": ("embedding", "gather_scatter"),
    "bounds_check": ("embedding",),
    "embedding_bag": ("embedding", "sort", "scan", "memset", "elementwise", "reduction"),
    "foreach": ("optimizer", "elementwise"),
} | dict.fromkeys(("sum", "sum_rows", "mean", "amax", "vector_norm"), ("reduction", "memset"))
"""The same for ops of the memory-bound family; all others of it stream."""
GATHERS = (
    *("index_select", "gather", "embedding", "index_add", "scatter_add", "index_put", "scatter"),
    *("index_put_accumulate", "jagged_permute", "jagged_bucketize", "jagged_to_dense"),
    "offsets_range",
)


def kernel_families(op: str) -> tuple[str, ...]:
    """The families of kernel names that an op of the vocabulary becomes."""
    if op in GATHERS:
        return _GATHERED
    families = KERNEL_FAMILIES_OF_OP.get(op)
    return families or KERNEL_FAMILIES.get(OPS[op].family, _STREAMED)


def lowered_shares(
    lowered: Lowered, rank: RankTrace, links: Links
) -> tuple[float, float, float, float]:
    """Of device time that an op launched, the share that is lowered without the fallback, and that
    of ops all of whose sizes are told; of time lowered, the share in kernels of a family that the
    op's pieces are. Then launches predicted per kernel measured, memsets left out."""
    pieces, rows = defaultdict(list), defaultdict(list)
    for piece, owner in zip(lowered.pieces, lowered.owner.tolist(), strict=True):
        pieces[owner].append(piece)
    answered = answered_by(lowered, rank, links).tolist()
    for row, owner in zip(links.device_rows.tolist(), answered, strict=True):
        if owner != NO_OP:
            rows[owner].append((family_of_kernel(rank.text(row)), float(rank.duration_us[row])))
    linked_us = lowered_us = told_us = matched_us = 0.0
    for owner, measured in rows.items():
        made = pieces[owner]
        spent_us = sum(us for _, us in measured)
        linked_us += spent_us
        if made and made[0].op != UNKNOWN:
            families = {family for piece in made for family in kernel_families(piece.op)}
            lowered_us += spent_us
            told_us += spent_us * (not any(piece.guessed for piece in made))
            matched_us += sum(us for family, us in measured if family in families)
    launches = sum(piece.launches for made in pieces.values() for piece in made)
    kernels = sum(family != "memset" for measured in rows.values() for family, _ in measured)
    shares = lowered_us / linked_us, told_us / linked_us, matched_us / lowered_us
    return *shares, launches / kernels

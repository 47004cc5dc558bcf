"""How much of what a profile measured on the device is lowered, and as what."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfmodel.lowering.lower import Lowered
from perfmodel.lowering.observed import answered_by
from perfmodel.ops.families import family_of_kernel
from perfmodel.ops.graph import NO_OP
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.host import UNKNOWN
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.link import Links

if TYPE_CHECKING:
    import pandas as pd


_STREAMED = ("elementwise", "random", "dropout", "memcpy", "memset", "optimizer", "loss")
_GATHERED = ("gather_scatter", "elementwise", "embedding")
KERNEL_FAMILIES: dict[str, tuple[str, ...]] = {
    "matmul": ("gemm", "gemv", "reduction", "memset", "elementwise", "transpose"),
    "convolution": (*("conv", "gemm", "transpose", "elementwise", "memset", "reduction"),),
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


@dataclass(frozen=True)
class OpCoverage:
    """One op name of a trace: what ran for it, and what it is lowered to."""

    name: str
    calls: int
    """Of those, that launched something when measured, or are lowered to something."""
    measured_us: float
    measured_kernels: float
    """Kernels, memsets left out, per call."""
    predicted_kernels: float
    fallback: bool
    guessed_frac: float
    """Share of the calls of which a size is guessed."""
    matched_us: float
    """Of `measured_us`, in kernels of a family that the pieces are."""


@dataclass(frozen=True)
class Coverage:
    """Device time of a rank by how it is lowered, in microseconds."""

    linked_us: float
    """In kernels, copies and memsets that an op launched."""
    lowered_us: float
    """Of those, of an op with a rule that gives pieces."""
    told_us: float
    """Of those, of an op all of whose sizes are known."""
    matched_us: float
    """Of those lowered, in kernels of a family that the op's pieces are."""
    unlinked_us: float
    """In what no op launched: outside of all ops, or before the recording."""
    ops: tuple[OpCoverage, ...]
    """By op that a rule answers for, most time first."""

    @property
    def lowered_frac(self) -> float:
        """Share of the linked device time that is lowered without the fallback."""
        return self.lowered_us / self.linked_us if self.linked_us else 1.0

    def to_frame(self) -> pd.DataFrame:
        """One row per op name as a pandas frame."""
        import pandas as pd

        return pd.DataFrame([vars(op) for op in self.ops])


def coverage(lowered: Lowered, rank: RankTrace, links: Links) -> Coverage:
    """Compare what `lowered` holds with the device rows of the profile that its graph is of."""
    ops = lowered.graph.ops
    predicted: dict[int, list[int]] = defaultdict(list)
    for at, owner in enumerate(lowered.owner.tolist()):
        predicted[owner].append(at)
    measured: dict[int, list[int]] = defaultdict(list)
    unlinked_us = 0.0
    rows = links.device_rows.tolist()
    for row, owner in zip(rows, answered_by(lowered, rank, links).tolist(), strict=True):
        if owner == NO_OP:
            unlinked_us += float(rank.duration_us[row])
        else:
            measured[owner].append(row)
    totals: dict[str, float] = defaultdict(float)
    by_name: dict[str, _Sum] = defaultdict(_Sum)
    for owner in sorted({*predicted, *measured}):
        pieces = [lowered.pieces[at] for at in predicted[owner]]
        families = {family for piece in pieces for family in kernel_families(piece.op)}
        names = [(rank.text(row), float(rank.duration_us[row])) for row in measured[owner]]
        spent = sum(us for _, us in names)
        known = bool(pieces) and pieces[0].op != UNKNOWN
        matched = sum(us for name, us in names if family_of_kernel(name) in families)
        stated = known and not any(piece.guessed for piece in pieces)
        totals["linked"] += spent
        totals["lowered"] += spent * known
        totals["stated"] += spent * stated
        totals["matched"] += matched * known
        by_name[ops[owner].name].add(
            spent,
            matched * known,
            sum(family_of_kernel(name) != "memset" for name, _ in names),
            sum(piece.launches for piece in pieces),
            known,
            not stated,
        )
    table = [sums.row(name) for name, sums in by_name.items()]
    return Coverage(
        totals["linked"],
        totals["lowered"],
        totals["stated"],
        totals["matched"],
        unlinked_us,
        tuple(sorted(table, key=lambda row: -row.measured_us)),
    )


class _Sum:
    """Running sums over the calls of one op name."""

    def __init__(self) -> None:
        self._sums = [0.0] * 4
        self._calls = self._known = self._guessed = 0

    def add(
        self, us: float, matched_us: float, kernels: int, pieces: int, known: bool, guessed: bool
    ) -> None:
        for at, value in enumerate((us, matched_us, kernels, pieces)):
            self._sums[at] += value
        self._calls += 1
        self._known += known
        self._guessed += guessed

    def row(self, name: str) -> OpCoverage:
        us, matched_us, kernels, pieces = self._sums
        return OpCoverage(
            name=name,
            calls=self._calls,
            measured_us=us,
            measured_kernels=kernels / self._calls,
            predicted_kernels=pieces / self._calls,
            fallback=not self._known,
            guessed_frac=self._guessed / self._calls,
            matched_us=matched_us,
        )

"""What if the payload of collectives were sent in a narrower type? Codecs cost kernels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.durations import durations_of
from perfmodel.errors import UsageError
from perfmodel.graph.insert import CollectiveNeighbours, with_kernels
from perfmodel.graph.kinds import NodeKind
from perfmodel.graph.types import ExecutionGraph
from perfmodel.hardware import Cluster
from perfmodel.ops.rows import Rows
from perfmodel.prediction.explain.node import call_stack, enclosing_rows
from perfmodel.trace import RankTrace, Trace
from perfmodel.trace.columns import NONE

WIDE_BYTES, BOOL_BYTES = 4.0, 1.0
BACKWARD = "Backward"
"""In the operators around an exchange of gradients."""


@dataclass(frozen=True)
class _Stream:
    """A kernel that streams the payload once: bytes read and written per element."""

    name: str
    read_bytes: float
    written_bytes: float


@dataclass(frozen=True)
class _Codec:
    """A type for payloads: its bytes, and whether values are clamped to its range before."""

    item_bytes: float
    clamps: bool


CODECS = {"fp16": _Codec(2.0, clamps=True), "bf16": _Codec(2.0, clamps=False)}
"""bf16 reaches as far as fp32, so nothing is clamped.
Source: FBGEMM's `fp32_to_fp16_with_clamp`, recalled; TorchRec's `QuantizedCommCodecs`."""
_MASKS = (
    _Stream("elementwise codec: compare", WIDE_BYTES, BOOL_BYTES),
    _Stream("elementwise codec: compare", WIDE_BYTES, BOOL_BYTES),
    _Stream("elementwise codec: and", 2 * BOOL_BYTES, BOOL_BYTES),
)
_MASKED = (_Stream("elementwise codec: where", WIDE_BYTES + BOOL_BYTES, WIDE_BYTES),)
"""What autograd does for a clamp: masks of what was inside the range, applied to the gradient."""


@dataclass(frozen=True)
class Codec:
    """Collectives whose operators `pattern` fits send `dtype`: `REGEX=DTYPE[,elements=N]`."""

    text: str
    pattern: re.Pattern[str]
    dtype: str
    elements: int | None

    @classmethod
    def parse(cls, text: str) -> Codec:
        """From the command line's `--codec`; raises `UsageError` saying what is wrong."""
        what, equals, how = text.rpartition("=")
        elements = None
        if what.endswith(",elements") and how.isdecimal() and int(how) > 0:
            elements = int(how)
            what, equals, how = what.removesuffix(",elements").rpartition("=")
        if not (what and equals) or how not in CODECS:
            raise UsageError(
                f"--codec {text!r}: expected REGEX=DTYPE[,elements=N], DTYPE one of "
                f"{', '.join(CODECS)}, N a whole number above 0"
            )
        try:
            return cls(text, re.compile(what), how, elements)
        except re.error as error:
            raise UsageError(f"--codec {text!r}: not a regular expression: {error}") from None


def with_codecs(
    trace: Trace,
    graph: ExecutionGraph,
    duration_us: Floats,
    codecs: Sequence[Codec],
    machine: Cluster,
) -> tuple[ExecutionGraph, Floats, list[str]]:
    """The graph with the codecs' kernels, the durations of its nodes with shorter transfers, and
    what a user should know.

    A codec is matched against the operators and annotations around a collective's launch, as in
    `forward / _AlltoAllSingle / c10d::alltoall_base_`. A transfer shrinks as the model of its
    collective says for the smaller payload. Raises `UsageError` where a codec matches no
    collective, or the size of a payload is neither recorded nor given.
    """
    ranks = {rank.rank: rank for rank in trace.ranks}
    collectives = _collectives(trace, graph)
    taken = duration_us.copy()
    added: list[CollectiveNeighbours] = []
    notes = []
    clamped = any(CODECS[codec.dtype].clamps for codec in codecs)
    for codec in codecs:
        chosen = [one for one in collectives if codec.pattern.search(one.stack)]
        if not chosen:
            raise UsageError(f"--codec {codec.text!r} matches no collective of this trace")
        for one in chosen:
            elements = codec.elements or one.elements
            if not elements:
                raise UsageError(
                    f"--codec {codec.text!r}: the trace does not record how many elements "
                    f"{graph.labels[one.transfer][:60]!r} sends: say ,elements=N"
                )
            rank = ranks[int(graph.nodes_.rank[one.transfer])]
            taken[one.transfer] *= _shrinkage(codec.dtype, elements, trace, rank, machine)
            added.append(_codec_kernels(one, codec.dtype, elements, clamped, machine))
        added_us = sum(us for _, us in _work(added[-1]))
        notes.append(
            f"codec {codec.text}: {len(chosen)} collectives, {added_us:.0f} us of kernels around "
            "the last; their launches take the host no time"
        )
    edited = with_kernels(graph, added)
    return edited, np.append(taken, edited.nodes_.duration_us[len(graph) :]), notes


def _work(one: CollectiveNeighbours) -> list[tuple[str, float]]:
    return [*one.before, *one.beside, *one.behind]


@dataclass(frozen=True)
class _Collective:
    """A collective on a device: its nodes, the operators around its launch, and what it sends."""

    arrival: int
    transfer: int
    stack: str
    elements: int
    """0 where it is not recorded."""


def _collectives(trace: Trace, graph: ExecutionGraph) -> list[_Collective]:
    """Every collective on a device whose launch was recorded."""
    arrivals = np.zeros((0, 2), np.int64) if graph.arrivals is None else graph.arrivals
    met = dict(zip(*arrivals.T.tolist(), strict=True))
    of_rank = {
        rank.rank: (
            rank,
            dict(zip(links.device_rows.tolist(), links.device_launch.tolist(), strict=True)),
        )
        for rank, links in zip(trace.ranks, trace.links, strict=True)
    }
    collectives = []
    is_collective = (graph.nodes_.kind == NodeKind.COLLECTIVE) & graph.on_device
    is_collective[arrivals[:, 1]] = False
    for node in np.flatnonzero(is_collective).tolist():
        rank, launched = of_rank[int(graph.nodes_.rank[node])]
        row = int(graph.nodes_.row[node])
        launch = launched.get(row, NONE)
        if launch != NONE:
            events = [row, *enclosing_rows(rank, launch).tolist()]
            elements = max(0, int(rank.in_elements[events].max()))
            stack = call_stack(rank, launch)
            collectives.append(_Collective(met.get(node, node), node, stack, elements))
    return collectives


def _shrinkage(dtype: str, elements: int, trace: Trace, rank: RankTrace, machine: Cluster) -> float:
    """Modelled time of the narrow payload over that of the wide one."""
    ranks = float(max(rank.world_size or 1, len(trace.ranks), 2))
    rows = Rows.of(
        [
            {"op": "all_to_all", "dtype": "fp32", "direction": "fwd", "ranks": ranks}
            | {"size_bytes": elements * item}
            for item in (CODECS[dtype].item_bytes, WIDE_BYTES)
        ]
    )
    narrow, wide = durations_of(rows, machine).duration_us.tolist()
    return float(narrow / wide)


def _codec_kernels(
    one: _Collective, dtype: str, elements: int, clamped: bool, machine: Cluster
) -> CollectiveNeighbours:
    """Encoding before a collective and decoding behind it; behind an exchange of gradients also
    what the gradient of a clamp takes."""
    item = CODECS[dtype].item_bytes
    narrow = _Stream("elementwise codec: encode", WIDE_BYTES, item)
    widen = _Stream("elementwise codec: decode", item, WIDE_BYTES)
    clamp = (
        (_Stream("elementwise codec: clamp", WIDE_BYTES, WIDE_BYTES),)
        if CODECS[dtype].clamps
        else ()
    )
    is_backward = BACKWARD in one.stack
    masks, masked = (_MASKS, _MASKED) if is_backward and clamped else ((), ())
    parts = ((*clamp, narrow), masks, (widen, *masked))
    streams = [stream for part in parts for stream in part]
    times = iter(_times_us(streams, elements, machine))
    before, beside, behind = ([(each.name, next(times)) for each in part] for part in parts)
    return CollectiveNeighbours(one.arrival, one.transfer, before, beside, behind)


def _times_us(streams: Sequence[_Stream], elements: int, machine: Cluster) -> list[float]:
    rows = Rows.of(
        [
            {
                "op": "elementwise",
                "dtype": "fp32",
                "direction": "fwd",
                "elements": float(elements),
                "reads": one.read_bytes / WIDE_BYTES,
                "writes": one.written_bytes / WIDE_BYTES,
            }
            for one in streams
        ]
    )
    times_us: list[float] = durations_of(rows, machine).duration_us.tolist()
    return times_us

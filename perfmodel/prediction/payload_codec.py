"""What if the payload of collectives were sent in a narrower type? Transfers shrink, and the
operations before and behind them also take what the codec's kernels would take."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.base.arrays import Floats, has_code
from perfmodel.cost.durations import durations_of
from perfmodel.errors import UsageError
from perfmodel.ops.edits.named import CLAMPED
from perfmodel.ops.rows import Rows
from perfmodel.prediction.transferred import source_machine
from perfmodel.timeline.graph.kinds import STREAM_KINDS, EdgeKind, NodeKind
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.trace import Trace
from perfmodel.trace.columns import NONE
from perfmodel.trace.link import rows_around

FORM = re.compile(rf"(.+)=({'|'.join(CLAMPED)})(?:,elements=(0*[1-9]\d{{,17}}))?", re.DOTALL)
HANDED = (EdgeKind.EVENT_WAIT, EdgeKind.EVENT_WAIT_COLLECTIVE, EdgeKind.DATA)
CLAMP, ENCODE, DECODE = (1.0, 1.0), (1.0, 0.5), (0.5, 1.0)
"""Each kernel streams the payload: shares of its fp32 bytes read, and written.
Source: FBGEMM's `fp32_to_fp16_with_clamp`, recalled; TorchRec's `QuantizedCommCodecs`."""
CLAMP_GRADIENT = ((1.0, 0.25), (1.0, 0.25), (0.5, 0.25), (1.25, 1.0))
"""What autograd does for a clamp: two comparisons, what is inside both, applied to the gradient."""


@dataclass(frozen=True)
class Codec:
    """Collectives whose operators `pattern` fits send `dtype`: `REGEX=DTYPE[,elements=N]`.

    `elements` is 0 where it is what the trace records."""

    text: str
    pattern: re.Pattern[str]
    dtype: str
    elements: int

    @classmethod
    def parse(cls, text: str) -> Codec:
        """From the command line's `--codec`; raises `UsageError` saying what is wrong."""
        if not (match := FORM.fullmatch(text)):
            raise UsageError(
                f"--codec {text!r}: expected REGEX=DTYPE[,elements=N], DTYPE one of "
                f"{', '.join(CLAMPED)}, N a whole number above 0"
            )
        try:
            return cls(text, re.compile(match[1]), match[2], int(match[3] or 0))
        except re.error as error:
            raise UsageError(f"--codec {text!r}: not a regular expression: {error}") from None


def with_codecs(
    trace: Trace, graph: ExecutionGraph, duration_us: Floats, codecs: Sequence[Codec]
) -> tuple[Floats, list[str]]:
    """`duration_us` of the nodes of `graph` under the codecs, and what a user should know.

    What encodes is added to the operation that a collective waited for, what decodes to the first
    that waited for it; else to the transfer. Raises `UsageError` where a codec matches no
    collective, or the size of a payload is neither recorded nor given.
    """
    machine = source_machine(
        trace, "and a codec's kernels take what they take on it: name it with --source"
    )
    before, behind, collectives = *_neighbours(graph), list(_collectives(trace, graph))
    shrunk_us, added_us, notes = duration_us.copy(), np.zeros(len(graph)), []
    clamped = any(CLAMPED[codec.dtype] for codec in codecs)
    ranks = max(2, len(trace.ranks), *(rank.world_size or 1 for rank in trace.ranks))
    for codec in codecs:
        if not (chosen := [one for one in collectives if codec.pattern.search(one[2])]):
            raise UsageError(f"--codec {codec.text!r} matches no collective of this trace")
        for arrival, transfer, stack, recorded in chosen:
            if not (elements := float(codec.elements or recorded)):
                raise UsageError(
                    f"--codec {codec.text!r}: the trace does not record how many elements "
                    f"{graph.labels[transfer][:60]!r} sends: say ,elements=N"
                )
            encode = (CLAMP, ENCODE) if CLAMPED[codec.dtype] else (ENCODE,)
            decode = (DECODE, *(CLAMP_GRADIENT if clamped and "Backward" in stack else ()))
            sent = {"op": "all_to_all", "ranks": float(ranks)}
            rows = [sent | {"size_bytes": elements * item} for item in (2.0, 4.0)]
            kernel = {"op": "elementwise", "elements": elements}
            rows += [kernel | {"reads": r, "writes": w} for r, w in (*encode, *decode)]
            narrow_us, wide_us, *taken_us = durations_of(Rows.of(rows), machine).duration_us
            shrunk_us[transfer] *= narrow_us / wide_us
            added_us[before.get(arrival, transfer)] += sum(taken_us[: len(encode)])
            added_us[behind.get(transfer, transfer)] += sum(taken_us[len(encode) :])
        notes.append(
            f"codec {codec.text}: {len(chosen)} collectives, {sum(taken_us):.0f} us of kernels "
            "around the last; their launches take the host no time"
        )
    return shrunk_us + added_us, notes


def _neighbours(graph: ExecutionGraph) -> tuple[dict[int, int], dict[int, int]]:
    """By operation: what it waited for last, else the one before it; what waited for it first."""
    edges = graph.edges_.where(has_code(graph.edges_.kind, (*HANDED, *STREAM_KINDS)))
    handed, ends = has_code(edges.kind, HANDED), np.stack([edges.source, edges.target], axis=1)
    last = np.lexsort((graph.nodes_.end_us[edges.source], handed))
    first = np.argsort(-graph.nodes_.start_us[edges.target], kind="stable")
    first = first[(handed & graph.on_device[edges.target])[first]]
    return dict(ends[last, ::-1].tolist()), dict(ends[first].tolist())


def _collectives(trace: Trace, graph: ExecutionGraph) -> Iterator[tuple[int, int, str, int]]:
    """(arrival, transfer, names around its launch, elements or 0) of each on a device whose launch
    was recorded; both are one node where ranks do not meet."""
    for rank, links in zip(trace.ranks, trace.links, strict=True):
        launched = dict(zip(links.device_rows.tolist(), links.device_launch.tolist(), strict=True))
        for arrival, transfer in np.stack(graph.device_span(rank.rank), axis=1).tolist():
            launch = launched.get(row := int(graph.nodes_.row[transfer]), NONE)
            if graph.nodes_.kind[transfer] == NodeKind.COLLECTIVE and launch != NONE:
                around = rows_around(rank, launch).tolist()
                elements = max(0, int(rank.in_elements[[row, *around]].max()))
                yield arrival, transfer, " / ".join(map(rank.text, around)), elements

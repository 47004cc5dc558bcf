"""Tiny Kineto documents, written as one draws a timeline on paper: (start, end) in microseconds.

    t = Tiny()
    t.step(1, 0, 100)
    t.op("aten::mm", 10, 30)
    t.launch(15, 20, kernel=(40, 90))

Host events stand on the main thread (`MAIN`) and device work on stream 7 unless told otherwise.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.timeline.critical_path import Piece
from perfmodel.timeline.graph import ExecutionGraph, build_graph
from perfmodel.timeline.graph.kinds import Cause, EdgeKind
from perfmodel.timeline.graph.types import Edges, Nodes, StepMarks
from perfmodel.timeline.steady import Recurrence, SteadyState
from perfmodel.trace import Links, RankTrace, Trace, link
from perfmodel.trace.execution_trace import decode_execution_trace
from perfmodel.trace.execution_trace_columns import ExecutionTrace
from perfmodel.trace.kineto import decode_kineto

MAIN, AUTOGRAD, WORKER = 1, 2, 3
STREAM, COPIES, COMMS = 7, 8, 9
GEMM, NCCL = "volta_sgemm_128x64", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
EVALUATE = "autograd::engine::evaluate_function: "

Span = tuple[float, float]


def float_inputs(*dims: list[int]) -> dict[str, Any]:
    """Arguments of an event: fp32 tensors of these shapes."""
    return {"Input Dims": [*dims], "Input type": ["float"] * len(dims)}


class Tiny:
    """One rank's trace, event by event. Calls return their correlation, other events nothing."""

    def __init__(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        clock_ns: int = 0,
        where: str = "tiny.json",
        device: str = "Tesla V100-SXM2-16GB",
    ) -> None:
        self.where = where
        self.events: list[dict[str, Any]] = []
        self.head: dict[str, Any] = {
            "deviceProperties": [{"name": device, "totalGlobalMem": 16_945_512_448, "numSms": 80}],
            "baseTimeNanoseconds": clock_ns,
        }
        if rank is not None:
            self.head["distributedInfo"] = {"rank": rank, "world_size": world_size}
        self._correlation = 100

    def __repr__(self) -> str:
        return "\n".join(
            f"{e['cat']} {e['name']} {e['ts']}+{e['dur']} t{e['tid']} {e['args']}"
            for e in sorted(self.events, key=lambda e: float(e["ts"]))
        )

    def event(self, category: str, name: str, span: Span, thread: int, **args: Any) -> None:
        start, end = span
        event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread}
        # Rounded to nanoseconds, so that sums of decimals written in a test stay exact.
        times = {"ts": round(start, 3), "dur": round(end - start, 3)}
        self.events.append(event | times | {"args": args})

    def step(
        self, number: int, start: float, end: float, category: str = "user_annotation"
    ) -> None:
        self.event(category, f"ProfilerStep#{number}", (start, end), MAIN)

    def op(self, name: str, start: float, end: float, thread: int = MAIN, **args: Any) -> None:
        self.event("cpu_op", name, (start, end), thread, **args)

    def note(self, name: str, start: float, end: float, thread: int = MAIN) -> None:
        """An annotation."""
        self.event("user_annotation", name, (start, end), thread)

    def call(
        self,
        name: str,
        start: float,
        end: float,
        thread: int = MAIN,
        correlation: int | None = None,
        category: str = "cuda_runtime",
    ) -> int:
        """A call of the runtime or driver."""
        if correlation is None:
            self._correlation = correlation = self._correlation + 1
        self.event(category, name, (start, end), thread, correlation=correlation)
        return correlation

    def kernel(
        self,
        start: float,
        end: float,
        name: str = GEMM,
        stream: int = STREAM,
        correlation: int = 0,
        waves: float = 0.0,
        category: str = "kernel",
        device: int = 0,
    ) -> None:
        """Work on a device; without a correlation nothing in the file launched it."""
        args: dict[str, Any] = {"device": device, "stream": stream, "correlation": correlation}
        if waves:
            # 64 warps on each SM is all that fit: `waves` times that many were asked for.
            full = {"blocks per SM": waves, "warps per SM": waves * 64}
            args |= full | {"est. achieved occupancy %": 100}
        self.event(category, name, (start, end), stream, **args)

    def launch(
        self,
        start: float,
        end: float,
        kernel: Span | list[Span],
        name: str = GEMM,
        stream: int = STREAM,
        thread: int = MAIN,
        call: str = "cudaLaunchKernel",
        waves: float = 0.0,
        category: str = "kernel",
    ) -> int:
        """A launch call and the kernel that it starts (a list: all kernels of a graph launch)."""
        correlation = self.call(call, start, end, thread)
        for span in kernel if isinstance(kernel, list) else [kernel]:
            self.kernel(*span, name, stream, correlation, waves, category)
        return correlation

    def copy(
        self,
        start: float,
        end: float,
        copy: Span,
        name: str = "Memcpy HtoD (Pinned -> Device)",
        stream: int = STREAM,
        thread: int = MAIN,
        call: str = "cudaMemcpyAsync",
    ) -> int:
        """A copy call and its copy on the device."""
        return self.launch(start, end, copy, name, stream, thread, call, category="gpu_memcpy")

    def product(self, begin: float, kernel: Span) -> None:
        """A matrix product with its shapes: an operator of 20 us and its kernel."""
        self.op("aten::mm", begin, begin + 20, **float_inputs([64, 32], [32, 16]))
        self.launch(begin + 5, begin + 10, kernel=kernel)

    def around_an_exchange(self, op: str, exchange: str, kernels: tuple[str, str, str]) -> None:
        """`op` with the first of the `kernels`, whose end a collective on a stream of its own waits
        for; `op` with the second beside that; `op` with the third, which waits for it."""
        make, beside, read = kernels
        self.op(op, 0, 10)
        self.launch(2, 4, kernel=(10, 50), name=make)
        self.op(exchange, 10, 20)
        self.call("cudaStreamWaitEvent", 11, 12)
        self.launch(13, 15, kernel=(52, 152), name=NCCL, stream=COMMS)
        self.op(op, 20, 30)
        self.launch(22, 24, kernel=(51, 91), name=beside)
        self.op(op, 30, 50)
        self.call("cudaStreamWaitEvent", 31, 32)
        self.launch(33, 35, kernel=(155, 195), name=read)

    def document(self) -> dict[str, Any]:
        return self.head | {"traceEvents": self.events}

    def content(self) -> bytes:
        return json.dumps(self.document()).encode()

    def rank_trace(self) -> RankTrace:
        return decode_kineto(self.content(), self.where)

    def linked(self) -> tuple[RankTrace, Links]:
        rank = self.rank_trace()
        return rank, link(rank)

    def trace(self) -> Trace:
        return trace_of(self)

    def graph(self) -> ExecutionGraph:
        return build_graph(self.trace())


def trace_of(*tinies: Tiny) -> Trace:
    """What `read` makes of a folder of these files."""
    ranks = tuple(tiny.rank_trace() for tiny in tinies)
    for position, rank in enumerate(ranks):
        if rank.rank < 0:
            object.__setattr__(rank, "rank", position)
    return Trace("tiny", ranks, {})


def graph_of(*tinies: Tiny) -> ExecutionGraph:
    return build_graph(trace_of(*tinies))


def nodes_named(graph: ExecutionGraph, label: str, kind: int | None = None) -> list[int]:
    """Nodes of a label (and kind), in order of measured start."""
    nodes = graph.nodes_
    found = [
        node
        for node, text in enumerate(graph.labels)
        if text == label and (kind is None or nodes.kind[node] == kind)
    ]
    return sorted(found, key=lambda node: float(nodes.start_us[node]))


def edges_of(graph: ExecutionGraph, *kinds: EdgeKind) -> list[tuple[str, str]]:
    """(label of source, label of target) of the edges of these kinds, in order of the source."""
    edges, start = graph.edges_, graph.nodes_.start_us
    chosen = np.flatnonzero(np.isin(edges.kind, kinds))
    order = sorted(chosen, key=lambda e: (start[edges.source[e]], start[edges.target[e]]))
    return [(graph.labels[edges.source[e]], graph.labels[edges.target[e]]) for e in order]


def lags_of(graph: ExecutionGraph, kind: EdgeKind) -> list[float]:
    """The different lags of one kind of edge."""
    return sorted(set(graph.edges_.lag_us[graph.edges_.kind == kind].tolist()))


def told(pieces: list[Piece]) -> list[tuple[str, float]]:
    """(cause, microseconds) of the pieces of a path, neighbours of one cause joined."""
    found: list[tuple[str, float]] = []
    for piece in pieces:
        cause, us = Cause(piece.cause).name.lower(), piece.end_us - piece.start_us
        if found and found[-1][0] == cause:
            us += found.pop()[1]
        found.append((cause, us))
    return [(cause, round(us, 6)) for cause, us in found]


@dataclass
class EtNode:
    """One operator of an execution trace; tensors are named by small numbers."""

    name: str
    rf_id: int
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    thread: int = MAIN


def execution_trace_content(*nodes: EtNode) -> bytes:
    """An execution trace (schema 1.0.1) of these operators, in their order."""

    def written(node_id: int, parent: int, node: EtNode) -> dict[str, Any]:
        full: dict[str, Any] = {"id": node_id, "name": node.name, "parent": parent}
        full |= {"rf_id": node.rf_id, "tid": node.thread, "seq_id": -1, "scope": 0}
        full |= {"fw_parent": 0, "fw_tid": 0, "op_schema": ""}
        for key, tensors in ("input", node.inputs), ("output", node.outputs):
            full[f"{key}s"] = [[t, 100 + t, 0, 8, 4, "cuda:0"] for t in tensors]
            full[f"{key}_types"] = ["Tensor(float)"] * len(tensors)
            full[f"{key}_shapes"] = [[8]] * len(tensors)
        return full

    root = written(1, 1, EtNode("[pytorch|profiler|execution_trace|process]", 0, thread=0))
    found, parents = [root], {}
    for node in nodes:
        if node.thread not in parents:
            parents[node.thread] = len(found) + 1
            name = "[pytorch|profiler|execution_trace|thread]"
            found.append(written(len(found) + 1, 1, EtNode(name, 0, thread=node.thread)))
        found.append(written(len(found) + 1, parents[node.thread], node))
    return json.dumps({"schema": "1.0.1", "pid": 1, "nodes": found}).encode()


def execution_trace(*nodes: EtNode) -> ExecutionTrace:
    return decode_execution_trace(execution_trace_content(*nodes), "et.json")


def made_graph(
    nodes: dict[str, tuple[str, float, float]],
    edges: list[tuple[str, str]] | list[tuple[str, str, float]],
    kind: EdgeKind = EdgeKind.PROGRAM,
    **columns: Any,
) -> ExecutionGraph:
    """A graph without a trace: nodes as {label: (resource, measured start, duration)}, edges as
    (source, target) or (source, target, lag). The first node is where the step starts, the last
    where it ends; nodes without an edge into them are released at their measured start."""
    labels = list(nodes)
    index = {label: at for at, label in enumerate(labels)}
    resources = sorted({resource for resource, _, _ in nodes.values()})
    start = np.array([start for _, start, _ in nodes.values()], float)
    source = np.array([index[edge[0]] for edge in edges], np.int64)
    target = np.array([index[edge[1]] for edge in edges], np.int64)
    lag = np.array([edge[2] if len(edge) > 2 else 0.0 for edge in edges], float)
    free = ~np.isin(np.arange(len(labels)), target)
    zeros = np.zeros(len(labels), np.int64)
    return ExecutionGraph(
        Nodes(
            kind=columns.get("kinds", zeros),
            cause=columns.get("causes", zeros),
            scope=columns.get("scopes", zeros),
            rank=zeros,
            resource=np.array([resources.index(r) for r, _, _ in nodes.values()], np.int64),
            row=zeros - 1,
            start_us=start,
            duration_us=np.array([us for _, _, us in nodes.values()], float),
            release_us=np.where(free, start, -np.inf),
        ),
        Edges(
            source,
            target,
            np.full(len(edges), kind, np.int64),
            columns.get("overlap", np.zeros(len(edges))),
            lag,
        ),
        StepMarks(zeros[:1], ("step",), zeros[:1], np.array([len(labels) - 1])),
        tuple(resources),
        tuple(labels),
        ("",) * len(labels),
    )


def steady_state(graph: ExecutionGraph, duration_us: Floats | None = None) -> SteadyState:
    """How a step goes on when it is repeated for ever, as measured where nothing else is said."""
    duration = graph.nodes_.duration_us if duration_us is None else duration_us
    return Recurrence.of(graph).steady_state(duration)

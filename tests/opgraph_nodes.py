"""Op graphs of hand-made execution traces and profiles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from perfmodel.ops.graph import OpGraph
from perfmodel.ops.read import op_graph
from perfmodel.trace import Trace
from perfmodel.trace.execution_trace import decode_execution_trace
from perfmodel.trace.kineto import decode_kineto

TRACES = Path(__file__).parent / "timeline/graph/opgraph/traces"
MAIN, ENGINE = 1, 2
USER_SCOPE = 7


def tensor(tid: int, *shape: int, storage: int = 0, device: str | None = "cuda:0") -> Any:
    """(value, shape) of an fp32 tensor; without a device as in schema 1.0.0."""
    count = 1
    for size in shape:
        count *= size
    value: list[Any] = [tid, storage or tid + 1000, 0, count, 4]
    return [*value, device] if device is not None else value, list(shape)


class Et:
    """An execution trace, node by node; `at` is the caller's id."""

    def __init__(self, schema: str = "1.0.1") -> None:
        self.schema = schema
        self.nodes: list[dict[str, Any]] = []
        self.add("[pytorch|profiler|execution_graph|process]", at=1, scope=USER_SCOPE, tid=0)
        self.main = self.add("[pytorch|profiler|execution_graph|thread]", at=1, scope=USER_SCOPE)
        self.engine = 0

    def add(
        self,
        name: str,
        inputs: list[Any] | None = None,
        outputs: list[Any] | None = None,
        *,
        at: int | None = None,
        types: list[str] | None = None,
        tid: int = MAIN,
        scope: int = 0,
    ) -> int:
        """A node; tensors are pairs of `tensor`, anything else an integer argument."""
        number = len(self.nodes) + 1
        given, made = inputs or [], outputs or []
        self.nodes.append(
            {
                "name": name,
                "id": number,
                "parent": self.main if at is None else at,
                "rf_id": number,
                "scope": scope,
                "tid": tid,
                "inputs": [v[0] if isinstance(v, tuple) else v for v in given],
                "input_shapes": [v[1] if isinstance(v, tuple) else [] for v in given],
                "input_types": types
                or ["Tensor(float)" if isinstance(v, tuple) else "Int" for v in given],
                "outputs": [v[0] for v in made],
                "output_shapes": [v[1] for v in made],
                "output_types": ["Tensor(float)"] * len(made),
            }
        )
        return number

    def label(self, name: str, at: int | None = None) -> int:
        """An annotation."""
        return self.add(name, at=at, scope=USER_SCOPE)

    def engine_thread(self) -> int:
        """The autograd engine's thread."""
        name = "[pytorch|profiler|execution_graph|thread]"
        self.engine = self.add(name, at=1, scope=USER_SCOPE, tid=ENGINE)
        return self.engine

    def trace(self) -> Trace:
        """The trace of the file."""
        text = json.dumps({"schema": self.schema, "pid": 1, "nodes": self.nodes}).encode()
        return Trace("et.json", (), {0: decode_execution_trace(text, "et.json")})

    def graph(self) -> OpGraph:
        """The op graph of the file."""
        return op_graph(self.trace())[0]


def profile(*events: dict[str, Any]) -> Trace:
    """A profile of `events`: name, cat, ts, dur and args; on the main thread without `tid`."""
    full = [{"ph": "X", "pid": 1, "tid": MAIN, "cat": "cpu_op", "args": {}, **e} for e in events]
    rank = decode_kineto(json.dumps({"traceEvents": full}).encode(), "profile.json")
    object.__setattr__(rank, "rank", 0)
    return Trace("profile.json", (rank,), {})


def op(name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    """An operator of a profile; `dims`, `types`, `values` as in its args."""
    keys = {"dims": "Input Dims", "types": "Input type", "values": "Concrete Inputs"}
    return {
        "name": name,
        "ts": ts,
        "dur": dur,
        "args": {keys.get(k, k): v for k, v in args.items()},
    }

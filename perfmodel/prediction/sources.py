"""What predictions are of, and what a name stands for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from perfmodel.designs import Deployment
from perfmodel.frames import is_frame
from perfmodel.ops.graph import OpGraph
from perfmodel.ops.read.program import Call, program_of
from perfmodel.trace import Trace, read
from perfmodel.workload import Workload, workloads

if TYPE_CHECKING:
    import pandas as pd

TOML = ".toml"
Source: TypeAlias = Union[Trace, OpGraph, Deployment, Workload, str, Path, "pd.DataFrame"]


def sourced(source: Source) -> Source:
    """What a name stands for: the trace at a path, the ops of a module; else it stays a workload's
    name. A frame of events is a trace."""
    if is_frame(source):
        return read(source)
    if not isinstance(source, (str, Path)):
        return source
    program = program_of(str(source))
    if program is not None:
        from perfmodel.ops.read.module import graph_of_program

        return graph_of_program(program, Call())
    suffix = Path(source).suffix.lower()
    is_file = suffix not in ("", TOML) or (Path(source).exists() and suffix != TOML)
    return read(source) if is_file and str(source) not in workloads() else source


def facts_of(trace: Trace) -> dict[str, Any]:
    """Who a trace is, and how its execution traces fit its profiles."""
    paired = {
        rank: {"regime": each.regime, "matched_frac": round(each.matched_frac, 6)}
        for rank, each in trace.pairings.items()
    }
    return {
        "trace": trace.source,
        "device": trace.device,
        "ranks": [rank.rank for rank in trace.ranks],
        "events": sum(len(rank) for rank in trace.ranks),
        "execution_traces": [
            {"rank": rank, "schema": each.schema} | paired.get(rank, {})
            for rank, each in trace.execution_traces.items()
            if rank in paired or not trace.ranks
        ],
    }

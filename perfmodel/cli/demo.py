"""The bundled demo: a DLRM training trace of this project, and what is known about it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfmodel.prediction import Prediction
    from perfmodel.trace import Trace

NAME = "dlrm_cpu"
SOURCE = "bundled demo"


@dataclass(frozen=True)
class Demo:
    """What the trace itself does not say. Microseconds."""

    model: str
    machine: str
    unprofiled_us: float
    """Median step of the same run without the profiler."""
    unprofiled_p10_us: float
    unprofiled_p90_us: float
    left_out_us: tuple[float, ...] = ()
    """Per step: predicted with the host costs of the other steps."""

    def with_left_out(self, left_out: Prediction) -> Demo:
        """With the steps of a prediction that left each of them out."""
        steps = left_out.results[0].rank.steps
        return replace(self, left_out_us=tuple(round(step.step_us, 4) for step in steps))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_demo(steps: slice | None = None, context: int = 0) -> tuple[Trace, Demo]:
    """The demo's trace, and what was written down when it was captured; `steps` and `context` as
    of `read`."""
    from perfmodel.trace import read

    folder = resources.files("perfmodel") / "demo"
    with resources.as_file(folder / f"{NAME}_kineto.json.gz") as path:
        trace = read(path, steps=steps, context=context)
    facts = json.loads((folder / f"{NAME}.json").read_text(encoding="utf-8"))
    workload, machine = facts["workload"], facts["machine"]
    demo = Demo(
        model=f"{workload['model']} ({workload['preset']}), batch {workload['batch_per_rank']}",
        machine=f"{machine['device']}, {machine['intra_op_threads']} threads, "
        f"torch {machine['torch']}",
        unprofiled_us=facts["unprofiled"]["median_us"],
        unprofiled_p10_us=facts["unprofiled"]["p10_us"],
        unprofiled_p90_us=facts["unprofiled"]["p90_us"],
    )
    return replace(trace, source=SOURCE), demo

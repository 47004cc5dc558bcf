"""How one step is laid out in time."""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose

from perfmodel.errors import WorkloadError


@dataclass(frozen=True)
class MicroBatch:
    """Samples that go forward and backward together: a share of the batch.

    `popular`: all their lookups go to hot rows; the others of the pipeline have the hot lookups
    that these leave.
    """

    samples_frac: float = 1.0
    popular: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.samples_frac <= 1.0:
            raise WorkloadError(f"pipeline: a share of {self.samples_frac:g}: expected 0 to 1")


@dataclass(frozen=True)
class Pipeline:
    """What a step does beside what.

    `micro_batches` one after the other, their gradients added up. `input_ahead`: the next batch is
    brought and distributed beside the step. `rows_ahead`: rows that the next step needs from a
    slower tier are fetched beside this step; `rows_beside`: those of a later micro-batch beside the
    ones before it. `writes_behind`: rows go back to the slower tier beside the next step.
    `own_groups`: keys, pooled rows and dense gradients each have a process group, so that they
    share wires but do not wait for one another; else all are of one group, one after the other.
    """

    micro_batches: tuple[MicroBatch, ...] = (MicroBatch(),)
    input_ahead: bool = False
    rows_ahead: bool = False
    rows_beside: bool = False
    writes_behind: bool = False
    own_groups: bool = False

    def __post_init__(self) -> None:
        total = sum(each.samples_frac for each in self.micro_batches)
        if not isclose(total, 1.0, abs_tol=1e-6):
            raise WorkloadError(f"pipeline: micro-batches of {total:g} of the batch: expected 1")

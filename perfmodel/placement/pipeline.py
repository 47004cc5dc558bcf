"""How one step is laid out in time."""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose

from perfmodel.errors import WorkloadError


@dataclass(frozen=True)
class MicroBatch:
    """Samples that go forward and backward together: a share of the batch.

    `popular`: all lookups go to hot rows; of others, the share `hot_lookups_frac` does.
    """

    samples_frac: float = 1.0
    popular: bool = False
    hot_lookups_frac: float = 0.0

    def __post_init__(self) -> None:
        for value in (self.samples_frac, self.hot_lookups_frac):
            if not 0.0 <= value <= 1.0:
                raise WorkloadError(f"pipeline: a share of {value:g}: expected 0 to 1")


@dataclass(frozen=True)
class Pipeline:
    """What a step does beside what.

    `micro_batches` one after the other, their gradients added up. `input_ahead`: the next batch is
    brought and distributed beside the step. `rows_ahead`: rows that the next step needs from a
    slower tier are fetched beside this step; `rows_beside`: those of a later micro-batch beside the
    ones before it. `writes_behind`: rows go back to the slower tier beside the next step.
    """

    micro_batches: tuple[MicroBatch, ...] = (MicroBatch(),)
    input_ahead: bool = False
    rows_ahead: bool = False
    rows_beside: bool = False
    writes_behind: bool = False

    def __post_init__(self) -> None:
        total = sum(each.samples_frac for each in self.micro_batches)
        if not isclose(total, 1.0, abs_tol=1e-6):
            raise WorkloadError(f"pipeline: micro-batches of {total:g} of the batch: expected 1")

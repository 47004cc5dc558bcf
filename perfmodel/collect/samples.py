"""Models trained in turns, a few timed steps of each per round; samples that later runs go on with.

All clocks are of the un-profiled step: rounds over all models spread slow drifts evenly.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.files import atomic_write, read_bytes, write_text
from perfmodel.base.units import BYTES_PER_GB
from perfmodel.collect.backend import Room
from perfmodel.collect.models import Ranks, Training
from perfmodel.collect.records import REFERENCE_COLUMNS, deferred_interrupts, dump_record
from perfmodel.collect.runs import Run, broadcast_from_first
from perfmodel.collect.timing import halves_frac, reference_columns, summarize, time_step
from perfmodel.collect.workloads import Workload
from perfmodel.errors import PerfmodelError, UsageError

DIMS = (
    *("name", "device", "ranks", "threads_per_rank", "tables", "rows_per_table", "table_bytes"),
    *("dim", "pooling", "batch_per_rank", "zipf_alpha", "bottom_mlp", "top_mlp"),
)
FIGURES = ("rounds", "steps", "p10_us", "median_us", "p90_us", "spread_frac", "halves_frac")
TRUTH_COLUMNS = (*DIMS, *FIGURES, *REFERENCE_COLUMNS)
STEP_COLUMNS = (
    *("model", "description", *DIMS, *FIGURES, "page_faults_per_step", "ops_per_step"),
    *("metered_steps", "metered_p10_us", "metered_median_us", "ops_sum_p10_us"),
    *("ops_sum_median_us", *REFERENCE_COLUMNS),
)
ARRAYS = ("op_us", "gap_us", "op_faults", "metered_us", "step_faults")
"""Per metered step and operator: duration, time since the operator before it, page faults; per
metered step its time, per un-metered step its page faults."""


@dataclass
class Samples:
    """Of one configuration what each step took, microseconds, round by round; of metered ones also
    its operators in order."""

    rounds_us: list[list[float]] = field(default_factory=list)
    reference_us: list[list[float]] = field(default_factory=list)
    """Before each round, what each part of the reference work took."""
    signature: list[dict[str, Any]] = field(default_factory=list)
    arrays: dict[str, list[NDArray[np.float32]]] = field(
        default_factory=lambda: {name: [] for name in ARRAYS}
    )

    def add(self, name: str, values: Sequence[Any]) -> None:
        """Keep one more reading of array `name`."""
        self.arrays[name].append(np.asarray(values, dtype=np.float32))

    def stacked(self, name: str) -> NDArray[np.float64]:
        """All readings of array `name`, one per row."""
        return np.asarray(self.arrays[name], dtype=np.float64)

    def figures(self) -> dict[str, Any]:
        """The robust step time and its spread, without and with the meter, and the sum over
        operators (not artefacts); nothing without rounds."""
        steps_us = [value for taken in self.rounds_us for value in taken]
        if not steps_us:
            return {}
        figures: dict[str, Any] = {"rounds": len(self.rounds_us), "steps": len(steps_us)}
        figures |= {**summarize(steps_us), "halves_frac": halves_frac(self.rounds_us)}
        if self.signature:
            figures["page_faults_per_step"] = float(np.median(self.stacked("step_faults")))
            figures["ops_per_step"] = len(self.signature)
        if self.arrays["op_us"]:
            genuine = [not op["artefact"] for op in self.signature]
            sums = summarize(list(self.stacked("op_us")[:, genuine].sum(axis=1)))
            metered = summarize(list(self.stacked("metered_us").ravel()))
            figures["metered_steps"] = len(self.arrays["op_us"])
            for name in ("p10_us", "median_us"):
                figures |= {f"metered_{name}": metered[name], f"ops_sum_{name}": sums[name]}
        return figures | reference_columns(self.reference_us)


class Store:
    """The samples at `path`, JSON or (with arrays) npz, that later runs of the same go on with.

    `setting` (device, ranks, threads, PyTorch) has to be that of the earlier run, and so have the
    dims of a configuration of the same name.
    """

    def __init__(self, path: Path, schema: str, setting: dict[str, Any]) -> None:
        self.path, self.schema, self.setting = path, schema, setting

    def save(self, samples: dict[str, Samples], workloads: Sequence[Workload]) -> None:
        """Write all of `samples` that have rounds, whole or not at all."""
        dims = {workload.name: workload.dims for workload in workloads}
        kept = {name: taken for name, taken in samples.items() if taken.rounds_us}
        configurations: dict[str, Any] = {}
        for name, taken in kept.items():
            configurations[name] = {
                "dims": dims.get(name),
                "rounds_us": taken.rounds_us,
                "reference_us": taken.reference_us,
                "signature": taken.signature,
            }
        header = {"schema": self.schema, "setting": self.setting, "configurations": configurations}
        if self.path.suffix == ".json":
            write_text(self.path, dump_record(header))
            return
        arrays: dict[str, Any] = {
            f"{name}/{array}": taken.stacked(array).astype(np.float32)
            for name, taken in kept.items()
            for array in ARRAYS
        }
        text = np.frombuffer(json.dumps(header).encode(), np.uint8)
        with atomic_write(self.path) as file:
            np.savez(file, header=text, **arrays)

    def load(self, workloads: Sequence[Workload] = ()) -> dict[str, Samples]:
        """The samples of an earlier run; none where there is no file.

        Raises `UsageError` when it is damaged, of another version or setting, or a configuration
        of `workloads` had other dims.
        """
        if not self.path.exists():
            return {}
        try:
            content = read_bytes(self.path)
            if self.path.suffix == ".json":
                return self._samples(json.loads(content), {}, workloads)
            with np.load(io.BytesIO(content), allow_pickle=False) as stored:
                header = json.loads(stored["header"].tobytes())
                return self._samples(header, stored, workloads)
        except (ValueError, KeyError, TypeError, AttributeError, EOFError, OSError, BadZipFile):
            raise UsageError(
                f"{self.path}: is damaged; move it away, or name another --name"
            ) from None
        except PerfmodelError as error:
            raise UsageError(str(error)) from None

    def _samples(
        self, header: Any, stored: Any, workloads: Sequence[Workload]
    ) -> dict[str, Samples]:
        if header["schema"] != self.schema:
            raise UsageError(f"{self.path}: is of another version; name another --name")
        if header["setting"] != self.setting:
            raise UsageError(
                f"{self.path}: was measured on another machine, with other ranks, threads or "
                "another PyTorch; name another --name"
            )
        dims = {workload.name: workload.dims for workload in workloads}
        samples = {}
        for name, own in header["configurations"].items():
            if own.get("dims") and name in dims and own["dims"] != dims[name]:
                raise UsageError(
                    f"{self.path}: configuration {name} had other dims; name another --name"
                )
            samples[name] = Samples(
                own["rounds_us"], own["reference_us"], list(own.get("signature", ()))
            )
            if f"{name}/{ARRAYS[0]}" in stored:
                samples[name].arrays = {each: list(stored[f"{name}/{each}"]) for each in ARRAYS}
            samples[name].figures()
        return samples


FIRST_WARM_UP = 4


class Pace(NamedTuple):
    """Warm-up steps of a round, and timed ones: as many as fit into `target_us`, within limits."""

    warm_up: int
    target_us: float
    least: int
    most: int


class Turns:
    """The models of `workloads`, built when first due; `run.skipped` says why one is not.

    All ranks take the same steps; rank 0 decides when the time is over.
    """

    def __init__(
        self,
        run: Run,
        ranks: Ranks,
        workloads: Sequence[Workload],
        samples: dict[str, Samples],
        pace: Pace,
    ) -> None:
        self.run, self.backend, self.ranks, self.pace = run, run.backend, ranks, pace
        self.workloads, self.samples = workloads, samples
        run.readings_us += [each for taken in samples.values() for each in taken.reference_us]
        self._room = Room(run.backend, ranks.world)
        self._trainings: dict[str, Training] = {}
        self._number = 0

    @property
    def rounds(self) -> int:
        """The rounds there are of all workloads."""
        return sum(len(taken.rounds_us) for taken in self.samples.values())

    def is_over(self) -> bool:
        """Whether rank 0 has no time left."""
        return bool(broadcast_from_first(self.backend, self.ranks, self.run.budget.is_over))

    def round(self) -> bool:
        """A few steps of every workload, those with the fewest rounds first; whether time is left.

        What a workload's round has measured is kept when the whole of it is there.
        """
        done = {name: len(taken.rounds_us) for name, taken in self.samples.items()}
        for workload in sorted(self.workloads, key=lambda each: done.get(each.name, 0)):
            if self.is_over():
                return False
            training = self._training(workload)
            if training is not None:
                self.measure(workload.name, training)
        return bool(self._trainings) and not self.is_over()

    def measure(self, name: str, training: Training) -> None:
        """One round of a workload whose model is built and warm."""
        reference_us, steps = self.run.read_reference(), self.warmed(training)
        plain_us = self.mean_over_ranks([self.step(training) for _ in range(steps)])
        with deferred_interrupts():
            self.samples[name].rounds_us.append(plain_us)
            self.samples[name].reference_us.append(reference_us)

    def warmed(self, training: Training) -> int:
        """How many steps to time, after those that warm up."""
        warm_us = [self.step(training) for _ in range(self.pace.warm_up)]
        fitting = int(self.pace.target_us / max(warm_us[-1], 1.0))
        steps = min(max(fitting, self.pace.least), self.pace.most)
        return broadcast_from_first(self.backend, self.ranks, steps)

    def step(self, training: Training) -> float:
        """Microseconds of the next step."""
        self._number += 1
        return time_step(self.backend, training.step, self._number)

    def mean_over_ranks(self, own_us: list[float]) -> list[float]:
        """Each step's time averaged over the ranks, which keep step, but not to the microsecond."""
        times = self.backend.torch.tensor(own_us, dtype=self.backend.torch.float64)
        if self.ranks.world > 1:
            times = times.to(self.backend.device)
            self.backend.torch.distributed.all_reduce(times)
            times = times / self.ranks.world
        return [round(value, 1) for value in times.tolist()]

    def built(self, workload: Workload, training: Training) -> None:
        """Called with a model that was built and has warmed up."""

    def _training(self, workload: Workload) -> Training | None:
        """The model of `workload`; `None`, and a note, where it does not fit."""
        name, skipped = workload.name, self.run.skipped
        if name in self._trainings or name in skipped:
            return self._trainings.get(name)
        needed = workload.held_bytes / self.ranks.world
        if not broadcast_from_first(self.backend, self.ranks, self._room.take(needed)):
            skipped[name] = f"needs {needed / BYTES_PER_GB:.1f} GB"
            return None
        try:
            training = workload.build(self.backend, self.ranks)
            for _ in range(FIRST_WARM_UP):
                self.step(training)
            self.samples.setdefault(name, Samples())
            self.built(workload, training)
        except (RuntimeError, MemoryError) as error:
            if self.ranks.world > 1 or not self.backend.out_of_memory(error):
                raise
            skipped[name] = "out of memory"
            return None
        self._trainings[name] = training
        return training

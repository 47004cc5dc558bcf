"""What was measured of each configuration's operators, kept so that a later run can go on."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from perfmodel.collect.timing import halves_frac, summarize
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.files import atomic_write, read_bytes

SCHEMA = "perfmodel.collect.ops.samples/1"
ARRAYS = ("op_us", "gap_us", "op_faults", "metered_us", "step_faults")
"""Per metered step and operator: duration, time since the operator before it, page faults; per
metered step its time, per un-metered step its page faults."""


@dataclass
class OpSamples:
    """Of one configuration: its operators in order, and what each step took, in microseconds."""

    signature: list[dict[str, Any]] = field(default_factory=list)
    rounds_us: list[list[float]] = field(default_factory=list)
    arrays: dict[str, list[NDArray[np.float32]]] = field(
        default_factory=lambda: {name: [] for name in ARRAYS}
    )

    def add(self, name: str, values: Sequence[Any]) -> None:
        """Keep one more reading of array `name`."""
        self.arrays[name].append(np.asarray(values, dtype=np.float32))

    def stacked(self, name: str) -> NDArray[np.float64]:
        """All readings of array `name`, one per row."""
        return np.asarray(self.arrays[name], dtype=np.float64)

    def step_figures(self) -> dict[str, Any]:
        """Step times without and with the meter, and the sum over operators (not artefacts)."""
        taken_us = [value for taken in self.rounds_us for value in taken]
        figures: dict[str, Any] = {"rounds": len(self.rounds_us), "steps": len(taken_us)}
        figures |= {**summarize(taken_us), "halves_frac": halves_frac(self.rounds_us)}
        figures["page_faults_per_step"] = float(np.median(self.stacked("step_faults")))
        figures["ops_per_step"] = len(self.signature)
        if self.arrays["op_us"]:
            genuine = [not op["artefact"] for op in self.signature]
            sums = summarize(list(self.stacked("op_us")[:, genuine].sum(axis=1)))
            metered = summarize(list(self.stacked("metered_us").ravel()))
            figures["metered_steps"] = len(self.arrays["op_us"])
            figures["metered_p10_us"] = metered["p10_us"]
            figures["metered_median_us"] = metered["median_us"]
            figures["ops_sum_p10_us"] = sums["p10_us"]
            figures["ops_sum_median_us"] = sums["median_us"]
        return figures


def save_samples(path: Path, samples: dict[str, OpSamples], setting: dict[str, Any]) -> None:
    """Write all of `samples` that have rounds to `path` (npz), whole or not at all."""
    kept = {name: taken for name, taken in samples.items() if taken.rounds_us}
    header = {
        "schema": SCHEMA,
        "setting": setting,
        "configurations": {
            name: {"signature": taken.signature, "rounds_us": taken.rounds_us}
            for name, taken in kept.items()
        },
    }
    arrays: dict[str, Any] = {
        f"{name}/{array}": taken.stacked(array).astype(np.float32)
        for name, taken in kept.items()
        for array in ARRAYS
    }
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with atomic_write(path) as file:
        np.savez(file, header=text, **arrays)


def load_samples(path: Path, setting: dict[str, Any]) -> dict[str, OpSamples]:
    """The samples in `path`; none where there is no such file.

    Raises `UsageError` when it is damaged, of another version, or of another `setting`.
    """
    if not path.exists():
        return {}
    try:
        with np.load(io.BytesIO(read_bytes(path)), allow_pickle=False) as stored:
            header = json.loads(stored["header"].tobytes())
            if header["schema"] != SCHEMA:
                raise UsageError(f"{path}: is of another version; name another --name")
            if header["setting"] != setting:
                raise UsageError(
                    f"{path}: was measured on another machine, with other threads or another "
                    "PyTorch; name another --name"
                )
            return {
                name: OpSamples(
                    found["signature"],
                    found["rounds_us"],
                    {array: list(stored[f"{name}/{array}"]) for array in ARRAYS},
                )
                for name, found in header["configurations"].items()
            }
    except UsageError:
        raise
    except (ValueError, KeyError, TypeError, EOFError, OSError, PerfmodelError, BadZipFile):
        raise UsageError(f"{path}: is damaged; move it away, or name another --name") from None

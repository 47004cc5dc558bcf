"""A CPU family as a kernel model: terms per op, summed, with an interval from the calibration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import Floats, Ints
from perfmodel.cost.contract import Estimate, Explanation
from perfmodel.cost.cpu.call import (
    CALL_PARAMETERS,
    CROWDING_PARAMETERS,
    UNWATCHED_PARAMETERS,
    WATCHED,
    Call,
    Parameter,
    is_calibrated,
    parameters,
    parameters_on,
    reference_cpu,
    section_of,
    spread_of,
    timing_is_one_of,
)
from perfmodel.hardware import Device
from perfmodel.ops.rows import KERNEL, Rows
from perfmodel.ops.spec import OPS

Terms = Callable[[Call], Mapping[str, Floats]]
"""From the rows of one op to the terms of their duration, microseconds each."""

(SPREAD,) = parameters("cpu.interval")
_BOUND = {"overhead": "latency", "compute": "compute", "memory": "memory", "faults": "memory"}


@dataclass(frozen=True)
class CpuFamily:
    """The heuristic of one family: `terms` of its ops, and the parameters that they take."""

    family: str
    own: Sequence[Parameter]
    terms: Terms
    called: bool = True
    """Whether its ops are calls of operators, which cost something before they do anything."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All parameters, those that every family has first."""
        called = CALL_PARAMETERS if self.called else ()
        return (*called, *CROWDING_PARAMETERS, *self.own, *UNWATCHED_PARAMETERS, SPREAD)

    @property
    def fitted(self) -> tuple[Parameter, ...]:
        """The parameters that rows of single ops decide."""
        apart = (*UNWATCHED_PARAMETERS, SPREAD)
        return tuple(each for each in self.parameters if each not in apart)

    def calls(self, rows: Rows, device: Device) -> list[tuple[Ints, Call]]:
        """The rows by op, checked."""
        calls = []
        cold = rows.dims.get("cold")
        for (op, direction, alone), index in _groups(rows):
            numbers = index.tolist()
            timing = tuple(rows.timing[i] for i in numbers)
            section = section_of(self.family, op, direction)
            call = Call(
                op=op,
                section=section,
                dims=rows.dims_of(op, index),
                item_bytes=rows.item_bytes[index],
                is_bf16=np.array([float(rows.dtype[i] == "bf16") for i in numbers]),
                in_step=timing_is_one_of(timing, KERNEL, WATCHED),
                unwatched=timing_is_one_of(timing, KERNEL),
                cold=np.zeros(len(index)) if cold is None else np.nan_to_num(cold[index]),
                direction=direction.removesuffix("_dense"),
                flags={name: values[index] for name, values in rows.dims.items()},
                alone=alone,
                values=parameters_on(self.family, section, self.parameters, device, alone),
                device=device,
            )
            calls.append((index, call))
        return calls

    def breakdown(self, call: Call) -> dict[str, Floats]:
        """Every term of `call`, microseconds, the op's overhead first."""
        before = {"overhead": call.overhead_us()} if self.called else {}
        ratio = np.where(call.unwatched > 0, call.values["work_ratio"], 1.0)
        return {**before, **{name: ratio * term for name, term in self.terms(call).items()}}

    def estimate(self, rows: Rows, device: Device) -> Estimate:
        """Durations of `rows`; `ModelError` on impossible rows."""
        duration, spread = np.empty(len(rows)), np.empty(len(rows))
        own = is_calibrated(self.family, device)
        for index, call in self.calls(rows, device):
            duration[index] = sum(self.breakdown(call).values())
            spread[index] = spread_of(device, call.values["spread_frac"], own)
        source = f"calibration of {device.name if own else reference_cpu().name}"
        return Estimate(
            duration_us=duration,
            low_us=duration / spread,
            high_us=duration * spread,
            model=f"{self.family}/heuristic",
            source=source if own else f"{source}, by figures of both",
        )

    def explain(self, rows: Rows, device: Device) -> list[Explanation]:
        """The terms, and which of them is the largest, per row."""
        reasons: list[Explanation | None] = [None] * len(rows)
        for index, call in self.calls(rows, device):
            terms = self.breakdown(call)
            spec = OPS[call.op].of(call.direction)
            flop = spec.flop(call.dims)
            read = spec.read_bytes(call.dims, call.item_bytes)
            written = spec.written_bytes(call.dims, call.item_bytes)
            for place, row in enumerate(index.tolist()):
                own = {name: float(values[place]) for name, values in terms.items()}
                total = sum(own.values())
                largest = max(own, key=lambda name: own[name])
                reasons[row] = Explanation(
                    duration_us=total,
                    bound_by=_BOUND.get(largest, largest),
                    flop=float(flop[place]),
                    read_bytes=float(read[place]),
                    written_bytes=float(written[place]),
                    utilisation_frac=_utilisation(
                        float(flop[place]) / device.matrix_tflop_per_s(rows.dtype[row]) / 1e6,
                        float(read[place] + written[place]) / device.hbm_gb_per_s / 1e3,
                        total,
                    ),
                    terms=own,
                    formula=f"sum of the terms (us): {' + '.join(own)}",
                )
        return [each for each in reasons if each is not None]


def _groups(rows: Rows) -> Iterator[tuple[tuple[str, str, bool], Ints]]:
    """((op, direction, whether called alone), its rows), in order of first sight.

    A dense gradient of a table is another algorithm than a sparse one: a direction of its own.
    """
    rows_of: dict[tuple[str, str, bool], list[int]] = {}
    dense = np.nan_to_num(rows.dims.get("dense", np.zeros(len(rows))))
    for row, timing in enumerate(rows.timing):
        direction = f"{rows.direction[row]}_dense" if dense[row] > 0 else rows.direction[row]
        key = (rows.op[row], direction, timing not in (KERNEL, WATCHED))
        rows_of.setdefault(key, []).append(row)
    for key, group in rows_of.items():
        yield key, np.array(group, np.int64)


def _utilisation(compute_us: float, memory_us: float, total_us: float) -> float:
    """Of the peak rate or the peak memory bandwidth, whichever is used more; at most 1."""
    return min(1.0, max(compute_us, memory_us) / total_us) if total_us else 0.0

"""A CPU family as a kernel model: terms per op, summed, with an interval from the calibration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.base.arrays import Floats, Ints
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
)
from perfmodel.hardware import Device
from perfmodel.ops.rows import KERNEL, Rows

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

    def calls(self, rows: Rows, device: Device) -> Iterator[tuple[Ints, Call]]:
        """The rows by op, direction and whether they are called alone, checked.

        A dense gradient of a table is another algorithm than a sparse one: a direction of its own.
        """
        cold, dense = (
            np.nan_to_num(rows.dims.get(name, np.zeros(len(rows)))) for name in ("cold", "dense")
        )
        groups: dict[tuple[str, str, bool], list[int]] = {}
        for row, timing in enumerate(rows.timing):
            direction = f"{rows.direction[row]}_dense" if dense[row] > 0 else rows.direction[row]
            key = (rows.op[row], direction, timing not in (KERNEL, WATCHED))
            groups.setdefault(key, []).append(row)
        for (op, direction, alone), numbers in groups.items():
            index, section = np.array(numbers, np.int64), section_of(self.family, op, direction)
            call = Call(
                op=op,
                direction=direction.removesuffix("_dense"),
                section=section,
                alone=alone,
                dims=rows.dims_of(op, index),
                item_bytes=rows.item_bytes[index],
                is_bf16=np.array([rows.dtype[row] == "bf16" for row in numbers]),
                in_step=np.full(len(index), float(not alone)),
                unwatched=np.array([rows.timing[row] == KERNEL for row in numbers]),
                cold=cold[index],
                flags={name: values[index] for name, values in rows.dims.items()},
                values=parameters_on(self.family, section, self.parameters, device, alone),
                device=device,
            )
            yield index, call

    def breakdown(self, call: Call) -> dict[str, Floats]:
        """Every term of `call`, microseconds, the op's overhead first."""
        before = {"overhead": call.overhead_us()} if self.called else {}
        ratio = np.where(call.unwatched, call.values["work_ratio"], 1.0)
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
        reasons: dict[int, Explanation] = {}
        for index, call in self.calls(rows, device):
            terms, moved_bytes = self.breakdown(call), call.moved_bytes
            for place, row in enumerate(index.tolist()):
                own = {name: float(values[place]) for name, values in terms.items()}
                total = sum(own.values())
                largest = max(own, key=lambda name: own[name])
                compute_us = call.flop[place] / device.matrix_tflop_per_s(rows.dtype[row]) / 1e6
                memory_us = moved_bytes[place] / device.hbm_gb_per_s / 1e3
                used_us = float(max(compute_us, memory_us))
                reasons[row] = Explanation(
                    duration_us=total,
                    bound_by=_BOUND.get(largest, largest),
                    flop=float(call.flop[place]),
                    read_bytes=float(call.read_bytes[place]),
                    written_bytes=float(call.written_bytes[place]),
                    utilisation_frac=min(1.0, used_us / total) if total else 0.0,
                    terms=own,
                    formula=f"sum of the terms (us): {' + '.join(own)}",
                )
        return [reasons[row] for row in range(len(rows))]

"""A family of CPU operators as a kernel model: terms per op, summed, with an interval."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from perfmodel.base.arrays import Floats, Ints, Mask
from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.contract import Estimate, Explanation, explanations
from perfmodel.cost.cpu.parameters import (
    CALL_PARAMETERS,
    CROWDING_PARAMETERS,
    RATIO_PARAMETERS,
    SPREAD,
    Parameter,
    parameters_on,
    peak_tflop_per_s,
    reference_cpu,
    section_of,
    spread_of,
)
from perfmodel.hardware import Device
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS, Dims

_C = coefficients("cpu.call")


class Work(NamedTuple):
    """What each row of an op computes and moves at least."""

    flop: Floats
    read_bytes: Floats
    written_bytes: Floats


@dataclass(frozen=True)
class Call:
    """Rows of one op within a program: checked dims, bytes per element, and parameters."""

    op: str
    direction: str
    section: str
    """Of the calibration: the op, and its direction where that is not `fwd`."""
    dims: Dims
    item_bytes: Floats
    is_bf16: Mask
    peak_tflop_per_s: Floats
    """Of all cores at their boost clock, by dtype."""
    flags: Dims
    """Whatever else the rows hold, where it is given: `dense`, `step_bytes`, `first_frac`."""
    values: Mapping[str, float]
    device: Device

    def __len__(self) -> int:
        return len(self.item_bytes)

    @cached_property
    def work(self) -> Work:
        """By the op's entry in the vocabulary."""
        spec, dims, item = OPS[self.op].of(self.direction), self.dims, self.item_bytes
        return Work(spec.flop(dims), spec.read_bytes(dims, item), spec.written_bytes(dims, item))

    @property
    def moved_bytes(self) -> Floats:
        return self.work.read_bytes + self.work.written_bytes

    @property
    def least_us(self) -> Floats:
        """The work at the peak, which no kernel beats."""
        return self.work.flop / self.peak_tflop_per_s / 1e6

    @property
    def all_cores(self) -> Floats:
        return np.full(len(self), float(self.device.sm_count))

    def by_dtype(self, bf16: float) -> Floats:
        """That number for rows in bf16, 1 for others."""
        return np.where(self.is_bf16, bf16, 1.0)

    def flag(self, name: str) -> Floats:
        """A dim that the op's spec does not know; 0 where it is not given."""
        given = self.flags.get(name)
        return np.zeros(len(self)) if given is None else np.nan_to_num(given)

    def first_us(self) -> Floats:
        """What the first of its kind in a step costs more, as far as the step evicted its code."""
        beyond_l2, beyond_llc = self._evicted()
        evicted = beyond_l2 * (1 + self.values["first_evicted_ratio"] * beyond_llc)
        return self.flag("first_frac") * self.values["first_us"] * evicted

    def crowding(self) -> Floats:
        """What an op's overhead in a step is multiplied by, for all that the step touches."""
        values = self.values
        beyond_l2, beyond_llc = self._evicted()
        return 1 + values["crowded_ratio"] * beyond_l2 + values["evicted_ratio"] * beyond_llc

    def _evicted(self) -> tuple[Floats, Floats]:
        """What share of L2 and of the last-level cache the bytes of the step replace."""
        step_bytes = self.flag("step_bytes")
        caches = self.device.l2_bytes, self.device.last_cache_bytes
        beyond_l2, beyond_llc = (step_bytes / (step_bytes + each) for each in caches)
        return beyond_l2, beyond_llc

    def moving_us(self, moved_bytes: Floats, held_bytes: Floats, threads: Floats) -> Floats:
        """Moving `moved_bytes` while `held_bytes` compete for the caches.

        The share of the held bytes that fits a level is moved at that level's rate. Of the bytes,
        `resident_frac` was touched just before; all that the step touches competes with the others.
        """
        device, values = self.device, self.values
        share_of_cores = threads / device.sm_count

        def ns_per_byte(held: Floats) -> Floats:
            held = np.maximum(held, 1.0)
            within_l2 = np.minimum(1.0, device.l2_bytes * share_of_cores / held)
            within_llc = np.minimum(1.0, device.last_cache_bytes / held)
            between = np.maximum(within_llc - within_l2, 0.0)
            ns: Floats = within_l2 / (values["l2_gb_per_s"] * share_of_cores)
            ns = ns + between / (values["llc_gb_per_s"] * share_of_cores)
            return ns + (1 - np.maximum(within_llc, within_l2)) / values["dram_gb_per_s"]

        share, crowd = values["resident_frac"], np.maximum(held_bytes, self.flag("step_bytes"))
        ns = share * ns_per_byte(held_bytes) + (1 - share) * ns_per_byte(crowd)
        return moved_bytes * ns * 1e-3

    def faults_us(self, fresh_bytes: Floats, kept_bytes: Floats | float = 0.0) -> Floats:
        """First touches of the pages of a result that is mapped anew, by all threads (it has enough
        elements for each): of a large one, or one of `kept_bytes` that a step frees at once."""
        given_back = (kept_bytes / np.maximum(fresh_bytes, 1.0) - _C.trimmed_ratio).clip(0.0, 1.0)
        share = np.where(fresh_bytes > _C.fresh_bytes, 1.0, given_back)
        return share * fresh_bytes / _C.page_bytes * self.values["page_us"]

    def threads(self, elements: Floats) -> Floats:
        """Threads that an op over so many elements is split over."""
        return np.clip(np.ceil(elements / _C.grain_elements), 1.0, float(self.device.sm_count))

    def speed_up(self, split: Floats) -> Floats:
        """Of an op whose parallel part takes `split` of its time (Amdahl)."""
        share = self.values["parallel_frac"]
        return 1 / (1 - share + share * split)

    def fork_us(self, threads: Floats) -> Floats:
        """Starting and joining, where there is more than one thread."""
        return np.where(threads > 1, self.values["fork_us"], 0.0)


def bound_terms(compute_us: Floats, memory_us: Floats) -> dict[str, Floats]:
    """Both overlapped, as a term of the one that takes longer."""
    both, bound = overlapped_us(compute_us, memory_us), compute_us >= memory_us
    return {"compute": np.where(bound, both, 0.0), "memory": np.where(bound, 0.0, both)}


def overlapped_us(first: Floats, second: Floats) -> Floats:
    """About the larger of two costs that overlap; never less than either."""
    return (first**_C.sharpness + second**_C.sharpness) ** (1 / _C.sharpness)


Terms = Callable[[Call], Mapping[str, Floats]]
"""From the rows of one op to the terms of their duration, microseconds each."""
_BOUND = {"overhead": "latency", "faults": "memory"}


@dataclass(frozen=True)
class CpuFamily:
    """The model of one family: `terms` of its ops, summed, and the parameters that they take."""

    family: str
    own: Sequence[Parameter]
    terms: Terms
    called: bool = True
    """Whether its ops are calls of operators, which cost something before they do anything."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Those that every family has first."""
        called = CALL_PARAMETERS if self.called else ()
        return (*called, *CROWDING_PARAMETERS, *self.own, *RATIO_PARAMETERS, SPREAD)

    def calls(self, rows: Rows, device: Device) -> Iterator[tuple[Ints, Call]]:
        """The rows by op and direction, checked.

        A dense gradient of a table is another algorithm than a sparse one: a direction of its own.
        """
        dense = np.nan_to_num(rows.dims.get("dense", np.zeros(len(rows))))
        peaks = {dtype: peak_tflop_per_s(device, dtype) for dtype in set(rows.dtype)}
        groups: dict[tuple[str, str], list[int]] = {}
        for row, of in enumerate(rows.direction):
            key = (rows.op[row], f"{of}_dense" if dense[row] > 0 else of)
            groups.setdefault(key, []).append(row)
        for (op, direction), numbers in groups.items():
            index, section = np.array(numbers, np.int64), section_of(self.family, op, direction)
            call = Call(
                op=op,
                direction=direction.removesuffix("_dense"),
                section=section,
                dims=rows.dims_of(op, index),
                item_bytes=rows.item_bytes[index],
                is_bf16=np.array([rows.dtype[row] == "bf16" for row in numbers]),
                peak_tflop_per_s=np.array([peaks[rows.dtype[row]] for row in numbers]),
                flags={name: values[index] for name, values in rows.dims.items()},
                values=parameters_on(self.family, section, self.parameters, device),
                device=device,
            )
            yield index, call

    def breakdown(self, call: Call) -> dict[str, Floats]:
        """Every term of `call`, microseconds, the op's overhead first; at least the peak's time."""
        terms: dict[str, Floats] = {}
        if self.called:  # what the op costs before it does anything
            usual_us = call.values["floor_us"] * call.crowding() + call.first_us()
            terms["overhead"] = call.values["overhead_ratio"] * usual_us
        ratio = call.values["work_ratio"]
        terms |= {name: ratio * term for name, term in self.terms(call).items()}
        short_us = np.maximum(call.least_us - sum(terms.values()), 0.0)
        return (
            {**terms, "compute": terms.get("compute", 0.0) + short_us} if short_us.any() else terms
        )

    def estimate(self, rows: Rows, device: Device) -> Estimate:
        """Durations of `rows`; `ModelError` on impossible rows."""
        duration, spread = np.empty(len(rows)), np.empty(len(rows))
        own = self.family in {table.partition(".")[0] for table in device.calibration}
        for index, call in self.calls(rows, device):
            duration[index] = sum(self.breakdown(call).values())
            spread[index] = spread_of(call.values["spread_frac"], own)
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
            terms = self.breakdown(call)
            us, names = np.stack(np.broadcast_arrays(*terms.values())), list(terms)
            largest = [names[at] for at in us.argmax(axis=0).tolist()]
            moved_us, total_us = call.moved_bytes / device.hbm_gb_per_s / 1e3, us.sum(axis=0)
            busy_us = np.maximum(call.least_us, moved_us)
            used_frac = np.minimum(busy_us / np.where(total_us > 0, total_us, np.inf), 1.0)
            bound_by = [_BOUND.get(name, name) for name in largest]
            formula = f"sum of the terms (us): {' + '.join(names)}"
            why = explanations(total_us, bound_by, call.work, used_frac, terms, formula)
            reasons |= dict(zip(index.tolist(), why, strict=True))
        return [reasons[row] for row in range(len(rows))]

"""One op on one CPU: calibrated parameters, reuse of rows, terms that every duration shares.

A device file may hold tables `[calibration.FAMILY]` and `[calibration."FAMILY.OP"]`, an op that is
not forward with its direction (`vector.relu`, `embedding.embedding_bag_bwd`); an op's value goes
before its family's, and that before the default. Tables that begin with `alone.` hold for ops that
are called alone, over and over; the others for ops within a program, where heap, caches and threads
are in another state. Either stands in for the other where it is all there is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from perfmodel.base.arrays import Floats, Mask
from perfmodel.base.schema import unknown_key
from perfmodel.cost.coefficients import Group, coefficients
from perfmodel.cost.cpu.drift import drifted_values, interval_ratio
from perfmodel.errors import ModelError
from perfmodel.hardware import Device
from perfmodel.hardware.catalogue import device as catalogue_device
from perfmodel.hardware.catalogue import host
from perfmodel.ops.spec import OPS, Dims

ALONE = "alone."
Scale = Callable[[Device, float], float]
"""From a device and a value per core, or a share of a figure, to a parameter's value on it."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One number of a model, above 0: its default, the range a fit may choose from.

    `per_op` says that each op of the family may have a value of its own; `by_op` are defaults of
    single ops, by section.
    """

    name: str
    group: Group
    low: float
    high: float
    per_op: bool
    by_op: Mapping[str, float]
    scale: Scale | None
    from_figures: bool
    """Whether figures of a device say more than what was measured on another."""

    def default_on(self, device: Device, section: str = "") -> float:
        """The default on `device` of the op `section`, within the range."""
        value: float = getattr(self.group, self.name)
        if section in self.by_op:
            value = self.by_op[section]
        elif self.scale is not None:
            value = self.scale(device, value)
        return min(max(value, self.low), self.high)


def parameters(name: str, scales: Mapping[str, Scale] | None = None) -> tuple[Parameter, ...]:
    """The coefficients of a group, `cpu.memory`, that fits may choose: those with a range."""
    group, scales = coefficients(name), scales or {}
    return tuple(
        Parameter(
            key,
            group,
            low=float(entry["range"][0]),
            high=float(entry["range"][1]),
            per_op=entry.get("per_op", False),
            by_op=entry.get("by_op", {}),
            scale=scales.get(key),
            from_figures=entry.get("from_figures", False),
        )
        for key, entry in group.entries.items()
        if isinstance(entry.get("range"), list)
    )


def section_of(family: str, op: str, direction: str = "fwd") -> str:
    """Name of the table of an op's own values."""
    return f"{family}.{op}" if direction == "fwd" else f"{family}.{op}_{direction}"


def values_of(
    family: str, section: str, parameters: Sequence[Parameter], device: Device, alone: bool = False
) -> dict[str, float]:
    """Every parameter of `section`, an op of `family`, on `device` as fast as it is now.

    Raises `ModelError` where the device's calibration holds a name that there is not, or a value
    that cannot be.
    """
    within, by_itself = (family, section), (f"{ALONE}{family}", f"{ALONE}{section}")
    known = {each.name: each for each in parameters}
    values = {name: each.default_on(device, section) for name, each in known.items()}
    for table in (*within, *by_itself) if alone else (*by_itself, *within):
        for name, value in device.calibration.get(table, {}).items():
            where = f"{device.name}: calibration.{table}"
            if name not in known:
                raise ModelError(f"{where}: {unknown_key(name, known)}")
            low, high = known[name].low, known[name].high
            if not low <= value <= high:
                raise ModelError(f"{where}: {name}: expected {low:g} to {high:g}, got {value:g}")
            values[name] = value
    return drifted_values(values, device)


@cache
def reference_cpu() -> Device:
    """The calibrated CPU of the catalogue, whose parameters stand for those of a CPU without."""
    return catalogue_device("cpu-epyc")


def is_calibrated(family: str, device: Device) -> bool:
    """Whether `device` has a calibration of its own for `family`."""
    tables = device.calibration
    return any(key.removeprefix(ALONE).partition(".")[0] == family for key in tables)


def parameters_on(
    family: str, section: str, parameters: Sequence[Parameter], device: Device, alone: bool = False
) -> dict[str, float]:
    """`values_of` where `device` was calibrated, else those of the reference CPU: rates by what
    the data sheets of both say, times by the speed of a thread."""
    if is_calibrated(family, device):
        return values_of(family, section, parameters, device, alone)
    reference = reference_cpu()
    values = values_of(family, section, parameters, reference, alone)
    slower = _thread_speed(reference) / _thread_speed(device)
    for each in parameters:
        if each.from_figures:
            values[each.name] = each.default_on(device, section)
        elif each.scale is not None:
            values[each.name] *= each.scale(device, 1.0) / each.scale(reference, 1.0)
        elif each.name.endswith(("_us", "_ns")):
            values[each.name] *= slower
    return drifted_values(values, device)


def _thread_speed(device: Device) -> float:
    """Of one thread, as hosts of the catalogue have it; of an unknown host by its clock."""
    if device.usual_host is not None:
        return host(device.usual_host).single_thread_ratio
    clock_mhz, reference = device.base_mhz or device.boost_mhz, reference_cpu()
    return _thread_speed(reference) * clock_mhz / (reference.base_mhz or reference.boost_mhz)


def spread_of(device: Device, spread_frac: float, calibrated: bool) -> float:
    """Bound of a 90 % interval over its middle; wider for a CPU that was not calibrated."""
    ratio = interval_ratio(device, spread_frac)
    if calibrated:
        return ratio
    return math.exp(math.hypot(math.log(ratio), math.log1p(_UNMEASURED.spread_frac)))


_C = coefficients("cpu.call")
_UNMEASURED = coefficients("cpu.unmeasured")

CALL_PARAMETERS = parameters("cpu.overhead")
CROWDING_PARAMETERS = parameters("cpu.crowding")
"""Between two runs of an op its code and what describes its tensors leave the caches, by how much
the rest of the step touches."""
UNWATCHED_PARAMETERS = parameters("cpu.unwatched")
"""What timing each operator of a step costs it: fitted to whole steps that were not watched."""
MEMORY_PARAMETERS = parameters(
    "cpu.memory",
    {
        "l2_gb_per_s": lambda device, each: device.l2_gb_per_s or each * device.sm_count,
        "llc_gb_per_s": lambda device, each: device.llc_gb_per_s or each * device.sm_count,
        "dram_gb_per_s": lambda device, share: share * device.hbm_gb_per_s,
        "cold_gb_per_s": lambda device, share: share * device.hbm_gb_per_s,
        "page_us": lambda device, each: each / min(device.sm_count, _C.most_faulting_threads),
    },
)


@dataclass(frozen=True)
class Call:
    """Rows of one op: checked dims, bytes per element, state of the caches, and parameters."""

    op: str
    direction: str
    section: str
    """Of the calibration: the op, and its direction where that is not `fwd`."""
    alone: bool
    """Whether the op is called alone, not within a program."""
    dims: Dims
    item_bytes: Floats
    is_bf16: Mask
    in_step: Floats
    """1 where the op ran inside a program, 0 where it was called alone."""
    unwatched: Mask
    """Whether the whole program is timed, not each of its operators."""
    cold: Floats
    """1 where the caches had been emptied."""
    flags: Dims
    """Whatever else the rows hold, where it is given: `fused`, `foreach`, `step_bytes`,
    `first_frac`."""
    values: Mapping[str, float]
    device: Device

    def __len__(self) -> int:
        return len(self.item_bytes)

    @cached_property
    def flop(self) -> Floats:
        return OPS[self.op].of(self.direction).flop(self.dims)

    @cached_property
    def read_bytes(self) -> Floats:
        return OPS[self.op].of(self.direction).read_bytes(self.dims, self.item_bytes)

    @cached_property
    def written_bytes(self) -> Floats:
        return OPS[self.op].of(self.direction).written_bytes(self.dims, self.item_bytes)

    @property
    def moved_bytes(self) -> Floats:
        return self.read_bytes + self.written_bytes

    @property
    def all_cores(self) -> Floats:
        return np.full(len(self), float(self.device.sm_count))

    @property
    def llc_bytes(self) -> float:
        """Of the last cache before the memory."""
        return float(self.device.llc_bytes or self.device.l2_bytes)

    def by_dtype(self, bf16: float) -> Floats:
        """That number for rows in bf16, 1 for others."""
        return np.where(self.is_bf16, bf16, 1.0)

    def flag(self, name: str) -> Floats:
        """A dim that the op's spec does not know; 0 where it is not given."""
        given = self.flags.get(name)
        return np.zeros(len(self)) if given is None else np.nan_to_num(given)

    def beyond_caches(self, touched_bytes: Floats, table_bytes: Floats) -> Floats:
        """Share of a table's distinct rows that come from memory.

        Alone and warm, what the call itself touches is cached; in a step, as much as the last-level
        cache holds of all that the step touches (`step_bytes`, at least the table).
        """
        alone = np.maximum(1 - self.llc_bytes / np.maximum(touched_bytes, 1.0), 0.0)
        held = np.maximum(self.flag("step_bytes"), np.maximum(table_bytes, 1.0))
        stepping = np.maximum(1 - self.values["reuse_ratio"] * self.llc_bytes / held, 0.0)
        return np.where(self.cold > 0, 1.0, np.where(self.in_step > 0, stepping, alone))

    def memory_gb_per_s(self) -> Floats:
        """Rate of what comes from memory, by the state of the caches."""
        values = self.values
        return np.where(self.cold > 0, values["cold_gb_per_s"], values["dram_gb_per_s"])

    def overhead_us(self) -> Floats:
        """What the op costs before it does anything."""
        values = self.values
        alone = (1 - self.in_step) * values["call_us"]
        ratio = np.where(self.unwatched, values["overhead_ratio"], 1.0)
        usual = values["floor_us"] * self.crowding() + self.first_us()
        return ratio * (usual + alone + self.cold * values["cold_us"])

    def first_us(self) -> Floats:
        """What the first of its kind in a step costs more, as far as the step evicted its code."""
        beyond_l2, beyond_llc = self._evicted()
        evicted = beyond_l2 * (1 + self.values["first_evicted_ratio"] * beyond_llc)
        return self.flag("first_frac") * self.values["first_us"] * evicted

    def crowding(self) -> Floats:
        """What an op's overhead in a step is multiplied by, for all that the step touches."""
        values = self.values
        beyond_l2, beyond_llc = self._evicted()
        more = values["crowded_ratio"] * beyond_l2 + values["evicted_ratio"] * beyond_llc
        return 1 + self.in_step * more

    def _evicted(self) -> tuple[Floats, Floats]:
        """What share of L2 and of the last-level cache the bytes of the step replace."""
        step_bytes = self.flag("step_bytes")
        caches = self.device.l2_bytes, self.llc_bytes
        beyond_l2, beyond_llc = (step_bytes / (step_bytes + each) for each in caches)
        return beyond_l2, beyond_llc

    def moving_us(self, moved_bytes: Floats, held_bytes: Floats, threads: Floats) -> Floats:
        """Moving `moved_bytes` while `held_bytes` compete for the caches.

        The share of the held bytes that fits a level is moved at that level's rate. In a step,
        `resident_frac` of the bytes was touched just before; all that the step touches competes
        with the others.
        """
        recent = self._ns_per_byte(held_bytes, threads)
        crowd = np.maximum(held_bytes, self.flag("step_bytes"))
        share = np.where(self.in_step > 0, self.values["resident_frac"], 1.0)
        ns_per_byte = share * recent + (1 - share) * self._ns_per_byte(crowd, threads)
        return moved_bytes * ns_per_byte * 1e-3

    def _ns_per_byte(self, held_bytes: Floats, threads: Floats) -> Floats:
        device, values = self.device, self.values
        share_of_cores = threads / device.sm_count
        held = np.maximum(held_bytes, 1.0)
        warm = 1 - self.cold
        within_l2 = np.minimum(1.0, device.l2_bytes * share_of_cores / held) * warm
        within_llc = np.minimum(1.0, self.llc_bytes / held) * warm
        ns_per_byte: Floats = (
            within_l2 / (values["l2_gb_per_s"] * share_of_cores)
            + np.maximum(within_llc - within_l2, 0.0) / (values["llc_gb_per_s"] * share_of_cores)
            + (1 - np.maximum(within_llc, within_l2)) / self.memory_gb_per_s()
        )
        return ns_per_byte

    def faults_us(self, fresh_bytes: Floats) -> Floats:
        """First touches of the pages of a result so large that it is mapped anew, by all threads:
        a result of that size has enough elements for each."""
        pages = np.where(fresh_bytes > _C.fresh_bytes, fresh_bytes / _C.page_bytes, 0.0)
        return pages * self.values["page_us"]

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


WATCHED = "dispatch_mode"
"""`timing` of operators that `collect ops` timed one by one inside a step."""

"""One op's rows on one CPU, and the terms that every op's duration shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfmodel.hardware import Device
from perfmodel.kernels.cpu.parameters import Parameter
from perfmodel.ops.spec import Dims, Floats

PAGE_BYTES = 4096.0
GRAIN_ELEMENTS = 32768.0
"""Elements below which PyTorch keeps an elementwise op on one thread.

Source: `at::internal::GRAIN_SIZE`, ATen/TensorIterator.h.
"""
SHARPNESS = 3.0
"""Of `slower`: how sharply one of two overlapping costs takes over from the other."""

CALL_PARAMETERS = (
    Parameter("floor_us", 2.0, 0.05, 200.0, "an op that does next to nothing", per_op=True),
    Parameter("call_us", 0.4, 0.01, 5.0, "the call from Python in an isolated measurement"),
    Parameter("cold_us", 5.0, 0.1, 500.0, "code that is in no cache", per_op=True),
    Parameter("first_us", 5.0, 0.05, 200.0, "the first of its kind in a step", per_op=True),
    Parameter("fork_us", 4.0, 0.1, 60.0, "starting and joining the threads"),
)
CROWDING_PARAMETERS = (
    Parameter("crowded_ratio", 0.1, 0.001, 5.0, "overhead that a step beyond L2 adds"),
    Parameter("evicted_ratio", 0.1, 0.001, 5.0, "overhead that a step beyond L3 adds"),
    Parameter("first_evicted_ratio", 0.5, 0.001, 10.0, "the same, of the first of its kind"),
)
"""Between two runs of an op its code and what describes its tensors leave the caches, by how much
the rest of the step touches."""
UNWATCHED_PARAMETERS = (
    Parameter("overhead_ratio", 1.0, 0.05, 3.0, "an op's overhead where nobody times it"),
    Parameter("work_ratio", 1.0, 0.3, 3.0, "an op's work where nobody times it", per_op=True),
)
"""What timing each operator of a step costs it: fitted to whole steps that were not watched."""
MEMORY_PARAMETERS = (
    Parameter("l2_gb_per_s", lambda d: d.l2_gb_per_s or 40.0 * d.sm_count, 5.0, 2000.0, "from L2"),
    Parameter(
        "llc_gb_per_s", lambda d: d.llc_gb_per_s or 0.6 * 40.0 * d.sm_count, 2.0, 1500.0, "from L3"
    ),
    Parameter("dram_gb_per_s", lambda d: 0.6 * d.hbm_gb_per_s, 0.5, 600.0, "from memory"),
    Parameter(
        "cold_gb_per_s",
        lambda d: 0.6 * d.hbm_gb_per_s,
        *(0.5, 600.0),
        "from memory, in place of what others changed in the caches",
    ),
    Parameter("resident_frac", 0.7, 0.01, 1.0, "of an op's bytes in a step, just touched"),
    Parameter(
        "reuse_ratio", 0.8, 0.05, 4.0, "of the last-level cache that serves reuse across steps"
    ),
    Parameter("page_us", 0.5, 0.01, 5.0, "first touch of a page"),
)
FRESH_BYTES = 32.0 * 2**20
"""Allocations above this are mapped anew each time, so that every page of them is touched first.

Source: `DEFAULT_MMAP_THRESHOLD_MAX` of glibc's malloc on 64 bits; below it freed memory is reused.
"""


@dataclass(frozen=True)
class Call:
    """Rows of one op: checked dims, bytes per element, state of the caches, and parameters."""

    op: str
    section: str
    """Of the calibration: the op, and its direction where that is not `fwd`."""
    alone: bool
    """Whether the op is called alone, not within a program."""
    dims: Dims
    item_bytes: Floats
    is_bf16: Floats
    in_step: Floats
    """1 where the op ran inside a program, 0 where it was called alone."""
    unwatched: Floats
    """1 where the whole program is timed, not each of its operators."""
    cold: Floats
    """1 where the caches had been emptied."""
    direction: str
    flags: Dims
    """Whatever else the rows hold, where it is given: `fused`, `foreach`, `step_bytes`,
    `first_frac`."""
    values: Mapping[str, float]
    device: Device

    def __len__(self) -> int:
        return len(self.item_bytes)

    def flag(self, name: str) -> Floats:
        """A dim that the op's spec does not know; 0 where it is not given."""
        given = self.flags.get(name)
        return np.zeros(len(self)) if given is None else np.nan_to_num(given)

    def beyond_caches(self, touched_bytes: Floats, table_bytes: Floats) -> Floats:
        """Share of a table's distinct rows that come from memory.

        Alone and warm, what the call itself touches is cached; in a step, as much as the last-level
        cache holds of all that the step touches (`step_bytes`, at least the table).
        """
        cache_bytes = float(self.device.llc_bytes or self.device.l2_bytes)
        alone = np.maximum(1 - cache_bytes / np.maximum(touched_bytes, 1.0), 0.0)
        held = np.maximum(self.flag("step_bytes"), np.maximum(table_bytes, 1.0))
        stepping = np.maximum(1 - self.values["reuse_ratio"] * cache_bytes / held, 0.0)
        return np.where(self.cold > 0, 1.0, np.where(self.in_step > 0, stepping, alone))

    def memory_gb_per_s(self) -> Floats:
        """Rate of what comes from memory, by the state of the caches."""
        values = self.values
        return np.where(self.cold > 0, values["cold_gb_per_s"], values["dram_gb_per_s"])

    def overhead_us(self) -> Floats:
        """What the op costs before it does anything."""
        values = self.values
        alone = (1 - self.in_step) * values["call_us"]
        ratio = np.where(self.unwatched > 0, values["overhead_ratio"], 1.0)
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
        step_bytes, device = self.flag("step_bytes"), self.device
        llc_bytes = device.llc_bytes or device.l2_bytes
        return step_bytes / (step_bytes + device.l2_bytes), step_bytes / (step_bytes + llc_bytes)

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
        within_llc = np.minimum(1.0, (device.llc_bytes or device.l2_bytes) / held) * warm
        found: Floats = (
            within_l2 / (values["l2_gb_per_s"] * share_of_cores)
            + np.maximum(within_llc - within_l2, 0.0) / (values["llc_gb_per_s"] * share_of_cores)
            + (1 - np.maximum(within_llc, within_l2)) / self.memory_gb_per_s()
        )
        return found

    def faults_us(self, fresh_bytes: Floats) -> Floats:
        """First touches of the pages of a result so large that it is mapped anew."""
        pages = np.where(fresh_bytes > FRESH_BYTES, fresh_bytes / PAGE_BYTES, 0.0)
        return pages * self.values["page_us"]

    def threads(self, elements: Floats, grain: float = GRAIN_ELEMENTS) -> Floats:
        """Threads that an op over so many elements is split over."""
        return np.clip(np.ceil(elements / grain), 1.0, float(self.device.sm_count))

    def fork_us(self, threads: Floats) -> Floats:
        """Starting and joining, where there is more than one thread."""
        return np.where(threads > 1, self.values["fork_us"], 0.0)


def slower(first: Floats, second: Floats) -> Floats:
    """About the larger of two costs that overlap; never less than either."""
    return (first**SHARPNESS + second**SHARPNESS) ** (1 / SHARPNESS)


WATCHED = "dispatch_mode"
"""`timing` of operators that `collect ops` timed one by one inside a step."""


def is_one_of(timing: tuple[str, ...], *kinds: str) -> Floats:
    """1 for rows whose `timing` is one of `kinds`."""
    return np.array([float(each in kinds) for each in timing])

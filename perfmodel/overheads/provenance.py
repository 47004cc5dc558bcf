"""Where a profile's samples come from."""

from __future__ import annotations

from dataclasses import dataclass, fields

from perfmodel.errors import ModelError


@dataclass(frozen=True)
class Provenance:
    """What a profile was taken from. Tuples hold what each merged part says; empty: not known."""

    traces: tuple[str, ...] = ()
    """File names of the traces, without folders."""
    devices: tuple[str, ...] = ()
    torch_versions: tuple[str, ...] = ()
    cuda_versions: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    profiler_us_per_event: float = 0.0
    """What was taken off the samples per recorded event, in microseconds; 0: as measured."""
    blocking: bool = False
    """Samples that waited for the device or another thread are in it too."""

    def __str__(self) -> str:
        return ", ".join(self.traces) or "unnamed samples"

    def merge(self, other: Provenance) -> Provenance:
        """Both, without repeats. Raises `ModelError` when their samples mean different things."""
        if self.blocking != other.blocking:
            raise ModelError(
                f"profiles of {self} and {other} cannot be merged: one holds blocking samples, "
                "the other none; take both the same way"
            )
        if self.profiler_us_per_event != other.profiler_us_per_event:
            raise ModelError(
                f"profiles of {self} and {other} cannot be merged: their profiler corrections are "
                f"{self.profiler_us_per_event} and {other.profiler_us_per_event} us per event"
            )
        both = {
            field.name: tuple(
                dict.fromkeys((*getattr(self, field.name), *getattr(other, field.name)))
            )
            for field in fields(self)
            if isinstance(field.default, tuple)
        }
        return Provenance(
            **both, profiler_us_per_event=self.profiler_us_per_event, blocking=self.blocking
        )

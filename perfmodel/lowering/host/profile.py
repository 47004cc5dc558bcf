"""Profiles: host overheads of traces, for a trace or workload that has none; those that ship."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.files import read_bytes, write_text
from perfmodel.errors import ModelError, PerfmodelError, UsageError
from perfmodel.lowering.host.measure import (
    CODE,
    NUMBERS,
    T4,
    TYPES,
    Samples,
    Statistic,
    Us,
    grouped,
    of_sorted,
)

if TYPE_CHECKING:
    import pandas as pd


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a profile was taken from. Tuples hold what each part says; empty: not known."""

    traces: tuple[str, ...] = ()
    """File names of the traces, without folders."""
    devices: tuple[str, ...] = ()
    torch_versions: tuple[str, ...] = ()
    cuda_versions: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    profiler_us_per_event: Us = 0.0
    """What was taken off the samples per recorded event, in microseconds; 0: as measured."""
    blocking: bool = False
    """Samples that waited for the device or another thread are in it too, as files may have it."""
    unwatched: bool = False
    """What operators take was measured without a profiler."""

    def __str__(self) -> str:
        return ", ".join(self.traces) or "unnamed samples"


SCHEMA = "perfmodel.overheads/1"
MAX_BYTES = 100_000_000

Key = tuple[str, str | None, str | None]
"""Type, operator (or launch call) and thread role; None stands for all of them."""
Rows = dict[Key, Statistic]


class _Row(Statistic, frozen=True, forbid_unknown_fields=True, kw_only=True):
    type: Literal["T1", "T2", "T3", "T4", "T5", "op_without_launch"]
    op: str | None
    thread: str | None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    schema: Literal["perfmodel.overheads/1"]
    provenance: Provenance
    rows: Annotated[list[_Row], msgspec.Meta(min_length=1)]


CATALOGUE = Path(__file__).with_name("catalogue")
"""Folder of the profiles that `load_profile` knows by name."""

MIN_SAMPLES = 3
"""Fewer hold nothing that a trimmed mean could leave out, and an operator called once is mostly one
that begins a program: `aten::embedding` of the H100 traces, 76 us, ten times what others take."""
MIN_GAPS = 10
"""Of gaps between an op's launches, which differ by what comes next: of fewer, another trace's are
nearer to its thread's mean than to those of the op (docs/evidence/hosts.md)."""


@dataclass(frozen=True)
class Profile:
    """Statistics per (type, op, thread), per (type, thread) and per type.

    T4 samples are filed under their operator, and once more under the name of their launch call,
    such as `cudaLaunchKernel`.
    """

    rows: Rows
    """By type, op and thread; None stands for all ops or threads."""
    provenance: Provenance = field(default_factory=Provenance)

    @classmethod
    def from_samples(
        cls, samples: Samples, *more: Samples, provenance: Provenance | None = None
    ) -> Profile:
        """The profile of one or several ranks' or traces' samples, but of those that waited.

        `provenance`: what the samples do not know, such as versions and the host; the traces,
        devices and the profiler correction are filled in.
        Raises `ModelError` when nothing is left, or when the samples differ in their correction.
        """
        every = (samples, *more)
        corrections = {each.profiler_us_per_event for each in every}
        if len(corrections) > 1:
            given = " and ".join(map(str, sorted(corrections)))
            raise ModelError(f"{samples.where}: profiler corrections are {given} us per event")
        values: defaultdict[Key, list[Floats]] = defaultdict(list)
        for each in every:
            for key, group in _by_key(each.without_waiting()):
                values[key].append(group)
        if not values:
            raise ModelError(f"{samples.where}: no host overheads to take a profile from")
        rows = {key: of_sorted(np.sort(np.concatenate(own))) for key, own in values.items()}
        stated = provenance or Provenance()
        traces = dict.fromkeys((*stated.traces, *(Path(each.where).name for each in every)))
        devices = (device for each in every for device in each.devices)
        about = msgspec.structs.replace(
            stated,
            traces=tuple(traces),
            devices=tuple(dict.fromkeys((*stated.devices, *devices))),
            profiler_us_per_event=samples.profiler_us_per_event,
        )
        return Profile(rows, about)

    def completed(self, other: Profile) -> Profile:
        """This profile with the types that it has no sample of from `other`."""
        held = {key[0] for key in self.rows}
        more = {key: rows for key, rows in other.rows.items() if key[0] not in held}
        return replace(self, rows={**self.rows, **more}) if more else self

    def of_repeated(self) -> Profile:
        """This profile without operators of fewer than `MIN_SAMPLES`, or `MIN_GAPS`."""
        least = dict.fromkeys(TYPES, MIN_SAMPLES) | {"T5": MIN_GAPS}
        kept = (key for key, row in self.rows.items() if row.count >= least[key[0]] or not key[1])
        return replace(self, rows={key: self.rows[key] for key in kept})

    def statistic(self, kind: str, op: str | None = None, thread: str | None = None) -> Statistic:
        """All that is known of one type: of the op on the thread, else of the thread, else at all.

        Raises `ModelError` when the profile has no sample of the type.
        """
        for key in ((kind, op, thread), (kind, None, thread), (kind, None, None)):
            row = self.rows.get(key)
            if row is not None:
                return row
        if kind not in TYPES:
            raise UsageError(f"unknown overhead type {kind!r}: expected one of {', '.join(TYPES)}")
        raise ModelError(
            f"overhead profile of {self.provenance}: no {kind} samples; "
            f"it holds {', '.join(sorted({key[0] for key in self.rows}))}"
        )

    def lookup(
        self,
        kind: str,
        op: str | None = None,
        thread: str | None = None,
        *,
        statistic: str = "mean_us",
    ) -> float:
        """Microseconds of one overhead, with the fallback of `statistic()`.

        `statistic`: `mean_us`, which keeps sums right, or another of `Statistic`'s numbers.
        """
        if statistic not in NUMBERS:
            raise UsageError(f"unknown statistic {statistic!r}: expected one of {NUMBERS}")
        return float(getattr(self.statistic(kind, op, thread), statistic))

    def durations(
        self,
        kinds: Sequence[str],
        ops: Sequence[str | None],
        threads: Sequence[str | None],
        *,
        statistic: str = "mean_us",
    ) -> Floats:
        """`lookup` for many rows: microseconds. Every distinct combination is looked up once."""
        keys = list(zip(kinds, ops, threads, strict=True))
        taken_us = {key: self.lookup(*key, statistic=statistic) for key in set(keys)}
        return np.array([taken_us[key] for key in keys], np.float64)

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON (`perfmodel.overheads/1`), whole or not at all.

        Raises `PerfmodelError` when it cannot be written.
        """
        listed = sorted(
            self._listed(), key=lambda r: (TYPES.index(r["type"]), r["thread"] or "", r["op"] or "")
        )
        written = {"schema": SCHEMA, "provenance": self.provenance, "rows": listed}
        content = msgspec.json.encode(written)
        write_text(Path(path), msgspec.json.format(content, indent=1).decode() + "\n")

    def frame(self) -> pd.DataFrame:
        """One row per (type, op, thread) as a pandas frame; None stands for all."""
        import pandas as pd

        return pd.DataFrame(self._listed())

    def _listed(self) -> list[dict[str, Any]]:
        return [
            {"type": kind, "op": op, "thread": thread, **msgspec.structs.asdict(row)}
            for (kind, op, thread), row in self.rows.items()
        ]


def load_profile(name_or_path: str | Path, *, catalogue: Path = CATALOGUE) -> Profile:
    """A saved profile: a file, or the name of one in `catalogue`.

    Raises `ModelError` naming the file and the key that is wrong, or that there is no such file.
    """
    path = Path(name_or_path)
    if not path.exists():
        named = catalogue / f"{name_or_path}.json"
        if path.name != str(name_or_path) or not named.is_file():
            known = ", ".join(sorted(file.stem for file in catalogue.glob("*.json")))
            raise ModelError(
                f"{name_or_path}: no such overhead profile: give a file written by "
                f"Profile.save{f', or one of {known}' if known else ''}"
            )
        path = named
    try:
        content = msgspec.json.decode(read_bytes(path, max_bytes=MAX_BYTES), type=_File)
    except msgspec.ValidationError as error:
        raise ModelError(f"{path}: no overhead profile: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{path}: not an overhead profile: invalid JSON: {error}") from None
    except PerfmodelError as error:
        raise ModelError(str(error)) from None
    rows: Rows = {}
    for at, row in enumerate(content.rows):
        if (row.type, row.op, row.thread) in rows:
            raise ModelError(f"{path}: $.rows[{at}]: repeats an earlier row's type, op and thread")
        numbers = (getattr(row, name) for name in Statistic.__struct_fields__)
        rows[row.type, row.op, row.thread] = Statistic(*numbers)
    return Profile(rows, content.provenance)


def _by_key(samples: Samples) -> Iterator[tuple[Key, Floats]]:
    """The samples of each type, of each thread, of each operator and launch call."""
    threads, names = len(samples.threads), len(samples.names)
    at_thread = samples.type.astype(np.int64) * threads + samples.thread
    call = np.flatnonzero(samples.type == CODE[T4])
    by_op, by_call = at_thread * names + samples.op, at_thread[call] * names + samples.call[call]
    for code, us in grouped(samples.type.astype(np.int64), samples.value_us):
        yield (TYPES[code], None, None), us
    for code, us in grouped(at_thread, samples.value_us):
        yield (TYPES[code // threads], None, samples.threads[code % threads]), us
    for codes, value_us in ((by_op, samples.value_us), (by_call, samples.value_us[call])):
        for code, us in grouped(codes, value_us):
            place, name = divmod(code, names)
            key = TYPES[place // threads], samples.names[name], samples.threads[place % threads]
            yield key, us


EAGER = "h100-inference"
"""The profile of PyTorch's operators as they are called one by one, for what names no other."""

RECORDED_ON = {EAGER: "xeon-platinum-8480c", "a100-dlrm": "epyc-7742", "mi300x": "epyc-9654"}
"""The hosts that profiles of the catalogue are assumed to have been recorded on, the usual ones of
their devices, for none tells its own; `PLAIN_HOST` where there were several."""

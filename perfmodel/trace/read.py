"""`read`: whatever the user has, to a `Trace`. What a file is, its content decides."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.base.files import DEFAULT_MAX_BYTES
from perfmodel.base.units import counted
from perfmodel.errors import Note, TraceError, UsageError
from perfmodel.trace.categories import KERNEL_LAUNCH_CALL, Category
from perfmodel.trace.columns import NONE, RankTrace, frame_of_rank
from perfmodel.trace.files import Foreign, decode_files
from perfmodel.trace.link import Links, link
from perfmodel.trace.recording import check_rank, checked_recording
from perfmodel.trace.repairs import check_types
from perfmodel.trace.window import part_of, step_marks

if TYPE_CHECKING:
    import pandas as pd

    from perfmodel.trace.execution_trace_columns import ExecutionTrace, Pairing

_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_]?(\d+)", re.IGNORECASE)
MIN_PAIRED_FRAC = 0.5
"""An execution trace that shares fewer of its events with a profile is of another program."""


@dataclass(frozen=True)
class Trace:
    """What `read` found: Kineto events per rank and the execution traces beside them.

    `ranks` are in order of rank; `execution_traces` maps a rank to its execution trace. `warnings`
    count what was dropped, repaired or guessed.
    """

    source: str
    ranks: tuple[RankTrace, ...]
    execution_traces: dict[int, ExecutionTrace]
    warnings: list[str] = field(default_factory=list)
    chosen: slice = field(default_factory=lambda: slice(None))
    """Of its steps, those that `read` was asked for; others stand around them."""
    recorded_on: Any = None
    """The machine (a name, a TOML file, or itself) that a user says it was recorded on."""

    @property
    def world_size(self) -> int:
        """Ranks of the job, as far as the profiles tell."""
        return max([len(self.ranks), *(rank.world_size or 1 for rank in self.ranks)])

    @cached_property
    def links(self) -> tuple[Links, ...]:
        """Per rank of `ranks`: how its kernels, launches and operators tie together."""
        return tuple(link(rank) for rank in self.ranks)

    @property
    def recorded(self) -> dict[int, tuple[RankTrace, Links]]:
        """The profile of each rank that has one, and how it ties together."""
        pairs = zip(self.ranks, self.links, strict=True)
        return {rank.rank: (rank, links) for rank, links in pairs}

    @cached_property
    def pairings(self) -> dict[int, Pairing]:
        """Per rank that has an execution trace: which host event is which of its nodes."""
        if not self.execution_traces:
            return {}
        from perfmodel.trace.execution_trace_columns import pair

        return {
            rank.rank: pair(rank, self.execution_traces[rank.rank])
            for rank in self.ranks
            if rank.rank in self.execution_traces
        }

    def with_execution_trace(self, path: str | Path, **options: Any) -> Trace:
        """This trace with the execution trace in `path` (options as of `read`) paired to a rank.

        The rank is the one in the file's name, or the only one. Raises `TraceError` when the file
        holds none, and when its nodes are not the events of this trace.
        """
        result = read(path, **options)
        if not result.execution_traces:
            raise TraceError(f"{path}: holds no execution trace")
        extra = list(result.execution_traces.values())
        joined = replace(
            self,
            execution_traces=self.execution_traces
            | _execution_traces_by_rank(extra, list(self.ranks)),
            warnings=[*self.warnings, *result.warnings],
        )
        best = max((p.matched_frac for p in joined.pairings.values()), default=0.0)
        if best < MIN_PAIRED_FRAC:
            raise TraceError(
                f"{path}: only {100 * best:.0f} % of the host events of {self.source} are nodes of "
                "this execution trace: they are not of the same program"
            )
        return joined

    @property
    def events(self) -> pd.DataFrame:
        """All events of all ranks as one pandas frame; empty for execution traces alone."""
        import pandas as pd

        if not self.ranks:
            return pd.DataFrame()
        return pd.concat(map(frame_of_rank, self.ranks), ignore_index=True)

    @property
    def device(self) -> str:
        """Name of the first GPU that the trace names, or `cpu` where nothing was put on one."""
        names = [d.name for rank in self.ranks for d in rank.devices if d.name]
        has_work = any(
            rank.is_device.any() or len(rank.of(Category.RUNTIME, named=KERNEL_LAUNCH_CALL))
            for rank in self.ranks
        )
        return names[0] if names and has_work else "gpu" if has_work else "cpu"

    def _repr_html_(self) -> str:
        from perfmodel.plot import table_html

        rows = [
            [rank.rank, len(rank), len(links.steps), len(links.device_rows), rank.where]
            for rank, links in zip(self.ranks, self.links, strict=True)
        ]
        columns = ["rank", "events", "steps", "device operations", "file"]
        return table_html(rows, columns, repr(self))

    def __repr__(self) -> str:
        ranks = ", ".join(str(rank.rank) for rank in self.ranks)
        counts = sum(map(len, self.ranks)), len(self.execution_traces), len(self.warnings)
        events, graphs, warnings = map(counted, counts, ("event", "execution trace", "warning"))
        about = f"ranks [{ranks}], {events}, device {self.device!r}, {graphs}, {warnings}"
        return f"Trace({self.source!r}: {about})"


def read(
    path: str | Path,
    *,
    strict: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    steps: slice | None = None,
    context: int = 0,
    workers: int | None = None,
    steps_by: str = "",
) -> Trace:
    """Read a Kineto file, a profile of another tool, an execution trace, an archive or a folder.

    Parameters:
        path: `.json`, `.json.gz`, `.sqlite` (Nsight Systems), `.db` (rocpd), `.et` (Chakra),
            `.tar.gz`, a folder, `-` for standard input, or a bundled trace (`demo:`, `demo:2rank`,
            `demo:gpu`); names of files do not matter.
        strict: what would be a warning is an error.
        max_bytes: a bound for each decompressed document.
        steps: only the events of these steps are kept, and of `context` steps on each side; the
            trace's `chosen` says where they are.
        workers: processes that decode the files of a folder (default: one per processor where that
            is quicker than one after another); the answer does not depend on it.
        steps_by: annotations of that name, alone or with a number behind it (`NAME 3`, `NAME#3`),
            mark the steps, else those that profilers and engines are known to write.

    Returns: a `Trace`.
    Raises: `PerfmodelError` naming file and place (`TraceError` for what is no trace).
    Example: `perfmodel.read("demo:2rank").ranks`.
    """
    result = decode_files(path, max_bytes, workers)
    parts = [e.part for e in result if e.part is not None and not isinstance(e.part, str)]
    ignored = [e for e in result if e.part is None or isinstance(e.part, Foreign)]
    if not parts:
        why = ignored[0].part if ignored else None
        why = why or "JSON without traceEvents or nodes: this is not a trace"
        raise TraceError(f"{result[0].where}: {why}")
    ranks = [part for part in parts if isinstance(part, RankTrace)]
    if steps_by:
        if not ranks:
            raise UsageError(f"{path}: --steps-by: an execution trace has no steps by time")
        ranks = [replace(rank, steps_by=steps_by) for rank in ranks]
        for rank in ranks:
            if not len(step_marks(rank)[0]):
                notes = Counter(rank.text(row) for row in rank.of(Category.ANNOTATION))
                most = ", ".join(f"{name} ({n})" for name, n in notes.most_common(5))
                raise UsageError(
                    f"{rank.where}: --steps-by {steps_by!r}: no annotation has that name; "
                    + (f"most frequent are {most}" if most else "it has none")
                )
    others = [part for part in parts if not isinstance(part, RankTrace)]
    chosen = slice(None) if steps is None else steps
    if ranks and steps is not None and (len(ranks) == 1 or not context):
        # Of several ranks all steps stay around those asked for: they say how far clocks are apart.
        parts_of = [part_of(rank, steps, context) for rank in ranks]
        known = [each for each in parts_of if each is not None]
        if len(known) == len(ranks):
            ranks, chosen = [rank for rank, _ in known], known[0][1]
        elif not context:
            bare = ranks[parts_of.index(None)].where
            raise UsageError(f"{bare}: --steps: no annotations of steps to choose from")
    is_whole = steps is None
    checked = [checked_recording(r, is_whole=is_whole) for r in _ranks_in_order(ranks)]
    trace = Trace(
        str(path),
        tuple(rank for rank, _ in checked),
        _execution_traces_by_rank(others, ranks),
        chosen=chosen,
    )
    for part in parts:
        trace.warnings.extend(f"{part.where}: {text}" for text in part.warnings)
    for rank, faults in checked:
        check_rank(rank)
        check_types(rank)
        trace.warnings.extend(f"{rank.where}: {text}" for text in faults)
    trace.warnings.extend(f"{e.where}: no trace, ignored" for e in ignored if not e.part)
    trace.warnings.extend(f"{e.where}: ignored: {e.part}" for e in ignored if e.part)
    sizes = [rank.world_size for rank in trace.ranks if rank.world_size]
    if (len(result) > 1 or Path(trace.source).is_dir()) and len(trace.ranks) < max(
        sizes[:1] or [0]
    ):
        missing = sorted(set(range(sizes[0])) - {rank.rank for rank in trace.ranks})
        names = f"ranks {', '.join(map(str, missing))} of {sizes[0]}"
        where = "are not here: collectives meet among those that are"
        trace.warnings.append(Note(f"{trace.source}: {names} {where}"))  # `completeness` warns
    if strict and trace.warnings:
        raise TraceError(trace.warnings[0])
    return trace


def rank_in_name(where: str) -> int | None:
    """The rank that a file is named after (`rank3`, `worker-3`): the last one in its name."""
    result = _RANK_IN_NAME.findall(Path(where.rsplit(":", 1)[-1]).name)
    return int(result[-1]) if result else None


def _ranks_in_order(ranks: list[RankTrace]) -> tuple[RankTrace, ...]:
    """The ranks by number; those whose file does not say take it from its name, else 0, 1, …"""
    numbered: dict[int, RankTrace] = {}
    unnamed: dict[str, RankTrace] = {}
    for position, rank in enumerate(ranks):
        number = rank.rank
        if number == NONE:
            named = rank_in_name(rank.where)
            number = named if named is not None else position
            object.__setattr__(rank, "rank", number)
            if named is None and rank.devices:
                unnamed.setdefault(rank.devices[0].name, rank)
        if number in numbered:
            raise TraceError(
                f"{rank.where}: is rank {number}, and so is {numbered[number].where}: "
                "a folder must hold one job, one file per rank"
            )
        numbered[number] = rank
    sizes = {rank.world_size: rank.where for rank in ranks if rank.world_size}
    if len(sizes) > 1:
        (a, file_a), (b, file_b) = list(sizes.items())[:2]
        raise TraceError(f"{file_b}: is of a job of {b} ranks, but {file_a} of one of {a}")
    if len(unnamed) > 1:
        (device, one), (another, other) = list(unnamed.items())[:2]
        raise TraceError(
            f"{other.where}: ran on {another}, but {one.where} on {device}, and neither states "
            "its rank: a folder must hold one job, one file per rank"
        )
    return tuple(numbered[number] for number in sorted(numbered))


def _execution_traces_by_rank(
    others: list[ExecutionTrace], ranks: list[RankTrace]
) -> dict[int, ExecutionTrace]:
    result: dict[int, ExecutionTrace] = {}
    for position, trace in enumerate(others):
        named = rank_in_name(trace.where)
        if len(others) == len(ranks) == 1:
            named = ranks[0].rank
        number = position if named is None else named
        if number in result:
            raise TraceError(f"{trace.where}: a second execution trace of rank {number}")
        result[number] = trace
    return result

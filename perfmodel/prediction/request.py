"""What is asked of a prediction: a source, what a name stands for, machines, what-ifs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from perfmodel.base.schema import parse_value
from perfmodel.cost.durations import Kernels
from perfmodel.designs import Deployment
from perfmodel.embedding import Placement
from perfmodel.errors import UsageError
from perfmodel.hardware import Cluster, Device, Part, cluster, find, load, with_settings
from perfmodel.hardware.catalogue import node_of
from perfmodel.ops.edits.named import NamedEdit
from perfmodel.ops.graph import OpGraph
from perfmodel.ops.read.module import Call, graph_of_program, program_of
from perfmodel.prediction.what_if import Codec, Scale
from perfmodel.trace import Trace, read
from perfmodel.workload import Workload, load_workload
from perfmodel.workload.load import is_recording

if TYPE_CHECKING:
    from perfmodel.prediction.serving import Serving

OF_WORKLOAD = "workload."


@dataclass(frozen=True)
class Traced:
    """A module, by what gives its ops for a call with so many samples, or with its own."""

    graph: Callable[[int | None], OpGraph]


Source: TypeAlias = Trace | OpGraph | Traced | Deployment | Workload | str | Path
Hardware = str | Path | Part
Settings: TypeAlias = str | Sequence[str] | Mapping[str, object]


@dataclass(frozen=True)
class Request:
    """What is to be predicted, where, and under which what-ifs.

    The answer of a trace is from its measured times where it has them: as they are, by ratios of
    models on other devices; an edit, a batch or nodes multiply it by what shapes say of the change.
    A workload's is the period of steps that follow one another.

    Parameters:
        source: a trace (its path, or itself); a workload (its name in the catalogue, its TOML file,
            or itself), which runs in its own software; a workload as it is deployed; an op graph,
            or what gives one for a batch; or the module `FILE.py:CLASS`, whose file is executed.
        hardware: devices, nodes or clusters: names of the catalogue, TOML files, or themselves;
            without any a trace stays on its own machine. `gpus`, `nodes` or `all`: those of the
            catalogue, the cheapest per sample first. All devices of a node or cluster are ranks of
            a workload, a device by itself is one rank.
        settings: changed figures of them, or of the workload: `{"node.gpus": 4,
            "workload.table.alpha": 0.8}`, or texts `KIND.KEY=VALUE`.
        nodes: so many equal nodes, among which collectives run.
        batch: samples of all ranks of a workload; rescales every shape of a trace that depends on
            it, and is the first size of what a module is called with.
        overheads: a saved profile, whose means replace measured host costs; where shapes alone
            count, one is chosen and named among the warnings.
        kernels: which models time families of kernels: `{"matmul": "heuristic"}`.
        mode: one evidence alone: `replay`, `transfer` (to other devices), or `model` (shapes, the
            default of what has no times).
        scale: what takes how much of its time: `{"gpu": 0.5}`, or as `Scale.parse` has it; each
            result then has what is predicted without what-ifs as its `baseline`.
        remove: what takes no time (`Scale.parse_removal`).
        codec: what collectives of a replay send in a narrower type (`Codec.parse`).
        edit: a changed program, of shapes (`NamedEdit.parse`).
        keep_contention: kernels stay as slow beside collectives as they were measured.
        leave_one_step_out: the host costs of each step of a replay are from the other steps.
        source_device: the machine a trace was recorded on, where it names none that is known.
        train: the whole step of a workload; else its forward pass.
        every_rank: one of each class of ranks with equal work; else the rank that looks up most and
            the one that sends most stand for all.
        layout: gives the placement of a workload's tables on a machine.
        serving: what is asked of the latency of a workload's forward passes.

    Returns: a `Prediction`: per machine `step_us`, its 90 % interval `low_us` to `high_us`, and
    why.
    Raises: `PerfmodelError` in one line, for what cannot be read, for an argument that means
    nothing of the source (`UsageError`), and for what memory does not hold (`DoesNotFit`).
    Example: `perfmodel.predict("demo:", scale={"host": 0.5}).results[0].gain`.
    """

    source: Source
    _: KW_ONLY
    hardware: Hardware | Sequence[Hardware] = ()
    settings: Settings = ()
    nodes: int | None = None
    batch: int | None = None
    overheads: str | Path | None = None
    kernels: Kernels | None = None
    mode: str | None = None
    scale: str | Sequence[str] | Mapping[str, float] = ()
    remove: str | Sequence[str] = ()
    codec: str | Sequence[str] = ()
    edit: str | Sequence[str] = ()
    keep_contention: bool = False
    leave_one_step_out: bool = False
    source_device: Hardware | None = None
    train: bool = True
    every_rank: bool = False
    layout: Callable[[Workload, Cluster], Placement] | None = None
    serving: Serving | None = None

    def __post_init__(self) -> None:
        for parse in (self.scales, self.codecs, self.edits):
            parse()
        if self.settings and not self.targets:
            raise UsageError("--set changes the target: name one with --hardware")

    @property
    def targets(self) -> list[Hardware]:
        return as_list(self.hardware)

    def settled(self) -> Request:
        """The same with its source read, and with its settings made."""
        source, texts = sourced(self.source, self.batch), as_list(self.settings)
        parts, is_trace = self.targets, isinstance(source, Trace)
        if texts and isinstance(source, Workload):
            source, texts = changed_workload(source, texts), machine_settings(texts)
        if texts:
            parts = [hardware_part(each, texts, whole=is_trace) for each in parts]
        is_traced = isinstance(source, OpGraph) and source is not self.source
        batch = None if is_traced else self.batch
        return replace(self, source=source, hardware=parts, settings=(), batch=batch)

    def scales(self) -> list[Scale]:
        """What is scaled, and what is taken out."""
        removed = map(Scale.parse_removal, as_list(self.remove))
        return [*map(Scale.parse, as_list(self.scale)), *removed]

    def codecs(self) -> list[Codec]:
        return [Codec.parse(text) for text in as_list(self.codec)]

    def edits(self) -> list[NamedEdit]:
        return [NamedEdit.parse(text) for text in as_list(self.edit)]

    @property
    def profile(self) -> str | None:
        return None if self.overheads is None else str(self.overheads)

    def refuse(self, what: str, names: Iterable[str]) -> None:
        """Raise `UsageError` where one of these options is given: they mean nothing for `what`."""
        usual = {each.name: each.default for each in fields(self)}
        for name in names:
            if getattr(self, name) not in (usual[name], []):
                raise UsageError(f"--{name.replace('_', '-')} cannot be combined with {what}")


def as_list(given: Any) -> list[Any]:
    """`{"node.gpus": 4}` as the command line has it, `node.gpus=4`; one value without its list."""
    if isinstance(given, Mapping):
        lowered = {name: str(x).lower() if isinstance(x, bool) else x for name, x in given.items()}
        return [f"{name}={value}" for name, value in lowered.items()]
    return [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)


def machine_settings(texts: Iterable[str]) -> list[str]:
    """All but those that are of a workload."""
    return [text for text in texts if not text.strip().startswith(OF_WORKLOAD)]


def changed_workload(workload: str | Path | Trace | Workload, settings: Iterable[str]) -> Workload:
    """The workload with those settings that are its own: `workload.implementation.precision=bf16`
    and their like."""
    changes = {}
    for text in (text.strip() for text in settings if text.strip().startswith(OF_WORKLOAD)):
        name, equals, value = text.removeprefix(OF_WORKLOAD).partition("=")
        if not equals:
            raise UsageError(f"--set {text!r}: expected workload.KEY=VALUE")
        changes[name.strip().replace(".", "__")] = parse_value(value)
    loaded = workload if isinstance(workload, Workload) else load_workload(workload)
    return loaded.with_(**changes) if changes else loaded


def hardware_part(named: Hardware, settings: Sequence[str], *, whole: bool = False) -> Part:
    """The device, node or cluster of that name with its settings; a device stays alone, or is
    the `whole` node that it usually sits in."""
    part = named if isinstance(named, Part) else load(named)
    of_device = all(text.strip().startswith("device.") for text in settings)
    if isinstance(part, Device) and settings and (whole or not of_device):
        part = node_of(part) if whole else replace(node_of(part), gpus=1)
    return with_settings(part, settings)


def sourced(source: Source, batch: int | None = None) -> Source:
    """What a name stands for: a workload, the ops of a module called with `batch`, else a trace."""
    if isinstance(source, (str, Path)) and not is_recording(source):
        return load_workload(source)
    if (traced := traced_by(source)) is not None:
        return traced.graph(batch)
    return read(source) if isinstance(source, (str, Path)) else source


def traced_by(source: Source) -> Traced | None:
    """What gives the ops of a module for a batch; None of any other source."""
    program = program_of(str(source)) if isinstance(source, (str, Path)) else None
    if program is not None:
        return Traced(lambda batch: graph_of_program(program, Call(batch=batch)))
    return source if isinstance(source, Traced) else None


def facts_of(trace: Trace) -> dict[str, Any]:
    """Who a trace is, and how its execution traces fit its profiles."""
    paired = {
        rank: {"regime": each.regime, "matched_frac": round(each.matched_frac, 6)}
        for rank, each in trace.pairings.items()
    }
    return {
        "trace": trace.source,
        "device": trace.device,
        "ranks": [rank.rank for rank in trace.ranks],
        "world_size": trace.world_size,
        "events": sum(len(rank) for rank in trace.ranks),
        "execution_traces": [
            {"rank": rank, "schema": each.schema} | paired.get(rank, {})
            for rank, each in trace.execution_traces.items()
            if rank in paired or not trace.ranks
        ],
    }


WITH_GPUS = {"gpus": ("device",), "nodes": ("node",), "all": ("device", "node")}
"""What `hardware` may say instead of a name: kinds of the catalogue's machines with GPUs."""


def machines(hardware: Sequence[Any]) -> list[str]:
    """Where `hardware` has a word of `WITH_GPUS`, those machines and the others that it names; none
    without such a word. Raises `HardwareError` for a name that is none."""
    words = [each for each in hardware if isinstance(each, str) and each in WITH_GPUS]
    if not words:
        return []
    kinds = dict.fromkeys(kind for word in words for kind in WITH_GPUS[word])
    found: list[Any] = [part for kind in kinds for part in find("", kind)]
    with_gpus = [each.name for each in found if getattr(each, "device", each).target != "cpu"]
    others = [each for each in hardware if each not in words]
    for each in others:
        cluster(each)
    return list(dict.fromkeys([*with_gpus, *others]))

"""Traces evaluated: the jobs behind paths; errors of held-out steps, predicted from the others; of
the device time of their ops, and of their steps, from shapes alone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.base.answers import Begin, begun, silent
from perfmodel.base.arrays import Floats, Ints
from perfmodel.base.files import DEFAULT_MAX_BYTES, located, read_chunks
from perfmodel.cost.contract import COLLECTIVE
from perfmodel.cost.durations import durations_of
from perfmodel.errors import HardwareError, PerfmodelError, TraceError, UsageError
from perfmodel.hardware import Device, from_driver_name
from perfmodel.lowering import lower
from perfmodel.lowering.observed import answered_by, with_placement
from perfmodel.ops.families import COMMUNICATION, families_of_kernels
from perfmodel.ops.graph import NO_OP, OpGraph
from perfmodel.ops.read import op_graph
from perfmodel.ops.spec import OPS
from perfmodel.prediction import predict
from perfmodel.prediction.intervals import median_errors, unseen_step_interval
from perfmodel.prediction.result import left_out_change_us, null_mean_us
from perfmodel.timeline.graph.recorded_steps import step_of_nodes
from perfmodel.timeline.graph.types import ExecutionGraph
from perfmodel.timeline.schedule import Timeline, by_rank_and_step, measured, schedule, steady_steps
from perfmodel.trace import Trace, read
from perfmodel.trace.columns import RankTrace
from perfmodel.trace.files import ARCHIVES, KINETO_KEY, file_suffixes
from perfmodel.trace.link import Links
from perfmodel.trace.read import rank_in_name
from perfmodel.validate.evaluate.results import LEFT_OUT, SCHEMA, Errors, Kind, Pair, rows_of

if TYPE_CHECKING:
    import pandas as pd

_ALIKE = (["rank", "label", "nth"], ["rank", "label"], ["rank", "family"])
"""What operations have in common that stand in for one another, finest first: of a rank, the n-th
launch of a kernel in its step, its name, its family."""


def device_work(graph: ExecutionGraph) -> pd.DataFrame:
    """Kernels, copies and collectives within steps, a row each, numbered per label and step."""
    import pandas as pd

    node = graph.device_span()[1]
    labels = [graph.labels[row] for row in node.tolist()]
    work = pd.DataFrame(
        {
            "node": node,
            "step": step_of_nodes(graph)[node],
            "rank": np.searchsorted(np.unique(graph.marks.rank), graph.nodes_.rank[node]),
            "family": families_of_kernels(labels),
            "label": labels,
            "start_us": graph.nodes_.start_us[node],
            "duration_us": graph.nodes_.duration_us[node],
        }
    )
    work = work[work["step"] >= 0].sort_values("start_us", kind="stable")
    return work.assign(nth=work.groupby(["rank", "step", "label"]).cumcount()).sort_index()


def work_us(work: pd.DataFrame, step: int, teachers: Ints) -> pd.Series:
    """Per operation of `step`: the mean duration of those most alike in the steps `teachers`; of
    all of them where none is alike, nan where there is none."""
    own, taught = work[work["step"] == step], work[work["step"].isin(teachers)]
    result = own["duration_us"] * np.nan
    for keys in _ALIKE:
        mean_us = taught.groupby(keys)["duration_us"].mean().rename("mean_us")
        result = result.fillna(own.join(mean_us, on=keys)["mean_us"])
    return result.fillna(taught["duration_us"].mean())


MAX_HELD_OUT = 12
"""Steps that are held out at most, spread evenly over the trace: each costs a replay."""


def held_out_steps(steady: Ints) -> Ints:
    count = min(len(steady), MAX_HELD_OUT)
    chosen: Ints = steady[np.linspace(0, len(steady) - 1, count).round().astype(int)]
    return chosen


def step_pairs(
    replayed: Timeline, work: pd.DataFrame, steady: Ints, held: Ints
) -> tuple[list[Pair], float | None]:
    """Step times, and the share of the held steps within the interval that a replay of the others
    gives; None below 3 steps."""
    graph = replayed.graph
    truth = measured(graph)
    true_us, replay_us = (by_rank_and_step(graph, each.step_us) for each in (truth, replayed))
    given_us = graph.nodes_.duration_us.copy()
    for index in held.tolist():
        others = np.setdiff1d(steady, [index])
        given_us[work["node"][work["step"] == index]] = work_us(work, index, others)
    change_us = left_out_change_us(graph, graph.nodes_.duration_us, steady, given_us)
    left_out_us = by_rank_and_step(graph, schedule(graph).step_us) + change_us
    predicted_us = {
        Kind.STEP_REPLAY: replay_us,
        Kind.STEP_LEFT_OUT: left_out_us,
        Kind.NULL: null_mean_us(truth, steady),
    }
    pairs = [(kind, "step", us[:, held], true_us[:, held]) for kind, us in predicted_us.items()]
    if len(steady) < 3:
        return pairs, None
    inside = []
    for own_us, measured_us in zip(replay_us, true_us, strict=True):
        for step in held:
            others_us = own_us[steady[steady != step]]
            usual_us = float(np.median(others_us))
            low, high = unseen_step_interval(usual_us, median_errors(others_us))
            inside.append(low <= measured_us[step] <= high)
    return pairs, round(float(np.mean(inside)), 4)


TOTAL = "all kernels"


def shape_times(trace: Trace) -> pd.DataFrame:
    """Device time of the ops of every rank with a GPU, a row per op that launched something and was
    lowered: `rank device op family predicted_us measured_us`.

    `family` is that of the measured kernel that took longest. Collectives are left out: what is
    measured of them contains waiting. Raises `TraceError` where shapes are not recorded,
    `HardwareError` for an unknown device.
    """
    import pandas as pd

    frames = [pd.DataFrame()]
    for at, (rank, links, graph) in enumerate(
        zip(trace.ranks, trace.links, op_graph(trace), strict=True)
    ):
        if rank.devices:
            described = rank.devices[0]
            device = from_driver_name(described.name, described.memory_bytes or None)
            frames.append(_rank_times(rank, links, graph, device).assign(rank=at))
    return pd.concat(frames, ignore_index=True)


def _rank_times(rank: RankTrace, links: Links, graph: OpGraph, device: Device) -> pd.DataFrame:
    import pandas as pd

    placed = with_placement(graph, rank, links)
    lowered = lower(placed, device.target, device=device)
    is_kernel = np.array([OPS[op].family != COLLECTIVE for op in lowered.rows.op], bool)
    pieces = np.flatnonzero(is_kernel)
    taken = durations_of(lowered.rows.take(pieces), device).duration_us
    predicted = np.bincount(lowered.owner[pieces], taken, minlength=len(graph))
    names = [rank.strings[name] for name in rank.name[links.device_rows].tolist()]
    kernels = pd.DataFrame(
        {
            "op": answered_by(lowered, rank, links),
            "family": families_of_kernels(names),
            "measured_us": rank.duration_us[links.device_rows].astype(np.float64),
        }
    )
    kernels = kernels[(kernels["family"] != COMMUNICATION) & (kernels["op"] != NO_OP)]
    kernels = kernels[predicted[kernels["op"]] > 0].sort_values("measured_us", kind="stable")
    by_op = kernels.groupby("op")
    times = by_op.agg(family=("family", "last"), measured_us=("measured_us", "sum"))
    times = times[times["measured_us"] > 0].reset_index()
    ops = times["op"].to_numpy()
    return times.assign(
        op=[graph.ops[op].name for op in ops.tolist()],
        predicted_us=predicted[ops].astype(np.float64),
        device=device.name,
    )


def shape_pairs(trace: Trace) -> list[Pair]:
    """Device time of every rank per family, and of all kernels together: nothing where the trace
    records no shapes, has no GPU, or has one that the catalogue lacks."""
    try:
        times = shape_times(trace)
    except (TraceError, HardwareError):
        return []
    if not len(times):
        return []
    columns = ["predicted_us", "measured_us"]
    sums = times.pivot_table(index="family", columns="rank", values=columns, aggfunc="sum")
    sums.loc[TOTAL] = sums.sum()
    sides = (sums[name].fillna(0.0).to_numpy(np.float64) for name in columns)
    return [(Kind.SHAPES, *each) for each in zip(sums.index.astype(str), *sides, strict=True)]


def model_pairs(trace: Trace) -> tuple[list[Pair], float | None]:
    """The ranks' steps and GPU-active times on the trace's own device in mode `model`, and the
    share of device time that follows from shapes.

    Nothing where it records no shapes, has no GPU, or has one that the catalogue lacks.
    """
    if trace.device == "cpu":
        return [], None
    try:
        result = predict(trace, mode="model").results[0]
    except (TraceError, HardwareError, UsageError):
        return [], None
    ranks = [rank for rank in result.ranks if rank.measured]

    def times(key: str) -> tuple[Floats, Floats]:
        predicted = [getattr(rank, key) for rank in ranks]
        measured = [(rank.measured or {})[key] for rank in ranks]
        return np.array(predicted, np.float64), np.array(measured, np.float64)

    pairs = [(Kind.MODEL, what, *times(f"{what}_us")) for what in ("step", "gpu_active")]
    return pairs, result.coverage["modelled_frac"]


DEMO = "bundled demo"
_UNSAID = -1
"""A rank or a world size that a file does not say."""
_STATED = re.compile(
    rb'"distributedInfo"\s*:\s*\{(?=[^{}]*"world_size"\s*:\s*(?!1\D)(\d+))[^{}]*"rank"\s*:\s*(\d+)'
)


@dataclass(frozen=True)
class Job:
    """One training or inference job: a file, or a folder with a file per rank."""

    name: str
    """The same wherever the folder is: its own name and the path below it."""
    path: Path
    asked: bool = True
    """Named by the user, and not come upon in a folder."""


def demo_job() -> Job:
    """The trace that comes with the package."""
    return Job(DEMO, located("demo:"))


def find_jobs(paths: Iterable[str | Path], *, max_bytes: int = DEFAULT_MAX_BYTES) -> list[Job]:
    """The jobs of files and folders, in order of name.

    A folder whose traces say different ranks of one job is that job; otherwise each Kineto file
    and each archive is one. Other files are passed over. Raises `TraceError` where a folder
    holds no trace, and `UsageError` where two jobs would have one name.
    """
    result: dict[str, Job] = {}
    for path in map(Path, paths):
        root = Path(os.path.abspath(path))
        jobs = _jobs_below(path, root, max_bytes) if root.is_dir() else [Job(root.name, path)]
        if not jobs:
            raise TraceError(f"{path}: no Kineto trace in this folder or below it")
        for job in jobs:
            other = result.setdefault(job.name, job)
            if other != job:
                raise UsageError(f"{job.path} and {other.path} would both be {job.name!r}")
    return [result[name] for name in sorted(result)]


def _jobs_below(path: Path, root: Path, max_bytes: int) -> list[Job]:
    def refuse(error: OSError) -> None:
        raise TraceError(f"{error.filename}: cannot be read: {error.strerror or error}")

    jobs: list[Job] = []
    for walked, folders, files in os.walk(root, onerror=refuse):
        folders.sort()
        below = Path(walked).relative_to(root)
        folder, name = path / below, (Path(root.name) / below).as_posix()
        names = sorted(file for file in files if file.lower().endswith(file_suffixes()))
        archives = [file for file in names if file.lower().endswith(ARCHIVES)]
        places = {file: _rank(folder / file, max_bytes) for file in names if file not in archives}
        known = [place for place in places.values() if place is not None]
        ranks, sizes = {rank for rank, _ in known}, {size for _, size in known}
        of_one_job = _UNSAID not in ranks and len(ranks) == len(known) and len(sizes) == 1
        if len(known) > 1 and of_one_job and not archives:
            jobs.append(Job(name, folder, asked=False))
            continue
        kineto = [file for file, place in places.items() if place is not None]
        for file in sorted([*archives, *kineto]):
            jobs.append(Job(f"{name}/{file}", folder / file, asked=False))
    return jobs


def _rank(path: Path, max_bytes: int) -> tuple[int, int] | None:
    """Rank and world size that a Kineto file says, or its name the rank; None: no Kineto file.

    A file that cannot be read counts: reading it will say why.
    """
    head = bytearray()
    try:
        for chunk in read_chunks(path, max_bytes=max_bytes):
            unsearched = max(0, len(head) - len(KINETO_KEY))
            head += chunk
            if (at := head.find(KINETO_KEY, unsearched)) >= 0:
                if stated := _STATED.search(head, 0, at):
                    return int(stated.group(2)), int(stated.group(1))
                rank = rank_in_name(path.name)
                return _UNSAID if rank is None else rank, _UNSAID
    except PerfmodelError:
        return _UNSAID, _UNSAID
    return None


def evaluate_jobs(
    jobs: Sequence[Job],
    *,
    strict: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    steps_by: str = "",
    begin: Begin = silent,
) -> Errors:
    """The errors of every job; `begin` gets the name of each.

    A job that cannot be used is an error where it was asked for, or with `strict`; one that was
    come upon in a folder is left out with a warning. Raises `PerfmodelError` where none is left.
    """
    whole = Errors(SCHEMA, [], more={"traces": []})
    for job in begun(jobs, begin, lambda job: job.name):
        try:
            trace = read(job.path, strict=strict, max_bytes=max_bytes, steps_by=steps_by)
            result = evaluate_trace(trace, job.name)
        except PerfmodelError as error:
            if job.asked or strict:
                raise
            whole.warnings.append(f"{LEFT_OUT}{error}")
            continue
        whole.rows.extend(result.rows)
        whole.more["traces"] += result.more["traces"]
        whole.warnings.extend(result.warnings)
    if not whole.more["traces"]:
        why = [line.removeprefix(LEFT_OUT) for line in whole.warnings] or ["no trace was given"]
        raise TraceError(f"nothing to evaluate: {why[0]}")
    return whole


def evaluate_trace(trace: Trace, name: str | None = None) -> Errors:
    """The errors of one trace, and in `traces` what it is. Raises `TraceError` where it has no
    times.

    Warm-up and outliers neither teach nor count. With one step there is only its replay.
    """
    name = trace.source if name is None else name
    result = predict(trace)
    graph = (timeline := result.results[0].timeline).graph
    steady = steady_steps(measured(graph))
    held = held_out_steps(steady)
    of_steps, coverage_frac = step_pairs(timeline, device_work(graph), steady, held)
    of_model, modelled_frac = model_pairs(trace)
    pairs = [*of_steps, *shape_pairs(trace), *of_model]
    true_us = by_rank_and_step(graph, measured(graph).step_us)[:, held]
    steps = [[rank.steps[at] for at in held] for rank in result.results[0].ranks]
    slowest = result.results[0].slowest
    host_frac = np.median([step.measured_host_frac for step in steps[slowest]])
    facts = {
        "trace": name,
        "device": trace.device,
        "ranks": len(trace.ranks),
        "steps": len(held),
        "step_us": round(float(np.median(true_us[slowest])), 4),
        "measured_host_frac": round(float(host_frac), 4),
        "unexplained_frac": round(max(s.unexplained.frac for own in steps for s in own), 4),
        "interval_coverage_frac": coverage_frac,
        "modelled_frac": modelled_frac,
    }
    said = [f"{name}: {line}" if line in result.cautions else line for line in result.warnings]
    return Errors(SCHEMA, rows_of(name, *pairs), said, {"traces": [facts]})

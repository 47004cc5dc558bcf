"""Tables of the collector: DLRM step times, and operators in steps (`collect ops`);
steps on a CPU predicted from their shapes.

Operators are lowered to rows of the vocabulary as a prediction does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.base.frames import read_frame
from perfmodel.cost.chosen import HEURISTIC
from perfmodel.cost.contract import KERNELS
from perfmodel.cost.cpu.family import WATCHED
from perfmodel.cost.cpu.parameters import reference_cpu, section_of, spread_of
from perfmodel.cost.durations import durations_of
from perfmodel.cost.models import waiting_frac
from perfmodel.errors import ModelError, UsageError
from perfmodel.hardware import Device
from perfmodel.lowering.build_cpu import FIRST_FRAC, STEP_BYTES, cpu_steps, rows_of, written_bytes
from perfmodel.lowering.lower import lower
from perfmodel.ops.dtypes import dtype_of_torch
from perfmodel.ops.graph import Argument, Op, OpGraph, Tensor
from perfmodel.ops.lookups import Lookups
from perfmodel.ops.rows import Rows
from perfmodel.ops.spec import OPS
from perfmodel.ops.vocabulary.movement import COLLECTIVE, HOST, STEP, UNKNOWN
from perfmodel.workload import Workload, op_graph
from perfmodel.workload.load import workload_from_document

if TYPE_CHECKING:
    import pandas as pd


MAX_BYTES = 100_000_000
MAX_RANKS, MAX_THREADS = 1024, 4096
MAX_US = 1e12
MAX_SPREAD = 100.0
STEP_COLUMNS = (
    *("name", "ranks", "threads_per_rank", "rows_per_table", "dim", "pooling", "batch_per_rank"),
    *("zipf_alpha", "bottom_mlp", "top_mlp", "p10_us"),
)


@dataclass(frozen=True)
class MeasuredStep:
    """One configuration: its workload, ranks and threads, and its step time.

    `halves_frac` is by how much the robust times of two halves of the rounds differ: the
    measurement's own spread; NaN where it is unknown.
    """

    name: str
    workload: Workload
    ranks: int
    threads: int
    step_us: float
    halves_frac: float
    where: str = ""
    """File and row."""

    @property
    def batch(self) -> int:
        """Of all ranks together."""
        return self.workload.batch


def is_step_table(frame: pd.DataFrame) -> bool:
    """Whether a table holds step times of configurations."""
    return set(STEP_COLUMNS) <= set(frame.columns)


def read_steps(path: Path) -> list[MeasuredStep]:
    """The configurations of the CSV at `path`; `UsageError` names file and row."""
    frame = read_frame(path, max_bytes=MAX_BYTES, error=UsageError)
    if not is_step_table(frame):
        missing = ", ".join(sorted(set(STEP_COLUMNS) - set(frame.columns)))
        raise UsageError(f"{path}: is not a table of step times: it has no column {missing}")
    steps = steps_of(frame, str(path))
    if not steps:
        raise UsageError(f"{path}: no row is a DLRM configuration with a step time")
    return steps


def steps_of(frame: pd.DataFrame, where: str) -> list[MeasuredStep]:
    """The rows that are DLRM configurations; `UsageError` names `where` and the row."""
    steps = []
    for number, record in enumerate(frame.to_dict("records"), start=1):
        of_dlrm = [record[name] for name in ("rows_per_table", "dim", "pooling")]
        if all(value != value for value in of_dlrm):  # a step of another model
            continue
        try:
            steps.append(_step(record, f"{where}: row {number}"))
        except (ValueError, TypeError, OverflowError) as error:
            text = str(error)[:200]
            raise UsageError(f"{where}: row {number}: is not a configuration: {text}") from None
    return steps


def _step(record: Mapping[str, Any], where: str) -> MeasuredStep:
    ranks = _whole(record, "ranks", MAX_RANKS)
    widths: list[list[int]] = []
    for key in ("bottom_mlp", "top_mlp"):
        try:
            widths.append([int(width) for width in str(record[key]).split("-")])
        except ValueError:
            text = f"{key} is {record[key]}; expected widths as in 64-256-64"
            raise ValueError(text) from None
    bottom, top = widths
    about = {key: float(record[key]) for key in ("dim", "pooling")}
    rows, name = record["rows_per_table"], record["name"]
    if rows != rows:
        raise ValueError("rows_per_table is missing")
    if not isinstance(rows, str):  # a column of numbers alone
        rows = f"{rows:.0f}" if rows == int(rows) else str(rows)
    tables = []
    for text in rows.split():  # `8x1000` is eight times 1000
        count, times, each = text.rpartition("x")
        try:
            sizes = {"count": int(count) if times else 1, "rows": int(each)}
        except ValueError:
            text = f"rows_per_table: {text}: expected rows, or 8x1000"
            raise ValueError(text) from None
        tables.append({**about, "alpha": float(record["zipf_alpha"]), **sizes})
    document = {
        "batch": float(record["batch_per_rank"]) * ranks,
        "model": {"dense_features": bottom[0], "bottom_mlp": bottom[1:], "top_mlp": top},
        "tables": tables,
    }
    step_us, halves_frac = float(record["p10_us"]), float(record.get("halves_frac", math.nan))
    if not 0 < step_us < MAX_US:
        raise ValueError(f"p10_us is {record['p10_us']}; expected a time above 0")
    if not (math.isnan(halves_frac) or 0 <= halves_frac <= MAX_SPREAD):
        raise ValueError(f"halves_frac is {halves_frac}; expected a share from 0 to {MAX_SPREAD:g}")
    if not isinstance(name, str):  # a number, or none
        name = "" if name != name else str(name)
    return MeasuredStep(
        name=name,
        workload=workload_from_document(document, name, where),
        ranks=ranks,
        threads=_whole(record, "threads_per_rank", MAX_THREADS),
        step_us=step_us,
        halves_frac=halves_frac,
        where=where,
    )


def _whole(record: Mapping[str, Any], key: str, most: int) -> int:
    value = float(record[key])
    if not 1 <= value <= most or int(value) != value:
        raise ValueError(f"{key} is {record[key]}; expected a whole number from 1 to {most}")
    return int(value)


OP_COLUMNS = (
    *("configuration", "op", "phase", "input_shapes", "input_dtypes", "scalars", "duration_us"),
)
_LEADING = {"aten::convolution": 3}
"""Tensor arguments that may be absent and stand before the scalars."""


def is_op_table(frame: pd.DataFrame) -> bool:
    """Whether a table was written by `collect ops`."""
    return set(OP_COLUMNS) <= set(frame.columns)


def step_operators(frame: pd.DataFrame) -> tuple[Rows, pd.DataFrame]:
    """Operators of real steps that lower to one piece each, as rows, and their rows of `frame`.

    Probes, and what ran only to be watched, are left out. Raises `ModelError` that names the row of
    an operator whose shapes or scalars are damaged.
    """
    import pandas as pd

    real = frame["phase"] != "probe"
    if "artefact" in frame:
        real &= frame["artefact"].fillna(0) == 0
    frame = frame[real]
    ops = []
    for row, record in enumerate(frame.to_dict("records")):
        try:
            ops.append(op_of(record))
        except (ValueError, TypeError, AttributeError) as error:
            raise ModelError(f"operator {row} ({record['op']}): {str(error)[:80]}") from None
    lowered = lower(OpGraph(tuple(ops)), "cpu")
    pieces_of = np.bincount(lowered.owner, minlength=len(ops))
    kept = [
        (owner, piece)
        for owner, piece in zip(lowered.owner.tolist(), lowered.pieces, strict=True)
        if pieces_of[owner] == 1 and piece.op != UNKNOWN
    ]
    rows, part = rows_of([piece for _, piece in kept]), frame.iloc[[row for row, _ in kept]]
    count = part["count"].to_numpy(np.float64) if "count" in part else np.ones(len(part))
    part = part.assign(configuration=part["configuration"].astype(str), count=count)
    of = part["configuration"].to_numpy()
    written = pd.Series(written_bytes(rows) * count).groupby(of).transform("sum")
    again = pd.DataFrame({"of": of, "op": rows.op, "direction": rows.direction}).duplicated()
    step_dims = {STEP_BYTES: written.to_numpy(), FIRST_FRAC: np.where(again, 0.0, 1.0) / count}
    return replace(rows, timing=(WATCHED,) * len(rows), dims={**rows.dims, **step_dims}), part


def op_of(record: dict[str, Any]) -> Op:
    """One row as an op: its tensors in order, then its scalars."""
    shapes, types = json.loads(record["input_shapes"]), json.loads(record["input_dtypes"])
    layouts = record.get("input_layouts")
    kinds = json.loads(layouts) if isinstance(layouts, str) else [""] * len(shapes)
    scalars = json.loads(record["scalars"])
    tensors = [_tensor(*each) for each in zip(shapes, types, kinds, strict=True)]
    name = str(record["op"]).split(".")[0]
    tensors += [None] * (_LEADING.get(name, 0) - len(tensors))
    made = record.get("output_shapes")
    outputs = json.loads(made) if isinstance(made, str) else []
    first = next(iter(types), "float32")
    dtype = first if isinstance(first, str) else str(scalars.get("dtype", "float32"))
    # What an op that looks up rows of a table touched.
    unique, attributes = record.get("unique_rows"), {}
    known = [tensor for tensor in tensors if isinstance(tensor, Tensor)]
    if unique is not None and unique > 0 and len(known) >= 2 and len(known[0].shape) == 2:
        batch = lookups = int(scalars.get("nnz", known[1].elements))
        rows, dim = known[0].shape
        if "num_weights" in scalars:
            rows, batch = int(scalars["num_weights"]), known[0].shape[0]
        bags = (max(lookups / batch, 1.0),)
        reuse = Lookups((rows,), (dim,), (batch,), bags, (float(unique),), (0.0,))
        attributes = reuse.to_attributes()
    return Op(
        name=name,
        inputs=(*tensors, *map(_plain, scalars.values())),
        outputs=tuple(Tensor(tuple(shape), _dtype(dtype)) for shape in outputs),
        phase=str(record["phase"]),
        attributes=attributes,
    )


def _tensor(shape: Any, dtype: Any, layout: Any) -> Argument:
    if isinstance(dtype, list):
        layouts = layout if isinstance(layout, list) else [layout] * len(dtype)
        return tuple(_tensor(*each) for each in zip(shape, dtype, layouts, strict=True))
    lengths, strides = tuple(shape), ()
    if layout == "transposed":  # in its last two dimensions; the strides of others are not known
        sizes = (*lengths[:-2], lengths[-1], lengths[-2])
        steps = [math.prod(sizes[at + 1 :]) for at in range(len(sizes))]
        strides = (*steps[:-2], steps[-1], steps[-2])
    kind = "sparse" if layout == "sparse_coo" else ""
    return Tensor(lengths, _dtype(dtype), layout=kind, strides=strides)


def _dtype(word: str) -> str:
    dtype = dtype_of_torch(word)
    if dtype is None:
        raise ModelError(f"unknown dtype {word!r} of an operator")
    return dtype


def _plain(value: Any) -> Argument:
    return tuple(_plain(item) for item in value) if isinstance(value, list) else value


Time = tuple[float, float, float]
"""Predicted time of one step and its 90 % interval, microseconds."""


def predict_step(step: MeasuredStep, device: Device) -> Time:
    """The slowest of the ranks' steps; a rank runs on as many cores as it has threads."""
    return max(_rank(step, rank, device) for rank in range(step.ranks))


@lru_cache(maxsize=1024)  # steps are predicted as one half, then all of them are fitted
def step_rows(step: MeasuredStep, rank: int = 0) -> Rows:
    graph = op_graph(step.workload, step.batch, ranks=step.ranks, rank=rank, target="cpu")
    (pieces,) = cpu_steps(graph)
    return rows_of(pieces)


def with_threads(device: Device, threads: int, ranks: int = 1) -> Device:
    """`device` as so many of its cores see it; of the last-level cache, one of `ranks` has a part.

    Bandwidth is no part: of two processes on one socket, each streamed, and looked up rows, in 0.93
    to 1.05 of the time of one alone (`benchmarks/contention.py`, AMD EPYC, 2026-11-20, while other
    work ran too).
    """
    if device.llc_bytes:
        device = replace(device, llc_bytes=round(device.llc_bytes / ranks))
    if threads >= device.sm_count:
        return device
    share = threads / device.sm_count
    return replace(
        device,
        sm_count=threads,
        l2_bytes=round(device.l2_bytes * share),
        fp32_tflop_per_s=device.fp32_tflop_per_s * share,
    )


def _rank(step: MeasuredStep, rank: int, device: Device) -> Time:
    rows = step_rows(step, rank)
    is_collective = np.array([OPS[op].family == COLLECTIVE for op in rows.op])
    among, alone = (rows.take(np.flatnonzero(own)) for own in (is_collective, ~is_collective))
    seen = with_threads(device, step.threads, step.ranks)
    total = float(durations_of(alone, seen).duration_us.sum())
    total *= 1.0 + waiting_frac(device, step.ranks)  # for the last rank at each collective
    loopback = KERNELS[f"cpu/{COLLECTIVE}/{HEURISTIC}"]
    total += float(loopback.estimate(among, device).duration_us.sum())
    section = section_of(HOST, STEP)
    own = device.calibration.get(section, {}).get("spread_frac")  # none while steps are fitted
    known = reference_cpu().calibration[section]["spread_frac"] if own is None else own
    spread = spread_of(known, calibrated=own is not None)
    return total, total / spread, total * spread

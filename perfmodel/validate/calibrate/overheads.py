"""Profiles of host overheads: of traces, and without the profiler's cost by `collect ops`.

A profiler slows operators unequally: 2 to 200 times on one machine. Traces tell how an operator's
time is spread over T2 to T5, a table of `collect ops` how much of it there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs

from perfmodel.base.files import DEFAULT_MAX_BYTES
from perfmodel.base.frames import read_frame
from perfmodel.base.progress import Begin, begun, silent
from perfmodel.errors import TraceError, UsageError
from perfmodel.hardware import load
from perfmodel.lowering.host import Profile, Provenance
from perfmodel.lowering.host.measure import NUMBERS, OP_WITHOUT_LAUNCH, T1, T2, T3, T4, T5, measure
from perfmodel.lowering.host.profile import Rows
from perfmodel.ops.graph import AUTOGRAD_NODE
from perfmodel.trace import read
from perfmodel.trace.window import AUTOGRAD_THREAD, MAIN_THREAD
from perfmodel.validate.calibrate.tables import MAX_US

if TYPE_CHECKING:
    import pandas as pd

MAX_BYTES = 1_000_000_000
METERED = "dispatch_mode_host"
BELOW_AUTOGRAD = {
    "aten::conv2d": ("aten::convolution",),
    "aten::embedding_bag": ("aten::_embedding_bag",),
    "aten::layer_norm": ("aten::native_layer_norm",),
    "aten::linear": ("aten::t", "aten::addmm"),
    "aten::reshape": ("aten::view",),
    "aten::softmax": ("aten::_softmax",),
}
"""The operators that some become below autograd, where they are timed; others keep their name."""
UNWAITED = 0.25
"""The quantile of steps by what is left of them beside their operators: those that are longer may
have waited for the device, which takes nothing of the host."""
COLUMNS = ("configuration", "op", "phase", "node", "timing", "count", "duration_us")
SUM = "ops_sum_p10_us"
STEP_COLUMNS = ("name", "p10_us", SUM)

Owner = tuple[str, str]
"""An operator as traces have it, and its thread."""


def fit_overheads(
    traces: Sequence[str | Path],
    *,
    profiler_us_per_event: float = 0.0,
    hosts: Sequence[str] = (),
    torch_versions: Sequence[str] = (),
    max_bytes: int = DEFAULT_MAX_BYTES,
    begin: Begin = silent,
) -> Profile:
    """One profile of the host overheads of all `traces` (files, archives or folders of ranks).

    `profiler_us_per_event` is taken off each sample per event that the profiler recorded in it.
    `hosts` (of the catalogue, or TOML files) and `torch_versions` are what the traces do not say of
    themselves. Raises `TraceError` for a trace without times, `ModelError` where no overhead is
    found, `HardwareError` for an unknown host.
    """
    for host in hosts:
        load(host, "host")
    samples = []
    for path in begun(traces, begin):
        trace = read(path, max_bytes=max_bytes)
        if not trace.ranks:
            raise TraceError(f"{path}: has no times, so no overheads; give a Kineto trace")
        samples += [
            measure(rank, links, profiler_us_per_event=profiler_us_per_event)
            for rank, links in zip(trace.ranks, trace.links, strict=True)
        ]
    stated = Provenance(hosts=tuple(hosts), torch_versions=tuple(torch_versions))
    return Profile.from_samples(*samples, provenance=stated)


def unprofiled(profile: Profile, ops_table: Path) -> Profile:
    """`profile` with each operator at what it took in the steps of `ops_table`.

    `NAME.csv` or `NAME.csv.gz` of `collect ops` on a GPU's host, with `NAME_steps.csv` beside it.
    What steps took besides the operators timed is T1 and the traces' other operators, all scaled
    alike. Raises `UsageError` that names the file where a table is none.
    """
    ops, steps = _tables(ops_table)
    timed = _timed(ops, steps)
    rows = profile.rows
    owners = {(op, thread) for kind, op, thread in rows if kind in STARTS and op and thread}
    watched = {owner: _profiled(rows, *owner) for owner in owners}
    known = {owner for owner in watched.keys() & timed.keys() if watched[owner][1] > 0.0}
    if not known:
        raise UsageError(f"{ops_table}: none of its operators is in the traces")
    calls = sum(watched[owner][0] for owner in known)
    rest_us = sum(watched[owner][1] for owner in watched.keys() - known)
    between = profile.statistic(T1)
    left = (steps["p10_us"] / steps[SUM] - 1.0).clip(0.0)
    left_us = float(left.quantile(UNWAITED) * steps[SUM].sum())
    rest = left_us / sum(timed[owner][0] for owner in known)
    usual = rest * calls / max(rest_us + between.mean_us * between.count, np.finfo(float).tiny)
    ratios = {
        owner: timed[owner][1] / timed[owner][0] * watched[owner][0] / watched[owner][1]
        for owner in known
    }
    scaled = {}
    for (kind, op, thread), row in rows.items():
        ratio = usual if kind == T1 else ratios.get((op or "", thread or ""), usual)
        times: dict[str, Any] = {name: getattr(row, name) * ratio for name in NUMBERS}
        scaled[kind, op, thread] = structs.replace(row, **times)
    return Profile(scaled, structs.replace(profile.provenance, unwatched=True))


def _tables(ops_table: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The operators that were timed, and the steps that they are of."""
    ops = _read(ops_table, COLUMNS, "operators (`collect ops`)")
    name = ops_table.name.removesuffix(".gz").removesuffix(".csv")
    steps_table = ops_table.with_name(f"{name}_steps.csv")
    steps = _read(steps_table, STEP_COLUMNS, "steps (`collect ops`)")
    steps = steps[steps["name"].isin(ops["configuration"])]
    lacking = steps["name"][steps[SUM].isna()]
    if len(lacking):
        raise UsageError(f"{steps_table}: {lacking.iloc[0]}: {SUM} is missing")
    ops = ops[(ops["timing"] == METERED) & ops["configuration"].isin(steps["name"])]
    if not len(ops):
        raise UsageError(f"{ops_table}: no step whose operators were timed ({METERED})")
    return ops, steps


def _read(path: Path, columns: tuple[str, ...], what: str) -> pd.DataFrame:
    import pandas as pd

    frame = read_frame(path, max_bytes=MAX_BYTES, error=UsageError)
    missing = [name for name in columns if name not in frame]
    if missing:
        raise UsageError(f"{path}: is not a table of {what}: no column {missing[0]!r}")
    for name in columns:
        if name.endswith("_us") or name == "count":
            values = pd.to_numeric(frame[name], errors="coerce").to_numpy(np.float64)
            bad = ~((values > 0.0) & (values < MAX_US))
            if name == SUM:  # of steps whose operators were not timed there is none
                bad &= frame[name].notna().to_numpy()
            if bad.any():
                row = int(np.argmax(bad)) + 1
                raise UsageError(
                    f"{path}: row {row}: {name} is no number above 0 and below {MAX_US:g}"
                )
    return frame


def _timed(ops: pd.DataFrame, steps: pd.DataFrame) -> dict[Owner, tuple[float, float]]:
    """Calls of each operator in all steps, and what they took, microseconds; of autograd's nodes
    all operators in them.

    All rows of a configuration together take what they took together: a step in which all are
    fast is rarer than one in which one is.
    """
    us = ops["duration_us"] * ops["count"]
    together = steps.set_index("name")[SUM] / us.groupby(ops["configuration"]).sum()
    us *= ops["configuration"].map(together).fillna(1.0)
    in_node = (ops["phase"] == "backward") & ops["node"].notna()
    ahead, behind = ops[~in_node], ops[in_node]
    names = ahead["op"].str.replace(r"(aten::\w+)\..*", r"\1", regex=True)
    calls = ahead["count"].groupby(names).sum()
    taken = us[~in_node].groupby(names).sum()
    timed = {(op, MAIN_THREAD): (float(calls[op]), float(taken[op])) for op in calls.index}
    for op, below in BELOW_AUTOGRAD.items():
        if below[-1] in calls:
            number = float(calls[below[-1]])
            each = sum(taken[leaf] / calls[leaf] for leaf in below if leaf in calls)
            timed[op, MAIN_THREAD] = number, number * float(each)
    before = (ahead["phase"] == "forward").to_numpy()
    forward = ahead["count"][before].groupby(names[before].map(_node_of)).sum()
    for node, parts in behind.groupby("node"):
        counts = parts.groupby("op")["count"].sum()  # an operator need not be differentiated
        number = float(min(forward.get(str(node), counts.min()), counts.max()))
        timed[AUTOGRAD_NODE + str(node), AUTOGRAD_THREAD] = number, float(us[parts.index].sum())
    return timed


def _node_of(op: str) -> str:
    """The node of autograd that an operator leaves, by PyTorch's rule: `aten::_embedding_bag`,
    `EmbeddingBagBackward0`."""
    words = op.removeprefix("aten::").split("_")
    return "".join(word[:1].upper() + word[1:] for word in words) + "Backward0"


STARTS = (T2, OP_WITHOUT_LAUNCH)
"""Of which each call of an operator has one."""


def _profiled(rows: Rows, op: str, thread: str) -> tuple[float, float]:
    """Calls of an operator in the traces, and what T2 to T5 in them took, microseconds."""
    parts = {kind: rows.get((kind, op, thread)) for kind in (*STARTS, T3, T4, T5)}
    calls = sum(part.count for kind in STARTS if (part := parts[kind]))
    return calls, sum(part.mean_us * part.count for part in parts.values() if part)

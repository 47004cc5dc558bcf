"""Tables of a prediction, from its answer in JSON: the command line and the page show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.reporting.tables import TIME, Column, Table, columns, named, step_name

if TYPE_CHECKING:
    from perfmodel.prediction import Result

Record = Mapping[str, Any]

DEVICE = columns(
    "gpu_active_us=GPU active:us;gpu_idle_us=GPU idle:us;comm_us=comm:us;exposed_comm_us=exposed:us"
)
GAIN = columns("gain_us=gain:us;gain_frac=of step:share")
_MEASURED = columns("measured_us=measured:us")
_WITHOUT = columns("baseline_us=without:us")
_ERROR = columns("error_pct=error %:+.2f")
_MEETS = columns("transfer_us=transfer:us;waiting_us=waiting:us")
NULLS = {
    "null_mean_us": "others' mean",
    "null_mean_gpu_us": "+ GPU active",
    "null_last_us": "last step",
}
"""Predictions of a step that need no model."""
_MIN_US = 1e-3
"""Parts of a path below it are what is left of sums of floats."""
_MAX_PARTS = 12


def error_pct(predicted_us: float, measured_us: float | None) -> float | None:
    """Signed error in percent of what was measured; None without that."""
    return 100 * (predicted_us / measured_us - 1) if measured_us else None


def steps_table(answer: Record, rank: str = "", left_out_us: Sequence[float] = ()) -> Table:
    """The slowest rank's steps and what was measured or is without the what-if; with
    `left_out_us`, also as predicted from the other steps."""
    steps = answer["steps"]
    is_what_if = answer["gain_us"] is not None
    beside = [step["left_out"] for step in steps if step["left_out"]]
    heads = columns(f"step=;step_us={'what-if' if is_what_if else 'predicted'}:us")
    if is_what_if:
        heads += _WITHOUT + GAIN
    if any(step["measured_us"] for step in steps):
        heads += _MEASURED + _ERROR
    if left_out_us:
        heads += columns("others_us=leave-one-out:us;others_pct=its error %:+.2f")
    heads += [Column(key, head, TIME) for key, head in NULLS.items() if any(n[key] for n in beside)]
    if answer["mode"] != "model" and not beside:
        heads += columns("measured_host_frac=measured host:share")
    records = []
    for at, step in enumerate(steps):
        record = {**step, **(step["left_out"] or {}), "step": step_name(step["name"], step["role"])}
        if left_out_us:
            record["others_us"] = left_out_us[at]
            record["others_pct"] = error_pct(left_out_us[at], step["measured_us"])
        records.append(record)
    return Table(f"Steps{rank}", heads, records)


def ranks_table(
    answer: Record, title: str, slowest: int, device: Sequence[Column] = DEVICE
) -> Table:
    """What each rank takes, and what was measured or it takes without the what-if."""
    is_what_if = answer["gain_us"] is not None
    is_measured = any(row["measured_us"] for row in answer["per_rank"])
    known = (_MEASURED, _ERROR) if is_measured else ([], [])
    before, change = (_WITHOUT, GAIN) if is_what_if else known
    meets = _MEETS if answer["straggler"] else []
    records = [
        row
        | {
            "rank": f"{row['rank']}{' (slowest)' if row['rank'] == slowest else ''}",
            "error_pct": error_pct(row["step_us"], row["measured_us"]),
        }
        for row in answer["per_rank"]
    ]
    heads = [*columns("rank"), *before, *columns("step_us=step:us"), *change, *device, *meets]
    return Table(title, heads, records)


def summed(rows: Sequence[Record], by: str, time_us: str) -> dict[str, float]:
    """Microseconds of rows of an answer, by one of their texts."""
    total: dict[str, float] = {}
    for row in rows:
        total[row[by]] = total.get(row[by], 0.0) + row[time_us]
    return total


def parts_of_results(title: str, parts: Sequence[tuple[str, Mapping[str, float]]]) -> Table:
    """Parts of each result's time, largest first; of one result with their shares."""
    largest: dict[str, float] = {}
    for _, time_us in parts:
        for name, us in time_us.items():
            largest[name] = max(largest.get(name, 0.0), us)
    ordered = sorted(
        (name for name, us in largest.items() if us >= _MIN_US), key=lambda name: -largest[name]
    )
    records: list[dict[str, Any]] = [
        {"part": named(name)} | {f"at{at}": us.get(name) for at, (_, us) in enumerate(parts)}
        for name in ordered[:_MAX_PARTS]
    ]
    if rest := ordered[_MAX_PARTS:]:
        sums = [sum(us.get(name, 0.0) for name in rest) for _, us in parts]
        records.append({"part": "others"} | {f"at{at}": us for at, us in enumerate(sums)})
    is_alone = len(parts) == 1
    heads = columns("part=")
    heads += [
        Column(f"at{at}", "time" if is_alone else name, TIME) for at, (name, _) in enumerate(parts)
    ]
    if is_alone:
        whole_us = sum(parts[0][1].values())
        records = [each | {"frac": (each["at0"] or 0.0) / whole_us} for each in records]
        heads += columns("frac=share:share")
    return Table(title, heads, records)


def measured_step_us(result: Result) -> float | None:
    """The measured median step of the rank that stands for the job, whatever was predicted; None
    where nothing was measured."""
    if result.mode == "model":
        return result.rank.measured["step_us"] if result.rank.measured else None
    import numpy as np

    from perfmodel.base.arrays import median
    from perfmodel.timeline.schedule import measured
    from perfmodel.timeline.steps import by_rank_and_step, ranks_of, steady_steps

    base = result.baseline or result
    truth = measured(base.timeline.graph)
    own = ranks_of(truth.graph).index(base.rank.rank)
    steps_us = by_rank_and_step(truth.graph, truth.step_us)[own, steady_steps(truth)]
    return float(median(np.asarray(steps_us)))

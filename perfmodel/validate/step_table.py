"""Tables of measured DLRM step times (`collect truth`, `collect ops`): configurations and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.errors import UsageError
from perfmodel.files import read_bytes
from perfmodel.workload import Table, Workload
from perfmodel.workload.model import Model

if TYPE_CHECKING:
    import pandas as pd

MAX_BYTES = 100_000_000
COLUMNS = (
    *("name", "ranks", "threads_per_rank", "rows_per_table", "dim", "pooling", "batch_per_rank"),
    *("zipf_alpha", "bottom_mlp", "top_mlp", "p10_us"),
)


@dataclass(frozen=True)
class MeasuredStep:
    """One configuration: its workload, ranks and threads, and its step time.

    `halves_frac` is by how much the robust times of two halves of the rounds differ: the
    measurement's own spread; NaN where it is not told.
    """

    name: str
    workload: Workload
    ranks: int
    threads: int
    step_us: float
    median_us: float
    halves_frac: float

    @property
    def batch(self) -> int:
        """Of all ranks together."""
        return self.workload.batch


def is_step_table(frame: pd.DataFrame) -> bool:
    """Whether a table holds step times of configurations."""
    return set(COLUMNS) <= set(frame.columns)


def read_steps(path: Path) -> list[MeasuredStep]:
    """The configurations of the CSV at `path`; `UsageError` names file and row."""
    import io

    import pandas as pd

    try:
        frame = pd.read_csv(io.BytesIO(read_bytes(path, max_bytes=MAX_BYTES)))
    except (ValueError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as a table: {str(error)[:120]}") from None
    if not is_step_table(frame):
        missing = ", ".join(sorted(set(COLUMNS) - set(frame.columns)))
        raise UsageError(f"{path}: is no table of step times: it has no column {missing}")
    found = steps_of(frame, str(path))
    if not found:
        raise UsageError(f"{path}: no row is a DLRM configuration with a step time")
    return found


def steps_of(frame: pd.DataFrame, where: str) -> list[MeasuredStep]:
    """The rows that are DLRM configurations; `UsageError` names `where` and the row."""
    found = []
    for number, record in enumerate(frame.to_dict("records"), start=1):
        if not isinstance(record["rows_per_table"], str):
            continue
        try:
            found.append(_step(record))
        except (ValueError, TypeError, IndexError) as error:
            raise UsageError(f"{where}: row {number}: is no configuration: {error}") from None
    return found


def _step(record: Mapping[str, Any]) -> MeasuredStep:
    dim, pooling = int(record["dim"]), int(record["pooling"])
    ranks, alpha = int(record["ranks"]), float(record["zipf_alpha"])
    bottom = tuple(int(width) for width in str(record["bottom_mlp"]).split("-"))
    top = tuple(int(width) for width in str(record["top_mlp"]).split("-"))
    rows = [int(n) for each in record["rows_per_table"].split() for n in _repeated(each)]
    step_us = float(record["p10_us"])
    if not step_us > 0:
        raise ValueError(f"p10_us is {record['p10_us']}; expected a time above 0")
    workload = Workload(
        name=str(record["name"]),
        model=Model(bottom[0], bottom[1:], top),
        tables=tuple(Table(n, dim, float(pooling), alpha) for n in rows),
        batch=int(record["batch_per_rank"]) * ranks,
    )
    return MeasuredStep(
        name=str(record["name"]),
        workload=workload,
        ranks=ranks,
        threads=int(record["threads_per_rank"]),
        step_us=step_us,
        median_us=float(record.get("median_us", step_us)),
        halves_frac=float(record.get("halves_frac", float("nan"))),
    )


def _repeated(text: str) -> list[str]:
    """`8x1000` is eight times 1000."""
    count, _, rows = text.rpartition("x")
    return [rows] * int(count or 1)

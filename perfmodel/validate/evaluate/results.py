"""What an evaluation says: one row per thing that was predicted, and what sums them up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.validate.calibrate.kernel_data import DECIMALS, error_figures

if TYPE_CHECKING:
    import pandas as pd


SCHEMA = "perfmodel.evaluation/1"
LEFT_OUT = "left out: "
"""How a warning begins that says why something was not evaluated."""


@dataclass(frozen=True)
class Errors:
    """The answer of one kind of evaluation, as its JSON Schema in `docs/schemas` has it: `rows`,
    and in `more` what sums them up."""

    schema: str
    rows: list[dict[str, Any]]
    warnings: list[str] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        return self.to_dict()[key]

    def to_dict(self) -> dict[str, Any]:
        return {"schema": self.schema, **self.more, "rows": self.rows, "warnings": self.warnings}

    def to_frame(self) -> pd.DataFrame:
        """One line per row."""
        import pandas as pd

        return pd.DataFrame(self.rows)


def error_pct(predicted_us: float, measured_us: float | None) -> float | None:
    """Predicted over measured, with its sign; None where nothing was measured."""
    return 100 * (predicted_us / measured_us - 1) if measured_us else None


def compared(
    predicted_us: float, low_us: float, high_us: float, measured_us: float | None
) -> dict[str, Any]:
    """A prediction with its 90 % interval beside what was measured, if that is known."""
    return {
        "predicted_us": predicted_us,
        "low_us": low_us,
        "high_us": high_us,
        "measured_us": measured_us,
        "error_pct": error_pct(predicted_us, measured_us),
        "within": None if measured_us is None else low_us <= measured_us <= high_us,
    }


def figures_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, float | int | None]:
    """Median, 90th percentile and worst absolute error, bias, and the share of intervals that hold;
    of the rows of `compared` that were measured."""
    known = [row for row in rows if row["measured_us"] is not None]
    names = ("median_pct", "p90_pct", "worst_pct", "bias_pct")
    if not known:
        return {"n": 0, **dict.fromkeys(names), "coverage_frac": None}
    times = np.array([[row["predicted_us"], row["measured_us"]] for row in known]).T
    figures = error_figures(*times)
    coverage_frac = float(np.mean([row["within"] for row in known]))
    return {"n": len(known), **{n: figures[n] for n in names}, "coverage_frac": coverage_frac}


class Kind(StrEnum):
    """What a row's error is of, and what the prediction had seen."""

    STEP_REPLAY = "step_replay"
    """Step time replayed: it sees the step's own durations; only waits are predicted."""
    STEP_LEFT_OUT = "step_left_out"
    """Step time with the durations of host and device taken from the other steps."""
    NULL = "null"
    """What no model is needed for: the mean of the other steps."""
    NULL_GPU = "null_gpu"
    """The same and by how much longer the device was active in the step than in the others."""
    NULL_LAST = "null_last"
    """The step before."""
    OVERHEAD = "overhead"
    """A step's total of one overhead type, from a profile of the other steps."""
    FAMILY = "family"
    """A step's device time of one kernel family, from the durations in the other steps."""
    SHAPES = "shapes"
    """A rank's device time of the ops of one family, from their shapes alone."""
    MODEL = "model"
    """A rank's step, or its GPU-active time, on its own device in mode `model`."""
    KERNELS = "kernels"
    """The rows of one family of a measurement table, which no fit of the device has seen."""


NULLS = (Kind.NULL, Kind.NULL_GPU, Kind.NULL_LAST)
"""What needs no model: their errors say how steps scatter, not how good a prediction is."""


_Size = Annotated[float, msgspec.Meta(ge=0)]


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Errors of one thing over the steps and ranks of one trace, in percent of what was measured.

    `n` errors; `mape_pct`, `median_pct` and `worst_pct` are of absolute ones, `bias_pct` is their
    mean with its sign.
    """

    trace: str
    kind: Kind
    name: str
    n: Annotated[int, msgspec.Meta(ge=1)]
    mape_pct: _Size
    median_pct: _Size
    worst_pct: _Size
    bias_pct: float

    @property
    def key(self) -> tuple[str, str, str]:
        return self.trace, self.kind.value, self.name

    def to_dict(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self) | {"kind": self.kind.value}


COLUMNS = list(Row.__struct_fields__)
FIGURES = tuple(name for name in COLUMNS if name.endswith("_pct"))


@dataclass(frozen=True)
class TraceFacts:
    """One trace as it was evaluated."""

    trace: str
    device: str
    ranks: int
    steps: int
    """Steps that were held out in turn; warm-up and outliers are none of them."""
    step_us: float
    """Median measured step, of all ranks."""
    measured_host_frac: float
    """Median share of measured host work in the critical path of the replay: near 1, the replay
    is an echo of what it was given."""
    unexplained_frac: float
    """Largest share of a step's critical path that waits for something that was not recorded."""
    interval_coverage_frac: float | None
    """Share of the steps within the 90 % interval of a replay of the others; None below 3 steps."""
    modelled_frac: float | None = None
    """Share of the device time that follows from shapes in mode `model`; None without that."""


@dataclass(frozen=True)
class Evaluation:
    """Errors of predictions, by trace and kind."""

    rows: list[Row]
    traces: list[TraceFacts]
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "rows": [row.to_dict() for row in self.rows],
            "traces": [asdict(facts) for facts in self.traces],
            "warnings": self.warnings,
        }

    @property
    def names(self) -> set[str]:
        """The traces and tables that were evaluated."""
        return {facts.trace for facts in self.traces} | {row.trace for row in self.rows}

    def to_frame(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame([row.to_dict() for row in self.rows], columns=COLUMNS)

    def __repr__(self) -> str:
        return (
            f"Evaluation({len(self.names)} traces and tables, {len(self.rows)} rows, "
            f"{len(self.warnings)} warnings)"
        )

    def _repr_html_(self) -> str:
        from perfmodel.plot import table_html

        return table_html([[*row.to_dict().values()] for row in self.rows], COLUMNS, "Errors")


def rows_of(trace: str, kind: Kind, name: str, predicted: Floats, measured: Floats) -> list[Row]:
    """The row of predictions against measurements (equal shapes, one unit), or none.

    What is not a number on either side, or was measured as 0, has no error and does not count.
    """
    predicted, measured = np.ravel(predicted), np.ravel(measured)
    known = np.isfinite(predicted) & np.isfinite(measured) & (measured > 0)
    if not known.any():
        return []
    figures = error_figures(predicted[known], measured[known])
    rounded = (round(figures[each], DECIMALS) + 0.0 for each in FIGURES)
    return [Row(trace, kind, name, int(known.sum()), *rounded)]

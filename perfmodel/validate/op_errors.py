"""Errors of device time per op, predicted from shapes alone, in groups of like ops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.fit.kernel_errors import GMAE_OFFSET, mape_pct

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "perfmodel.evaluation.ops/1"
DECIMALS = 4


@dataclass(frozen=True)
class Measured:
    """Device time of one op, microseconds."""

    source: str
    """The trace, or the table."""
    device: str
    name: str
    """What its errors are counted under."""
    predicted_us: float
    measured_us: float


@dataclass(frozen=True)
class OpErrors:
    """Errors of `n` ops of one name in one source; percents of what was measured.

    `gmae_pct` is the geometric mean of absolute errors, `mape_pct` their mean, `median_pct` their
    median, `bias_pct` the mean error with its sign, `total_pct` the error of all their times
    together.
    """

    source: str
    device: str
    name: str
    n: int
    gmae_pct: float
    mape_pct: float
    median_pct: float
    bias_pct: float
    total_pct: float
    measured_us: float


@dataclass(frozen=True)
class OpEvaluation:
    """Errors by source and name."""

    rows: tuple[OpErrors, ...]
    all_rows: OpErrors | None
    """Of all ops of all sources together."""
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The answer as `docs/schemas/evaluation.ops.json` describes it."""
        return {
            "schema": SCHEMA,
            "rows": [asdict(row) for row in self.rows],
            "all": asdict(self.all_rows) if self.all_rows else None,
            "warnings": self.warnings,
        }

    def to_frame(self) -> pd.DataFrame:
        """One line per source and name."""
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows])


def evaluation_of(found: Iterable[Measured], warnings: Sequence[str] = ()) -> OpEvaluation:
    """The errors of `found`, by source and name, the longest first."""
    groups: dict[tuple[str, str, str], list[Measured]] = {}
    for each in found:
        groups.setdefault((each.source, each.device, each.name), []).append(each)
    rows = sorted(
        (_errors(*key, own) for key, own in groups.items()),
        key=lambda row: (row.source, -row.measured_us),
    )
    together = [each for own in groups.values() for each in own]
    whole = _errors("all", "", "all", together) if together else None
    return OpEvaluation(tuple(rows), whole, list(warnings))


def _errors(source: str, device: str, name: str, found: Sequence[Measured]) -> OpErrors:
    predicted = np.array([each.predicted_us for each in found])
    measured = np.array([each.measured_us for each in found])
    error = predicted / measured - 1.0
    size = np.abs(error)
    figures = (
        100.0 * np.exp(np.log(size + GMAE_OFFSET).mean()),
        mape_pct(measured, predicted),
        100.0 * np.median(size),
        100.0 * error.mean(),
        100.0 * (predicted.sum() / measured.sum() - 1.0),
        measured.sum(),
    )
    rounded = (round(float(figure), DECIMALS) for figure in figures)
    return OpErrors(source, device, name, len(found), *rounded)

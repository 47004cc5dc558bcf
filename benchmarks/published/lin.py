"""The DLRM steps of Lin et al. 2022 on one GPU, and the time that it was active in them, against
predictions from configurations: the runner of `perfmodel evaluate lin`.

The table has a row per GPU, model and batch: the measured step (`measured_iter_ms`) and the paper's
own errors of it (`e2e_err_pct`) and of GPU-active time (`active_err_pct`). How long the GPU was
active follows from `kernel_only_err_pct`, the error of that prediction taken for a whole step;
where that is only said to be large (`<-35`), it is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.answers import Begin, begun, silent
from perfmodel.base.frames import text_rows
from perfmodel.base.units import US_PER_MS
from perfmodel.errors import PerfmodelError
from perfmodel.prediction import predict
from perfmodel.validate.evaluate.results import Errors

SCHEMA = "perfmodel.evaluation.lin/1"
DEVICES = {"Xp": "titan-xp", "P100": "p100-pcie-16gb", "V100": "v100-sxm2-16gb"}
WORKLOADS = {f"DLRM_{name}": f"lin-dlrm-{name.lower()}" for name in ("default", "MLPerf", "DDP")}
COLUMNS = (
    *("gpu", "model", "batch_size", "measured_iter_ms"),
    *("active_err_pct", "e2e_err_pct", "kernel_only_err_pct"),
)
ALMOST_NONE = 4e-4
"""Added to each error in geometric means, as the paper does."""


def evaluate_lin(table: Path, begin: Begin = silent) -> Errors:
    """Errors of steps and of GPU-active time, percent, beside the paper's own.

    Raises `PerfmodelError` that names the row which is none.
    """
    rows = list[dict[str, Any]]()
    for where, row in begun(list(text_rows(table, COLUMNS)), begin, lambda each: each[0]):
        if row["gpu"] not in DEVICES or row["model"] not in WORKLOADS:
            raise PerfmodelError(f"{where}: expected a gpu of {', '.join(DEVICES)} and a model")
        measured_us = _number(row, "measured_iter_ms", where) * US_PER_MS
        own = _number(row, "active_err_pct", where)
        is_known = not row["kernel_only_err_pct"].startswith("<")
        only = _number(row, "kernel_only_err_pct", where) if is_known else np.nan
        active_us = measured_us * (1 + only / 100) / (1 + own / 100) if is_known else None
        batch = int(_number(row, "batch_size", where))
        device = DEVICES[row["gpu"]]
        (result,) = predict(WORKLOADS[row["model"]], hardware=device, batch=batch).results
        found_us = result.rank.gpu_active_us
        rows.append(
            {
                "name": f"{row['model']}, batch {batch:,}",
                "device": device,
                "predicted_us": result.step_us,
                "measured_us": measured_us,
                "error_pct": 100 * (result.step_us / measured_us - 1),
                "paper_error_pct": _number(row, "e2e_err_pct", where),
                "predicted_active_us": found_us,
                "measured_active_us": active_us,
                "active_error_pct": None if active_us is None else 100 * (found_us / active_us - 1),
                "paper_active_error_pct": own,
            }
        )
    kinds = ("error_pct", "paper_error_pct", "active_error_pct", "paper_active_error_pct")
    return Errors(SCHEMA, rows, [], {"summary": [_summary(rows, kind) for kind in kinds]})


def _number(row: Mapping[str, str], key: str, where: str) -> float:
    try:
        return float(row[key])
    except ValueError:
        raise PerfmodelError(f"{where}: {key}: expected a number, got {row[key][:40]!r}") from None


def _summary(rows: list[dict[str, Any]], kind: str) -> dict[str, str | int | float]:
    sizes = [abs(row[kind]) / 100 for row in rows if row[kind] is not None]
    geometric = np.exp(np.mean(np.log(np.array(sizes) + ALMOST_NONE)))
    of = kind.removesuffix("_pct").replace("_", " ")
    return {
        "of": of,
        "n": len(sizes),
        "mean_pct": float(100 * np.mean(sizes)),
        "geometric_pct": float(100 * geometric),
    }

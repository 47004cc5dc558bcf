"""Why the models of kernels, collectives and memory tiers say what they say."""

from __future__ import annotations

import numpy as np

from perfmodel.duration import Durations, durations_of, explanations_of
from perfmodel.hardware import Cluster, Device, Node, cluster
from perfmodel.hardware.reads import Read, reads_of, recorded
from perfmodel.kernels.model import Explanation
from perfmodel.ops.rows import Rows
from perfmodel.prediction.explain.reason import Reason, Terms
from perfmodel.units import BYTES_PER_GB, US_PER_S


def asked(
    rows: Rows, hardware: Device | Node | Cluster
) -> tuple[Durations, list[Explanation], tuple[Read, ...]]:
    """What `rows`, all of one family, take on `hardware`, why, and the figures read for that.

    Raises `ModelError`.
    """
    machine = cluster(hardware)
    watched, log = recorded(machine)
    found, why = durations_of(rows, watched), explanations_of(rows, watched)
    return found, why, reads_of(machine, log)


def reason_of_row(rows: Rows, hardware: Device | Node | Cluster, at: int = 0) -> Reason:
    """Why row `at` of `rows` takes what it takes on `hardware`, and which figures that reads.

    Raises `ModelError`.
    """
    one = rows.take(np.array([at], np.int64))
    found, (why,), figures = asked(one, hardware)
    duration_us = float(found.duration_us[0])
    moved_bytes = why.read_bytes + why.written_bytes
    dims = {name: values[0] for name, values in one.dims.items() if not np.isnan(values[0])}
    terms: Terms = {
        "op": f"{one.op[0]} {one.dtype[0]} {one.direction[0]}",
        "dims": ", ".join(f"{name} {value:g}" for name, value in dims.items()),
        "model": found.model[0],
        "source": found.source[0],
        "bound_by": why.bound_by,
        "low_us": float(found.low_us[0]),
        "high_us": float(found.high_us[0]),
        "flop": why.flop,
        "read_bytes": why.read_bytes,
        "written_bytes": why.written_bytes,
        "moved_gb_per_s": moved_bytes / max(duration_us, 1e-9) * US_PER_S / BYTES_PER_GB,
        "utilisation_frac": why.utilisation_frac,
    }
    terms |= why.terms
    return Reason("model", why.formula, duration_us, terms, figures)


def beside(reason: Reason, taken_us: float) -> Reason:
    """`reason` of a kernel that takes `taken_us` in its step, beside collectives."""
    if abs(taken_us - reason.duration_us) <= 1e-6 * max(taken_us, 1e-3):
        return reason
    lost_us = taken_us - reason.duration_us
    formula = "as long as alone, and what it loses to what runs beside it on the device"
    terms: Terms = {"alone_us": reason.duration_us, "lost_us": lost_us}
    return Reason("beside others", formula, taken_us, terms, (), (reason,))

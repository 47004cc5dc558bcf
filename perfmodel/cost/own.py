"""Kernel models of users: what is wrong with one, or with its answer, is an error that names it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from perfmodel.cost.contract import Estimate, Explanation, KernelModel
from perfmodel.errors import ModelError, PerfmodelError
from perfmodel.hardware import Device
from perfmodel.ops.rows import Rows

_KNOWN: dict[tuple[int, str], OfUser] = {}
"""By the id of the model that each holds and its name: one object, as answers are kept by it."""


def checked(model: KernelModel, name: str) -> KernelModel:
    """`model` as it is where it is ours, else one whose answers are checked.

    Raises `ModelError` for what has not the two methods of a `KernelModel`.
    """
    if type(model).__module__.startswith("perfmodel."):
        return model
    if isinstance(model, type):
        raise ModelError(f"kernel model {name}: {model.__name__} is a class, expected an object")
    for method in ("estimate", "explain"):
        if not callable(getattr(model, method, None)):
            raise ModelError(f"kernel model {name}: {type(model).__name__} has no method {method}")
    return _KNOWN.setdefault((id(model), name), OfUser(model, name))


@dataclass(frozen=True)
class OfUser:
    """A model and the name that errors call it by."""

    model: KernelModel
    name: str

    def estimate(self, rows: Rows, device: Device) -> Estimate:
        with self._blamed():
            found = self.model.estimate(rows, device)
            us = np.array([found.duration_us, found.low_us, found.high_us], float)
            if us.shape != (3, len(rows)):
                raise ModelError(f"columns of {us.shape[1:]} values for {len(rows)} rows")
            for row in np.flatnonzero(~((us > 0) & np.isfinite(us)).all(axis=0)).tolist():
                what = f"{rows.op[row]} {rows.dims_text(row)}"
                raise ModelError(f"{what}: expected microseconds above 0")
            return found

    def explain(self, rows: Rows, device: Device) -> list[Explanation]:
        with self._blamed():
            found = list(self.model.explain(rows, device))
            if len(found) != len(rows):
                raise ModelError(f"{len(found)} explanations of {len(rows)} rows")
            return found

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            kind = "" if isinstance(error, PerfmodelError) else f"{type(error).__name__}: "
            raise ModelError(f"kernel model {self.name}: {kind}{error}") from error

"""Published figures beside predicted ones, and the registry of what yields them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from perfmodel.registry import Registry
from perfmodel.validate.designs.lab import Lab

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "perfmodel.evaluation.designs/1"
EXACT_FRAC = 1e-9
_NUMBER = re.compile(r"V(\d+)")


@dataclass(frozen=True)
class Figure:
    """One published figure in its own `unit`: a number that holds within `tolerance_pct`, or a band
    from low to high.

    `provenance`: where it was read, and how sure that is; it begins with `exact` where no machine
    has a part in the figure. `assumed`: what the prediction rests on
    that no source says, and which constants saw the target.
    """

    id: str
    title: str
    unit: str
    target: float | tuple[float, float]
    predicted: float
    tolerance_pct: float
    provenance: str
    assumed: tuple[str, ...] = ()

    @property
    def error_pct(self) -> float:
        """Of a number, the signed error; of a band, how far outside it is, 0 inside."""
        if isinstance(self.target, tuple):
            low, high = self.target
            near = min(max(self.predicted, low), high)
        else:
            near = self.target
        return (self.predicted - near) / abs(near) * 100 if near else self.predicted * 100

    @property
    def holds(self) -> bool:
        """Whether the error is within the tolerance; of a band, whether it is inside."""
        if isinstance(self.target, tuple):
            return self.target[0] <= self.predicted <= self.target[1]
        limit = max(self.tolerance_pct / 100, EXACT_FRAC) * abs(self.target)
        return abs(self.predicted - self.target) <= limit

    def to_dict(self) -> dict[str, Any]:
        """As a row of `perfmodel evaluate designs`."""
        target = list(self.target) if isinstance(self.target, tuple) else self.target
        return {
            "id": self.id,
            "title": self.title,
            "unit": self.unit,
            "target": target,
            "predicted": self.predicted,
            "error_pct": self.error_pct,
            "tolerance_pct": self.tolerance_pct,
            "provenance": self.provenance,
            "pass": self.holds,
            "assumed": list(self.assumed),
        }


Case: TypeAlias = Callable[[Lab], Iterable[Figure]]

CASES: Registry[Case] = Registry(
    "published figure", "perfmodel.published_figures", "perfmodel.validate.designs"
)
"""By name: `V` and a number, with a word behind it where several files share the number."""


@dataclass(frozen=True)
class DesignFigures:
    """All published figures, in order of their ids' numbers."""

    figures: tuple[Figure, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON: `perfmodel.evaluation.designs/1`."""
        return {"schema": SCHEMA, "rows": [figure.to_dict() for figure in self.figures]}

    def to_frame(self) -> pd.DataFrame:
        """One row per figure."""
        import pandas as pd

        return pd.DataFrame(self.to_dict()["rows"])


def evaluate_designs(lab: Lab | None = None, only: Sequence[str] = ()) -> DesignFigures:
    """Every published figure, or those of the cases named in `only`, predicted on `lab`.

    `V14` names all cases that begin with `V14-`. Raises `PerfmodelError` for a case that there is
    none of.
    """
    named = {case: None for name in only for case in _cases(name)}
    return DesignFigures(tuple(_figures(lab or Lab(), tuple(named or CASES))))


def _cases(name: str) -> list[str]:
    """The cases that `name` begins, or itself."""
    return [case for case in CASES if case.startswith(f"{name}-")] or [name]


def _figures(lab: Lab, names: Sequence[str]) -> Iterator[Figure]:
    for name in sorted(names, key=_order):
        yield from CASES[name](lab)


def _order(name: str) -> tuple[int, str]:
    found = _NUMBER.match(name)
    return (int(found.group(1)) if found else 0, name)

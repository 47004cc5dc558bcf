"""What papers published about their designs, beside predictions: the runner.

The figures are no part of the package: a folder of modules holds them, `traces/published` in a
checkout. A function marked `@case("V12")` yields `Figure`s, whose ids begin with that name. What is
not exact goes through predictions on machines that a `Lab` gives, so that a change of the hardware
moves it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from perfmodel.errors import HardwareError, PerfmodelError
from perfmodel.hardware import Cluster, Device, Node, cluster, load, node_of
from perfmodel.prediction import predict_workload
from perfmodel.prediction.types import Result
from perfmodel.registry import Registry
from perfmodel.workload import Workload

if TYPE_CHECKING:
    import pandas as pd


FOLDER = Path("traces") / "published"
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


def unchanged(machine: Cluster) -> Cluster:
    """The machine itself."""
    return machine


@dataclass(frozen=True)
class Lab:
    """Machines of the catalogue, each as `change` makes it."""

    change: Callable[[Cluster], Cluster] = unchanged

    def machine(self, name: str, *, nodes: int | None = None, gpus: int | None = None) -> Cluster:
        """`nodes` of the catalogue's `name` with `gpus` in each; of a device, one in its node."""
        part = load(name)
        if isinstance(part, Device):
            part = replace(node_of(part), gpus=gpus or 1)
        if not isinstance(part, (Node, Cluster)):
            raise HardwareError(f"{name}: not a machine")
        found = cluster(part, nodes)
        if gpus:
            found = replace(found, node=replace(found.node, gpus=gpus))
        return self.change(found)

    def step(
        self,
        workload: Workload | str,
        machine: Cluster,
        *,
        batch: int | None = None,
        train: bool = True,
    ) -> Result:
        """A workload predicted from its configuration."""
        found = predict_workload(workload, hardware=[machine], batch=batch, train=train)
        return found.results[0]


Case: TypeAlias = Callable[[Lab], Iterable[Figure]]
_CASE = "published_case"


def case(name: str) -> Callable[[Case], Case]:
    """Marks what yields the figures whose ids begin with `name`."""

    def mark(function: Case) -> Case:
        setattr(function, _CASE, name)
        return function

    return mark


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


def evaluate_designs(
    lab: Lab | None = None, only: Sequence[str] = (), folder: Path | None = None
) -> DesignFigures:
    """Every published figure in `folder`, or those of the cases named in `only`, on `lab`.

    `V14` names all cases that begin with `V14-`. Raises `PerfmodelError` for a case that there is
    none of, and for a folder without cases.
    """
    cases = cases_in(folder or published_folder())
    names = {name: None for asked in only for name in _named(asked, cases)} or cases
    ordered = sorted(names, key=_order)
    return DesignFigures(tuple(_figures(lab or Lab(), [cases[name] for name in ordered])))


def published_folder() -> Path:
    """`traces/published` of the working directory, else of the checkout that the package is in.

    Raises `PerfmodelError` where there is none.
    """
    for root in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (root / FOLDER).is_dir():
            return root / FOLDER
    raise PerfmodelError(f"no folder {FOLDER}: stand in a checkout, or name a folder")


def cases_in(folder: Path) -> Registry[Case]:
    """The cases of all modules in `folder`, a package of Python files that are run, by name.

    Raises `PerfmodelError` that names the file which cannot be loaded.
    """
    if not folder.is_dir():
        raise PerfmodelError(f"{folder}: no such folder")
    if not (folder / "__init__.py").is_file():
        raise PerfmodelError(f"{folder}: no published figures in it: it has no __init__.py")
    found: Registry[Case] = Registry("published figure")
    package = _package(folder.resolve())
    for path in sorted(folder.glob("*.py")):
        if path.stem == "__init__":
            continue
        try:
            module = import_module(f"{package}.{path.stem}")
        except Exception as error:
            raise PerfmodelError(f"{path}: {type(error).__name__}: {error}") from error
        for each in vars(module).values():
            if getattr(each, "__module__", None) == module.__name__ and hasattr(each, _CASE):
                found.register(getattr(each, _CASE))(each)
    if not list(found):
        raise PerfmodelError(f"{folder}: no published figures in it")
    return found


def _package(folder: Path) -> str:
    """The folder as a package, so that its modules can import one another."""
    name = f"published_{sha256(str(folder).encode()).hexdigest()[:12]}"
    if name not in sys.modules:
        spec = spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        sys.modules[name] = module_from_spec(spec)
    return name


def _named(name: str, cases: Iterable[str]) -> list[str]:
    """The cases that `name` begins, or itself."""
    return [each for each in cases if each.startswith(f"{name}-")] or [name]


def _figures(lab: Lab, cases: Iterable[Case]) -> Iterator[Figure]:
    for each in cases:
        yield from each(lab)


def _order(name: str) -> tuple[int, str]:
    found = _NUMBER.match(name)
    return (int(found.group(1)) if found else 0, name)

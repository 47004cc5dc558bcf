"""Published figures of co-designs, predicted again: the runner of `perfmodel evaluate designs`.

The figures are data: a folder of TOML files, one per source, `traces/published` in a checkout. A
file names steps (a workload on a machine) and variants (a design with its settings), and lists
figures, each with the quantity that predicts it. Quantities are registered in `quantities.py`;
`MODULE.py:FUNCTION` is a function in a file in the TOML's folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import module_from_spec, spec_from_file_location
from inspect import Parameter, signature
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, get_type_hints

import pandas as pd

from benchmarks.published.files import (
    EVIDENCE,
    Document,
    Row,
    Settings,
    Step,
    Variant,
    entry,
    published_folder,
    read_document,
)
from perfmodel.base.answers import Begin, begun, silent
from perfmodel.base.registry import Registry
from perfmodel.base.schema import convert
from perfmodel.designs import Deployment, deployment_of
from perfmodel.designs.composed import composed
from perfmodel.errors import HardwareError, PerfmodelError
from perfmodel.hardware import Cluster, Device, Node, Storage, cluster, load, node_of
from perfmodel.hardware.settings import with_settings
from perfmodel.prediction import predict
from perfmodel.prediction.types import Result
from perfmodel.workload import Workload, load_workload

SCHEMA = "perfmodel.evaluation.designs/1"
EXACT_FRAC = 1e-9
Value: TypeAlias = float | tuple[float, str]
"""What a quantity returns: the predicted figure, and where it helps what that is made of."""
Quantity: TypeAlias = Callable[..., Value]

QUANTITIES: Registry[Quantity] = Registry("quantity", home="benchmarks.published.quantities")


@dataclass(frozen=True)
class Figure:
    """A published figure and its prediction: a number that holds within its tolerance, or a band
    from low to high. `detail`: what the predicted figure is made of."""

    row: Row
    predicted: float
    detail: str = ""

    @property
    def error_pct(self) -> float:
        """Of a number, the signed error; of a band, how far outside it is, 0 inside."""
        near = self.row.target
        if isinstance(near, tuple):
            near = min(max(self.predicted, near[0]), near[1])
        return (self.predicted - near) / abs(near) * 100 if near else self.predicted * 100

    @property
    def holds(self) -> bool:
        """Whether the error is within the tolerance; of a band, whether it is inside."""
        target = self.row.target
        if isinstance(target, tuple):
            return target[0] <= self.predicted <= target[1]
        limit = max(self.row.tolerance_pct / 100, EXACT_FRAC) * abs(target)
        return abs(self.predicted - target) <= limit

    def to_dict(self) -> dict[str, Any]:
        row, target = self.row, self.row.target
        return {
            "id": row.id,
            "title": row.title,
            "unit": row.unit,
            "target": list(target) if isinstance(target, tuple) else target,
            "predicted": self.predicted,
            "error_pct": self.error_pct,
            "tolerance_pct": row.tolerance_pct,
            "provenance": row.provenance,
            "pass": self.holds,
            "evidence": row.evidence,
            "known": row.known,
            "detail": self.detail,
            "assumed": list(row.assumed),
        }


@dataclass(frozen=True)
class DesignFigures:
    """All published figures, in order of their files."""

    figures: tuple[Figure, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "rows": [figure.to_dict() for figure in self.figures]}

    def to_frame(self) -> pd.DataFrame:
        """One line per figure."""
        return pd.DataFrame(self.to_dict()["rows"])

    def holding(self) -> dict[str, tuple[int, int]]:
        """Per kind of evidence, how many figures hold, of how many."""
        kinds = {
            kind: [f.holds for f in self.figures if f.row.evidence == kind] for kind in EVIDENCE
        }
        return {kind: (sum(holds), len(holds)) for kind, holds in kinds.items() if holds}


@dataclass(frozen=True)
class Lab:
    """Machines of the catalogue, each as `change` makes it."""

    change: Callable[[Cluster], Cluster] = lambda machine: machine

    def machine(
        self,
        name: str,
        *,
        nodes: int | None = None,
        gpus: int | None = None,
        hardware: Sequence[str] = (),
    ) -> Cluster:
        """`nodes` of the catalogue's `name` with `gpus` in each; of a device, one in its node."""
        part = load(name)
        if isinstance(part, Device):
            part = replace(node_of(part), gpus=gpus or 1)
        if not isinstance(part, (Node, Cluster)):
            raise HardwareError(f"{name}: not a machine")
        machine = cluster(part, nodes)
        if gpus:
            machine = replace(machine, node=replace(machine.node, gpus=gpus))
        return self.change(with_settings(machine, hardware))

    def drive(self, name: str) -> Storage:
        """The catalogue's drive, in a node as `change` makes it."""
        machine = self.machine("dgx-a100-80gb")
        part = load(name, "storage")
        if not isinstance(part, Storage):
            raise HardwareError(f"{name}: not a drive")
        changed = self.change(replace(machine, node=replace(machine.node, storage=part)))
        assert changed.node.storage is not None
        return changed.node.storage


@dataclass(frozen=True)
class Study:
    """A file of published figures, and predictions of its steps on the machines of a lab."""

    path: Path
    document: Document
    lab: Lab = field(default_factory=Lab)
    _results: dict[tuple[str, str], Result] = field(default_factory=dict)

    def step(self, name: str) -> Step:
        """The step of that name. Raises `PerfmodelError` for another name."""
        return entry(self.document.steps, name, "step")

    def deployment(self, name: str, machine: str = "") -> Deployment:
        """A step as designs edit it, on its own machine or another."""
        workload, cluster_ = self._workload(name), self._machine(name, machine)
        step = self.step(name)
        return deployment_of(workload, cluster_, step.batch, train=step.train)

    def result(self, name: str, variant: str = "") -> Result:
        """The prediction of a step under a variant; under none, of its workload."""
        if (name, variant) in self._results:
            return self._results[name, variant]
        chosen = entry(self.document.variants, variant, "variant") if variant else Variant()
        if chosen.design:
            settings = chosen.settings | self.step(name).designs.get(variant, {})
            design = composed(chosen.design, {chosen.design: settings})
            predicted = predict(design.apply(self.deployment(name, chosen.machine)))
        else:
            machine, step = self._machine(name, chosen.machine), self.step(name)
            workload, train = self._workload(name), step.train
            predicted = predict(workload, hardware=[machine], batch=step.batch, train=train)
        self._results[name, variant] = predicted.results[0]
        return predicted.results[0]

    def _workload(self, name: str) -> Workload:
        step = self.step(name)
        return load_workload(self._in_folder(step.workload)).with_(**step.settings)

    def _machine(self, name: str, other: str) -> Cluster:
        if other:
            return self.lab.machine(self._in_folder(other))
        step = self.step(name)
        machine = self._in_folder(step.machine)
        return self.lab.machine(machine, nodes=step.nodes, gpus=step.gpus, hardware=step.hardware)

    def _in_folder(self, name: str) -> str:
        """A name of the catalogue, or the path of a file, which is given from the study's."""
        return str(self.path.parent / name) if name.endswith(".toml") else name

    def figure(self, row: Row) -> Figure:
        """A row predicted. Raises `PerfmodelError` that names the file and the row."""
        where = f"{self.path}: {row.id}"
        try:
            quantity = _quantity(row.quantity, self.path.parent)
            value = quantity(self, **_arguments(quantity, row.settings))
            predicted, detail = value if isinstance(value, tuple) else (value, "")
            figure = Figure(row, float(predicted), detail)
        except PerfmodelError as error:
            raise PerfmodelError(f"{where}: {error}") from None
        except Exception as error:
            message = f"{where}: {row.quantity}: {type(error).__name__}: {error}"
            raise PerfmodelError(message) from error
        if not isfinite(figure.predicted):
            raise PerfmodelError(f"{where}: {row.quantity} is {figure.predicted}, not a number")
        return figure


def _quantity(name: str, folder: Path) -> Quantity:
    """The registered quantity, or the function of a module in `folder`."""
    file, colon, function = name.partition(":")
    if not colon:
        return QUANTITIES[name]
    path = folder / file
    if Path(file).name != file or not path.is_file():
        raise PerfmodelError(f"quantity {name!r}: no file {path}")
    quantity = getattr(_module(path.resolve()), function, None)
    if not callable(quantity):
        raise PerfmodelError(f"quantity {name!r}: no function {function!r} in {path}")
    return quantity  # type: ignore[no-any-return]


_MODULES: dict[Path, ModuleType] = {}


def _module(path: Path) -> ModuleType:
    if path not in _MODULES:
        spec = spec_from_file_location(f"published_{path.stem}_{len(_MODULES)}", path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[spec.name]
            raise PerfmodelError(f"{path}: {type(error).__name__}: {error}") from error
        _MODULES[path] = module
    return _MODULES[path]


def _arguments(quantity: Quantity, settings: Settings) -> Settings:
    """`settings` as the quantity's parameters, each of its type."""
    hints = get_type_hints(quantity, include_extras=True)
    _, *parameters = signature(quantity).parameters.values()
    for name in settings:
        entry({each.name: each for each in parameters}, name, "setting")
    for each in parameters:
        if each.default is Parameter.empty and each.name not in settings:
            raise PerfmodelError(f"settings: {each.name} is missing")
    return {
        name: convert(hints.get(name, Any), value, name, PerfmodelError)
        for name, value in settings.items()
    }


def read_studies(folder: Path, lab: Lab | None = None) -> list[Study]:
    """All files of `folder`, by name. Raises `PerfmodelError` for an id that comes twice."""
    if not folder.is_dir():
        raise PerfmodelError(f"{folder}: no such folder")
    studies = [
        Study(path, read_document(path), lab or Lab()) for path in sorted(folder.glob("*.toml"))
    ]
    if not studies:
        raise PerfmodelError(f"{folder}: no published figures in it: it has no .toml file")
    first: dict[str, Path] = {}
    for study in studies:
        for row in study.document.figures:
            if row.id in first:
                raise PerfmodelError(f"{study.path}: {row.id}: it is in {first[row.id]} already")
            first[row.id] = study.path
    return studies


def evaluate_designs(
    lab: Lab | None = None,
    only: Sequence[str] = (),
    folder: Path | None = None,
    begin: Begin = silent,
) -> DesignFigures:
    """Every published figure in `folder`, or those that `only` names, on `lab`.

    A name is a figure's, a file's without `.toml`, or the beginning of names up to a hyphen. Raises
    `PerfmodelError` for a name that there is none of.
    """
    studies = read_studies(folder or published_folder(), lab)
    rows = [(study, row) for study in studies for row in study.document.figures]
    for name in only:
        if not any(_is_named(study, row, name) for study, row in rows):
            known = dict.fromkeys(key for study, row in rows for key in (study.path.stem, row.id))
            entry(known, name, "published figure")
    asked = [
        (study, row)
        for study, row in rows
        if not only or any(_is_named(study, row, name) for name in only)
    ]
    parts = begun(asked, begin, lambda each: each[1].id)
    return DesignFigures(tuple(study.figure(row) for study, row in parts))


def _is_named(study: Study, row: Row, name: str) -> bool:
    return name in (study.path.stem, row.id) or row.id.startswith(f"{name}-")

"""Designs by name, with settings, one after the other (`smartnic+low_precision`); what each setting
does: its steps one on top of the other, and those without effect.

A design says itself which of its settings are steps (`settings.step`), in the order in which they
are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields, replace
from itertools import islice, product
from types import NoneType
from typing import Any, NamedTuple, get_args, get_type_hints

from perfmodel.base.registry import offered
from perfmodel.base.schema import convert, is_list, parse_value, require_keys
from perfmodel.designs.deployment import DESIGNS, Budgeted, Deployment, Design, words
from perfmodel.designs.settings import ACTS_ON, PLAIN, START
from perfmodel.embedding.placement import STORAGE
from perfmodel.errors import PerfmodelError, UsageError, WorkloadError
from perfmodel.workload import Workload


def without_unused(deployment: Deployment) -> Deployment:
    """`deployment` without caches that no table has, and without work in parallel with a step that
    no table needs; of several kinds of steps that have become equal, one kind.

    Raises `WorkloadError` where samples are parted by hot rows that there are no longer.
    """
    used = _by_kind(_used, deployment)
    kinds = [(phase.placement, phase.pipeline) for phase in used.phases]
    is_one = all(kind == kinds[0] for kind in kinds)
    return replace(used, phases=()) if is_one else used


def _by_kind(edit: Callable[[Deployment], Deployment], deployment: Deployment) -> Deployment:
    """`deployment` edited; of steps of several kinds, each kind."""
    if not deployment.phases:
        return edit(deployment)
    whole = replace(deployment, phases=())
    edited = [
        edit(replace(whole, placement=phase.placement, pipeline=phase.pipeline))
        for phase in deployment.phases
    ]
    if any(each.phases for each in edited):
        raise WorkloadError("designs: steps that are of several kinds already")
    phases = tuple(
        replace(phase, placement=each.placement, pipeline=each.pipeline)
        for phase, each in zip(deployment.phases, edited, strict=True)
    )
    return replace(edited[0], phases=phases)


def _used(deployment: Deployment) -> Deployment:
    placement, pipeline = deployment.placement, deployment.pipeline
    tables = placement.tables
    hot = any(table.hot_rows for table in tables)
    if any(part.popular for part in pipeline.micro_batches) and not hot:
        raise WorkloadError("designs: samples are split by hot rows, and no hot rows are left")
    named = {name for table in tables for name in table.caches}
    caches = tuple(cache for cache in placement.caches if cache.name in named)
    on_drives = any(table.tier == STORAGE for table in tables)
    cached = any(table.tier != "hbm" and table.caches for table in tables)
    by_host = any(table.pooled_on == "host" for table in tables)
    pipeline = replace(
        pipeline,
        rows_ahead=pipeline.rows_ahead and (cached or on_drives),
        rows_beside=pipeline.rows_beside and hot,
        writes_behind=pipeline.writes_behind and (hot or on_drives or by_host),
    )
    return replace(deployment, placement=replace(placement, caches=caches), pipeline=pipeline)


DEFAULT, OWN_SETTINGS, PLUS = "default", "own", "+"
"""The deployment as the workload's settings make it, in the software that all designs share; the
workload in its own software, which knows no designs; what joins designs."""
UNDESIGNED = (DEFAULT, OWN_SETTINGS)
Settings = Mapping[str, Mapping[str, Any]]  # design to field to value


@dataclass(frozen=True)
class Composed:
    """Designs that are applied in this order; none: the deployment as it is."""

    text: str
    designs: tuple[Design, ...]

    @property
    def named(self) -> tuple[tuple[str, Design], ...]:
        names = [name.strip() for name in self.text.split(PLUS)]
        return tuple(zip(names, self.designs, strict=False))  # the deployment as it is has none

    def deployed(self, deployment: Deployment) -> Deployment:
        """`deployment` under all of them. Raises `WorkloadError` where that makes no sense."""
        deployed = without_unused(_applied(self.designs, deployment))
        tables, caches = deployed.placement.tables, deployed.placement.caches
        has_other = any(table.tier == "host" for table in tables)
        has_other |= any(cache.at == "hbm" for cache in caches)
        if has_other and deployed.machine.node.device.target == "cpu":
            raise WorkloadError(
                f"{deployed.machine.name}: without GPUs there is one memory, so no design can "
                "place tables or caches outside of it"
            )
        return deployed

    def apply(self, deployment: Deployment) -> Deployment:
        """`deployed`; `WorkloadError` as well where one of several does not show in what they make
        together."""
        deployed = self.deployed(deployment)
        for number, (name, _) in enumerate(self.named if len(self.designs) > 1 else ()):
            others = self.designs[:number] + self.designs[number + 1 :]
            try:
                without = without_unused(_applied(others, deployment))
            except WorkloadError:
                continue
            if same_step(without, deployed):
                raise WorkloadError(f"{self.text}: {name} has no effect in this combination")
        return deployed

    def within(self, deployment: Deployment) -> Iterator[Composed]:
        """Each of them with all or less of its memory."""
        ways = [
            (each, *(each.within(deployment) if isinstance(each, Budgeted) else ()))
            for each in self.designs
        ]
        for chosen in islice(product(*ways), 1, None):
            yield replace(self, designs=chosen)


def same_step(one: Deployment, other: Deployment) -> bool:
    """Whether both make the same step: notes and unused drives left out."""

    def bare(it: Deployment) -> Deployment:
        machine = it.machine
        if not any(table.tier == STORAGE for table in it.placement.tables):
            machine = replace(machine, node=replace(machine.node, storage=None, drives=None))
        return replace(it, notes=(), machine=machine)

    return bare(one) == bare(other)


def _applied(designs: Sequence[Design], deployment: Deployment) -> Deployment:
    for design in designs:
        deployment = _by_kind(design.apply, deployment)
    return deployment


def composed(text: str, settings: Settings | None = None) -> Composed:
    """The designs that `text` joins by `+`, with `settings` where they differ from the defaults.

    Raises `UsageError` for an unknown design or field, a design that comes twice, and a value of
    another type; `WorkloadError` as a design does for a value that cannot be.
    """
    names = [name.strip() for name in text.split(PLUS)]
    if len(set(names)) != len(names):
        raise UsageError(f"--designs {text!r}: one of them comes twice")
    if not all(names):
        raise UsageError(f"--designs {text!r}: expected a design on both sides of each {PLUS}")
    for name in UNDESIGNED:
        if name in names and len(names) > 1:
            raise UsageError(f"--designs {text!r}: {name} cannot be combined with other designs")
    chosen = [name for name in names if name not in UNDESIGNED]
    made = tuple(_made(name, (settings or {}).get(name, {})) for name in chosen)
    return Composed(text, made)


def settings_of(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`DESIGN.FIELD=VALUE` texts by design; values as in TOML, words without quotes too.

    Raises `UsageError` for an unknown design or field.
    """
    settings: dict[str, dict[str, Any]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        name, dot, field = key.strip().partition(".")
        if not (equals and dot):
            raise UsageError(f"--set {text!r}: expected DESIGN.FIELD=VALUE")
        _require_fields(_class(name), name, [field])
        settings.setdefault(name, {})[field] = parse_value(value.strip())
    return settings


def _class(name: str) -> type[Design]:
    if name not in DESIGNS:
        raise UsageError(
            f"unknown design {offered(name, list(DESIGNS), 'perfmodel compare --designs list')}"
        )
    return DESIGNS[name]


def _made(name: str, values: Mapping[str, Any]) -> Design:
    kind = _class(name)
    _require_fields(kind, name, values)
    hints = get_type_hints(kind, include_extras=True)
    checked = {}
    for field, value in values.items():
        hint = hints[field]
        if is_list(hint) and not (NoneType in get_args(hint) and value in (None, "none")):
            if isinstance(value, str):  # `fp16,int8`
                value = [parse_value(part) for part in value.split(",")]
            value = value if isinstance(value, (list, tuple)) else [value]
        checked[field] = convert(hint, value, f"{name}.{field}", UsageError)
    return kind(**checked)


def _require_fields(kind: type[Design], name: str, given: Iterable[str]) -> None:
    known = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    require_keys(dict.fromkeys(given), known, name, UsageError)


def plain(workload: Workload, whole: Composed) -> Workload:
    """`workload` without what steps of `whole` do that its own settings do already."""
    settings: dict[str, Any] = {}
    for design in whole.designs:
        for each in _steps(design):
            settings |= {f"implementation__{key}": it for key, it in each.metadata[START].items()}
    return workload.with_(**settings) if settings else workload


class Rung(NamedTuple):
    """A step's name, the designs up to it, and what it acts on, if not on all; `is_plain`: it is a
    design whose steps are still to come."""

    name: str
    designs: Composed
    acts_on: str = ""
    is_plain: bool = False


def rungs(whole: Composed) -> Iterator[Rung]:
    """Step by step: of each design first what it does with all its steps plain, then these in the
    order of its fields."""
    for number, (name, design) in enumerate(whole.named):
        before = whole.designs[:number]
        taken = [
            each for each in _steps(design) if getattr(design, each.name) != each.metadata[PLAIN]
        ]
        at = replace(design, **{each.name: each.metadata[PLAIN] for each in taken})  # type: ignore[type-var]
        plain_design = replace(whole, designs=(*before, at))
        yield Rung(f"+ {name}", plain_design, is_plain=bool(taken))
        for each in taken:
            value = getattr(design, each.name)
            at = replace(at, **{each.name: value})  # type: ignore[type-var]
            now = replace(whole, designs=(*before, at))
            said = "" if value is True else words(value)
            text = f"+ {each.name.replace('_', ' ')} {said}".strip()
            yield Rung(text, now, each.metadata[ACTS_ON])


def without_effect(whole: Composed, start: Deployment) -> list[str]:
    """Settings that are not at their default and change nothing of `start`, each in a line."""
    deployed, told = whole.deployed(start), []
    for number, (name, design) in enumerate(whole.named):
        for each in fields(design):  # type: ignore[arg-type]
            if getattr(design, each.name) == each.default:
                continue
            try:
                usual = replace(design, **{each.name: each.default})  # type: ignore[type-var]
                designs = (*whole.designs[:number], usual, *whole.designs[number + 1 :])
                other = replace(whole, designs=designs).deployed(start)
            except PerfmodelError:
                continue
            if same_step(other, deployed):
                acts_on = each.metadata.get(ACTS_ON, "")
                value = words(getattr(design, each.name))
                told.append(f"{name}.{each.name}={value} {idle(acts_on, deployed)}")
    return told


def idle(acts_on: str, deployed: Deployment) -> str:
    """That a setting has no effect, what it would have one on, and what its design says of it."""
    would = (f"it acts on {acts_on}",) if acts_on else ()
    return ": ".join(("changes nothing here", *would, *deployed.without_gain))


def _steps(design: Design) -> list[Field[Any]]:
    return [each for each in fields(design) if PLAIN in each.metadata]  # type: ignore[arg-type]

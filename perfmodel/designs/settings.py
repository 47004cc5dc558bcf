"""Designs of ours by name, their settings checked by their types: each with what it can be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field, fields, replace
from functools import cache, partial
from itertools import islice, product
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, TypeVar, get_type_hints

from perfmodel.base.schema import Limits, convert
from perfmodel.designs.deployment import DESIGNS, Deployment
from perfmodel.errors import UsageError, WorkloadError
from perfmodel.hardware import Part, a_kind_of, kind_of, load, names

NO_PART = "none"
P = TypeVar("P", bound=Part)


class Checked(ABC):
    """A design of ours: filed as `of`, its settings of their types and within their `Limits`."""

    of: ClassVar[str]
    parts: ClassVar[Mapping[str, type[Part]]] = {}
    """Settings that name a part of the catalogue, or its file; "" is no name, nor "none" where it
    is plain."""

    def __init_subclass__(cls, of: str = "") -> None:
        if of:
            cls.of = of
            DESIGNS.register(of)(cls)

    def __post_init__(self) -> None:
        """Raises `WorkloadError` that names the setting."""
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if value not in (each.default, ""):
                hint = _hints(type(self))[each.name]
                convert(hint, value, f"{self.of}.{each.name}", WorkloadError)
            kind, plain = self.parts.get(each.name), each.metadata.get(PLAIN)
            if kind and value != "" and value != plain:
                self.part(kind, each.name, value)

    def part(self, cls: type[P], setting: str, name: str) -> P:
        """The part of class `cls` that `setting` names.

        Raises `UsageError` for another name, with those that there are, and for another kind of
        part; `HardwareError` for a file that does not hold.
        """
        kind, what = kind_of(cls), f"{self.of}.{setting}"
        known = names(kind)
        if not (name.endswith(".toml") or "/" in name or name in known):
            raise UsageError(f"{what} {name[:80]!r}: unknown: one of {', '.join(known)}, or a file")
        part = load(name, kind)
        if not isinstance(part, cls):
            raise UsageError(f"{what} {name}: it is {a_kind_of(part)}, expected {a_kind_of(cls)}")
        return part

    @abstractmethod
    def apply(self, deployment: Deployment) -> Deployment:
        """As `Design` has it."""

    def within(self, deployment: Deployment) -> Iterator[Self]:
        """As `Budgeted` has it: with less of one or several settings that say what may do."""
        own = [each for each in fields(self) if LESS in each.metadata]  # type: ignore[arg-type]
        offers = []
        for each in own:
            value = getattr(self, each.name)
            offers.append(dict.fromkeys((value, *each.metadata[LESS](value))))
        for chosen in islice(product(*offers), 1, None):
            less = dict(zip((each.name for each in own), chosen, strict=True))
            with suppress(WorkloadError):
                yield replace(self, **less)  # type: ignore[type-var]


_hints = cache(partial(get_type_hints, include_extras=True))


MOST, LEAST = 1e15, 1e-12
AUTO: Literal["auto"] = "auto"
"""A setting that follows from the rest; 0 is none of it."""
Auto: TypeAlias = Literal["auto"]
Count: TypeAlias = Annotated[int, Limits(0, MOST)]
SomeCount: TypeAlias = Annotated[int, Limits(1, MOST)]
Amount: TypeAlias = Annotated[float, Limits(0.0, MOST)]
SomeAmount: TypeAlias = Annotated[float, Limits(LEAST, MOST)]
Share: TypeAlias = Annotated[float, Limits(0.0, 1.0)]
SomeShare: TypeAlias = Annotated[float, Limits(LEAST, 1.0)]
PartShare: TypeAlias = Annotated[float, Limits(0.0, 1.0 - LEAST)]  # less than all


PLAIN, START, ACTS_ON, LESS = "plain", "start", "acts_on", "less"
Less: TypeAlias = Callable[[Any], Iterable[Any]]
"""Of a setting what may do in its place, the plainest first."""


def step(
    value: object,
    *,
    plain: object,
    start: Mapping[str, object] | None = None,
    acts_on: str = "",
    less: Less | None = None,
) -> Any:
    """A field of a design that is a step of its own: `value` by default, `plain` without the step.

    `start`: settings of the workload's implementation that do what this one does, as they are
    without it. `acts_on`: what there must be for it to have an effect. `less`: as of a `budget`.
    """
    about = {PLAIN: plain, START: start or {}, ACTS_ON: acts_on}
    return field(default=value, metadata=about if less is None else about | {LESS: less})


def budget(value: object, less: Less) -> Any:
    """A field of a design of which `less` may do: `value` by default."""
    return field(default=value, metadata={LESS: less})


def instead(*values: object) -> Less:
    return lambda _: values


def require_known(design: str, setting: str, value: str, known: Iterable[str]) -> None:
    """Raise `WorkloadError` for a name that is none of those known."""
    if value not in known:
        raise WorkloadError(f"{design}: unknown {setting} {value!r}: one of {', '.join(known)}")


def halves(least: float) -> Less:
    """Nothing of a setting, half of it, a quarter of it, and so on, as long as it is `least`."""

    def halved(most: float) -> Iterator[float]:
        yield 0.0
        while (most := most / 2) >= least:
            yield most

    return halved

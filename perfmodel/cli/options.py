"""Options of all verbs: their texts, what values they take, and verbs of several nouns."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum, StrEnum
from functools import cache, partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from perfmodel.base.files import DEFAULT_MAX_BYTES
from perfmodel.base.units import BYTES_PER_GB
from perfmodel.cli.console import LINE
from perfmodel.errors import UsageError

DEFAULT_MAX_GB = DEFAULT_MAX_BYTES / BYTES_PER_GB
_NAMES = {
    "format": ("--format", "-f"),
    "output": ("-o", "--output"),
    "settings": ("--set",),
    "source_device": ("--source",),
}
"""Options that are not called as the argument is."""
_TRACES = ("trace", "traces", "a", "b")
"""Arguments that name traces."""


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "md"
    PARQUET = "parquet"
    WORKBOOK = "xlsx"
    BRIEF = "brief"
    GITHUB = "github"


class _WithoutPydantic:
    """A command that leaves to Typer only what needs a check: numbers, lists, unknown words.

    Typer builds a Pydantic converter for every option, given or not; to load Pydantic takes longer
    than all else that a command does before its work.
    """

    def get_params(self, context: Any) -> list[Any]:
        params: list[Any] = super().get_params(context)  # type: ignore[misc]
        for each in params:
            if "process_value" not in vars(each):
                each.process_value = partial(_converted, each, each.process_value)
        return params


class Command(_WithoutPydantic, TyperCommand):
    """One verb."""


class Group(_WithoutPydantic, TyperGroup):
    """Several verbs."""


def _converted(option: Any, by_typer: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    """The value of an option: checked, of its type, and seen by the option's callback."""
    source = context.get_parameter_source(option.name)
    kind: Any = getattr(getattr(option, "type_descriptor", None), "annotation", None)
    words = [each.value for each in kind] if isinstance(kind, type(Enum)) else ()
    converted: Any
    if source is not None and source.name == "DEFAULT" and not option.required:
        converted = () if value is None and (option.multiple or option.nargs == -1) else value
    elif isinstance(value, str) and (kind in (str, Path) or value in words):
        converted = kind(value)
    elif kind == list[str] and isinstance(value, tuple | list):
        converted = list(value)
    else:
        return by_typer(context, value)
    return option.callback(context, option, converted) if option.callback else converted


@cache
def _texts() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("options.toml").read_text("utf-8"))


def texts_of(*path: str) -> dict[str, Any]:
    """The help and the options of a verb, or of a verb and its noun."""
    found = _texts()
    for word in path:
        found = found[word]
    return found


def described(verb: Callable[..., None], *path: str) -> Callable[..., None]:
    """`verb` as Typer takes it: its help and its parameters with the texts of `options.toml`, where
    `path` leads to its own; a parameter that is a dataclass is given as all fields of that,
    and made of them."""
    own, hints = texts_of(*path), get_type_hints(verb)
    bundles: dict[str, Any] = {}

    def listed() -> Iterator[Parameter]:
        for each in signature(verb).parameters.values():
            kind: Any = hints[each.name]
            if not (isinstance(kind, type) and is_dataclass(kind)):
                yield _parameter(each.name, kind, each.default, own)
                continue
            bundles[each.name] = kind
            inner, texts = get_type_hints(kind), _texts().get(kind.__name__, {}) | own
            for field in fields(kind):
                yield _parameter(field.name, inner[field.name], field.default, texts)

    parameters = list(listed())

    @wraps(verb)
    def run(**given: Any) -> None:
        LINE.set(replace(LINE.get(), given=dict(given)))
        for name, kind in bundles.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        timed_by = (each for each in given.values() if isinstance(each, KernelOptions))
        with next(timed_by, PACKAGED).answering():
            verb(**given)

    del run.__wrapped__
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__doc__ = own["help"]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _parameter(name: str, kind: Any, default: Any, texts: dict[str, Any]) -> Parameter:
    """One option or argument from its text: `[metavar, help, {min, max, argument, name}]`."""
    metavar, text, *rest = texts.get(name) or _texts()["shared"][name]
    more = rest[0] if rest else {}
    shared: dict[str, Any] = {"metavar": metavar or None, "help": text}
    shared |= {key: more[key] for key in ("min", "max") if key in more}
    if more.get("argument"):
        about = typer.Argument(callback=no_configuration if name in _TRACES else None, **shared)
    else:
        names = (more["name"],) if "name" in more else _NAMES.get(name, (option_name(name),))
        about = typer.Option(*names, **shared)
    annotation = Annotated[kind, about]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def option_name(name: str) -> str:
    """`--steps-by` of the argument `steps_by`."""
    return _NAMES[name][-1] if name in _NAMES else f"--{name.replace('_', '-')}"


def no_configuration(named: Any) -> Any:
    """What a trace argument names, a text or several, as it is: all verbs' callback.

    Raises `UsageError` for a model's configuration.
    """
    for each in [named] if isinstance(named, str) else named or ():
        path = Path(each)
        is_there = path.exists()
        is_configuration = path.suffix == ".toml" and (path.is_file() or not is_there)
        if path.suffix != ".toml" and not is_there:
            from perfmodel.workload import workloads

            is_configuration = each in workloads()
        if is_configuration:
            raise UsageError(
                f"{each}: a configuration, no trace; it goes to perfmodel predict --workload {each}"
            )
    return named


@dataclass(frozen=True)
class KernelOptions:
    """What times kernels; a verb that takes these runs where they hold."""

    models: Path | None = None
    trust_models: bool = False
    kernels: str | None = None

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Within it, kernels are timed so. Raises `PerfmodelError`."""
        if self.models is None and self.trust_models:
            raise UsageError("--trust-models needs --models DIR, whose code it allows to run")
        if self.models is None and self.kernels is None:
            yield
            return
        from perfmodel.cost.durations import using_kernels, using_models

        with using_models(self.models, trusted=self.trust_models), using_kernels(self.kernels):
            yield


PACKAGED = KernelOptions()


def max_bytes(limit_gb: float) -> int:
    """The limit of `--max-memory` in bytes. Raises `UsageError` when it is none."""
    if not 0 < limit_gb < sys.maxsize / BYTES_PER_GB:
        raise UsageError(f"--max-memory {limit_gb}: expected a number of GB above 0")
    return int(limit_gb * BYTES_PER_GB)

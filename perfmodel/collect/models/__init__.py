"""Reference models to trace: each file registers one family of them.

A new model is one new file here; `MODELS` finds it, and so does an installed plug-in of the
entry-point group `perfmodel.collect.models`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from perfmodel.base.registry import Registry
from perfmodel.collect.backend import Backend
from perfmodel.errors import UsageError

Config = TypeVar("Config")


@dataclass(frozen=True)
class Options:
    """What the command line asks of a model; `None` keeps the preset's own value."""

    preset: str = ""
    batch: int = 512
    max_rows: int | None = None
    pooling: int | None = None
    zipf_alpha: float = 0.0
    seed: int = 0


def chosen(presets: Mapping[str, Config], options: Options, model: str) -> tuple[str, Config]:
    """Name and preset that `options` ask for, else `small`; `UsageError` where there is none."""
    name = options.preset or "small"
    if name not in presets:
        raise UsageError(f"unknown {model} preset {name!r}; there are {', '.join(sorted(presets))}")
    return name, presets[name]


@dataclass(frozen=True)
class Training:
    """A model ready to train: `step(i)` does batch `i`; `description` is JSON-ready."""

    step: Callable[[int], None]
    description: dict[str, Any]


Builder = Callable[[Backend, Options], Training]

MODELS: Registry[Builder] = Registry(
    "model", "perfmodel.collect.models", "perfmodel.collect.models"
)

"""Which rule answers for an op's name on a target."""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache

from perfmodel.lowering.piece import LOWERINGS, Lowering

ANY = "any"


def entries(*names: str, target: str = ANY, scope: str = "") -> tuple[str, ...]:
    """Registry keys of ops by their names; names without `::` are ATen's. `scope`: `LEAF WHOLE`."""
    full = (name if "::" in name else f"aten::{name}" for name in names)
    return tuple(f"{target}/{scope}{name}" for name in full)


def with_inplace(*names: str) -> tuple[str, ...]:
    """Each ATen name, and the same with the underscore of the variant that works in place."""
    return entries(*(variant for name in names for variant in (name, f"{name}_")))


@lru_cache(maxsize=1 << 14)
def rule_of(name: str, target: str, scope: str = "") -> Lowering | None:
    """The rule of an op, the target's own before that for all; None where there is none."""
    full = f"{scope}{name}"
    for where in (target, ANY):
        found = LOWERINGS.get(f"{where}/{full}")
        if found is not None:
            return found
    for pattern, key in _patterns(target):
        if pattern.fullmatch(full):
            return LOWERINGS[key]
    return None


@lru_cache(maxsize=8)
def _patterns(target: str) -> list[tuple[re.Pattern[str], str]]:
    """The entries with a `*`, the target's own first."""
    found = []
    for where in (target, ANY):
        keys = [key for key in LOWERINGS if key.startswith(f"{where}/") and "*" in key]
        found += [(re.compile(translate(key[len(where) + 1 :])), key) for key in keys]
    return found

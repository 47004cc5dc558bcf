"""Which rule answers for an op's name on a target."""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache

from perfmodel.lowering.piece import LEAF, LOWERINGS, Lowering

ANY = "any"


def entries(*names: str, target: str = ANY, leaf: bool = False) -> tuple[str, ...]:
    """Registry keys of ops by their names; names without `::` are ATen's, also in place."""
    keys = []
    for name in names:
        full = name if "::" in name or (leaf and name[:1].isupper()) else f"aten::{name}"
        keys.append(f"{target}/{LEAF if leaf else ''}{full}")
    return tuple(keys)


def with_inplace(*names: str) -> tuple[str, ...]:
    """Each ATen name, and the same with the underscore of the variant that works in place."""
    return entries(*(variant for name in names for variant in (name, f"{name}_")))


@lru_cache(maxsize=1 << 14)
def rule_of(name: str, target: str, leaf: bool = False) -> Lowering | None:
    """The rule of an op, the target's own before that for all; None where there is none."""
    full = f"{LEAF}{name}" if leaf else name
    for scope in (target, ANY):
        found = LOWERINGS.get(f"{scope}/{full}")
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
    for scope in (target, ANY):
        keys = [key for key in LOWERINGS if key.startswith(f"{scope}/") and "*" in key]
        found += [(re.compile(translate(key[len(scope) + 1 :])), key) for key in keys]
    return found

"""What an answer is made by, and how far it is: the version of this package, its catalogues and its
models; what long work calls as it goes.

Functions that take long call a `Begin` before each part of their work; whoever calls them shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TypeAlias, TypeVar

_HERE = Path(__file__).parents[1]
_FOLDERS = {
    "catalogue": ("hardware/catalogue", "workload/catalogue", "lowering/host/catalogue"),
    "models": ("cost/bundled", "cost/coefficients", "cost/collectives"),
}
"""Of each fingerprint; trees lie beside a manifest that holds their digests."""
_DIGITS = 12

OWN_MODELS: ContextVar[str] = ContextVar("OWN_MODELS", default="")
"""Digest of the model directory that a user chose, and models chosen by name (`matmul=heuristic`);
empty where the package's models answer as they are."""


@contextmanager
def answered_by(manifest: Path | None, kernels: str = "") -> Iterator[None]:
    """Within it, answers name the user's models that this file is of, and besides, `kernels` that
    were chosen by name; None changes nothing."""
    own = f"{OWN_MODELS.get()} {kernels}".strip()
    if manifest is not None:
        import hashlib

        own = hashlib.sha256(manifest.read_bytes()).hexdigest()[:_DIGITS]
    token = OWN_MODELS.set(own)
    try:
        yield
    finally:
        OWN_MODELS.reset(token)


@cache
def _fingerprint(name: str) -> str:
    """Of the files in these folders: their names and contents."""
    import hashlib  # a table for people needs none

    digest = hashlib.sha256()
    for folder in _FOLDERS[name]:
        for path in sorted((_HERE / folder).rglob("*")):
            if path.suffix in (".toml", ".json"):
                digest.update(path.relative_to(_HERE).as_posix().encode() + b"\n")
                digest.update(path.read_bytes())
    return digest.hexdigest()[:_DIGITS]


def made_by(own_models: str | None = None) -> dict[str, str]:
    """`{"perfmodel": version, "catalogue": …, "models": …}`, the last two as fingerprints.

    `own_models` are the models that a user chose (default: those in use here).
    """
    from perfmodel import __version__

    own = OWN_MODELS.get() if own_models is None else own_models
    found = {"perfmodel": __version__, **{name: _fingerprint(name) for name in _FOLDERS}}
    return found | ({"own_models": own} if own else {})


Begin: TypeAlias = Callable[[str, int, int], object]
"""Gets what begins, how much of the work is done by then, and how much there is in the same unit
(parts, rows); 0 and 0 where that is not known."""
Part = TypeVar("Part")


def silent(what: str, done: int, total: int) -> None:
    """The `Begin` of who shows nothing."""


def begun(
    parts: Collection[Part], begin: Begin, name: Callable[[Part], object] = str
) -> Iterator[Part]:
    """Each of `parts`, after `begin` was called with its `name`."""
    for position, part in enumerate(parts):
        begin(str(name(part)), position, len(parts))
        yield part

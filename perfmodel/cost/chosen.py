"""Which model answers for a family of kernels, by name.

`learned`, the default, is physics times what trees know of its error, where they were fitted;
`heuristic` is physics alone; others are of plug-ins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

from perfmodel.base.provenance import answered_by
from perfmodel.base.registry import offered
from perfmodel.cost.contract import COLLECTIVE, KERNELS, KernelModel, checked
from perfmodel.cost.learned.store import default_models
from perfmodel.errors import ModelError, UsageError
from perfmodel.hardware import Device

HEURISTIC, LEARNED = "heuristic", "learned"
GPU, CPU = "gpu", "cpu"
KIND = {"cuda": GPU, "rocm": GPU, "cpu": CPU}
Chosen: TypeAlias = tuple[tuple[str, str], ...]
Kernels: TypeAlias = str | Mapping[str, str] | Chosen
"""Family to the name of its model: `matmul=heuristic,embedding=learned`, a mapping, or pairs."""
_CHOSEN: ContextVar[Chosen] = ContextVar("kernel models by name", default=())


def kernels_in_use() -> Chosen:
    """Families whose model was chosen, each with its name."""
    return _CHOSEN.get()


@contextmanager
def using_kernels(given: Kernels | None) -> Iterator[None]:
    """Within it, models answer for families by those names; nothing given changes nothing.

    Raises `UsageError` for a family or a name that is not known.
    """
    before = _CHOSEN.get()
    chosen = tuple({**dict(before), **_checked(given)}.items()) if given else before
    if chosen == before:
        yield
        return
    token = _CHOSEN.set(chosen)
    try:
        with answered_by(None, ",".join(map("=".join, chosen))):
            yield
    finally:
        _CHOSEN.reset(token)


def _checked(given: Kernels) -> dict[str, str]:
    if isinstance(given, str):
        words = [word.partition("=") for word in given.split(",")]
        if unclear := [family for family, equals, _ in words if not equals]:
            raise UsageError(f"--kernels {unclear[0]!r}: expected FAMILY=NAME, as matmul=heuristic")
        given = tuple((family.strip(), name.strip()) for family, _, name in words)
    known: dict[str, set[str]] = {}
    for text in KERNELS:
        _, family, name = text.split("/")
        if family != COLLECTIVE:  # which several models share: links, networks, hosts
            known.setdefault(family, {LEARNED}).add(name)
    for family, name in dict(given).items():
        if family not in known:
            raise UsageError(f"--kernels: unknown family {offered(family, sorted(known))}")
        if name not in known[family]:
            there = ", ".join(sorted(known[family]))
            raise UsageError(f"--kernels {family}={name}: {family} has {there}")
    return dict(given)


def not_learned() -> list[str]:
    """A note for each family that was to be `learned` and has no trees."""
    chosen = [family for family, name in kernels_in_use() if name == LEARNED]
    return [
        f"--kernels {family}=learned: nothing was fitted to its measurements, physics answers"
        for family in chosen
        if family not in default_models()
    ]


def chosen_model(family: str, device: Device) -> KernelModel:
    """The model that answers for `family` on `device`; `ModelError` where there is none."""
    kind, named = KIND[device.target], dict(kernels_in_use()).get(family, LEARNED)
    if named == LEARNED:
        fitted = default_models() if kind == GPU else {}
        if family in fitted:
            return fitted[family]
        named = HEURISTIC
    name = f"{kind}/{family}/{named}"
    if name not in KERNELS:
        there = [
            text.rpartition("/")[2] for text in KERNELS if text.startswith(f"{kind}/{family}/")
        ]
        told = f"the family {family!r} on a {device.target} device"
        raise ModelError(f"no kernel model for {told}: {offered(named, there)}")
    return checked(KERNELS[name], name)

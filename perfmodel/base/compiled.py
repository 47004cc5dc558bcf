"""Functions compiled by Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from perfmodel.base.lazy import library

F = TypeVar("F", bound=Callable[..., Any])
numba = library("numba")


def compiled(**options: Any) -> Callable[[F], F]:
    """Compile a function on its first call, and keep the result beside it or in the user's cache.

    Where neither folder can be written, it is compiled anew in every process.
    """

    def made(function: F) -> F:
        try:
            machine_code: F = numba.njit(cache=True, **options)(function)
        except RuntimeError:
            machine_code = numba.njit(**options)(function)
        return machine_code

    return made

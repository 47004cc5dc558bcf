"""perfmodel: how long will one batch take on this hardware, and why?

The public names load on first use, so that importing the package costs nothing and the collector
runs where only PyTorch and NumPy are installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfmodel.trace import Trace, read

__version__ = "0.1.0"

_PUBLIC = {
    "Trace": "perfmodel.trace",
    "read": "perfmodel.trace",
}

__all__ = ["Trace", "__version__", "read"]


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'perfmodel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

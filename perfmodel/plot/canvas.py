"""Figures that need no window system, and writing them to files."""

from __future__ import annotations

import re
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.errors import UsageError
from perfmodel.files import atomic_write
from perfmodel.plot.style import look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Per format that can be written: what keeps two runs alike, byte by byte."""


def new_figure(width_in: float, height_in: float) -> Figure:
    """An empty figure in this project's style, drawn without pyplot and without a display.

    It shows itself in a notebook also where pyplot was never imported. Call within `look()`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    figure._repr_png_ = partial(_png, figure)  # type: ignore[attr-defined]
    return figure


def save(figure: Figure, path: Path | str) -> None:
    """Write `figure` to `path` as its suffix says (png, svg or pdf), whole or not at all.

    Raises `UsageError` for any other suffix and `PerfmodelError` where it cannot be written.
    """
    path = Path(path)
    suffix = path.suffix.lstrip(".").lower()
    if suffix not in _METADATA:
        known = ", ".join(f".{name}" for name in _METADATA)
        raise UsageError(f"{path}: figures are written as one of {known}; found '{path.suffix}'")
    with look(), atomic_write(path) as file:
        figure.savefig(file, format=suffix, metadata=_METADATA[suffix])


def svg_text(figure: Figure) -> str:
    """`figure` as an `<svg>` element, no wider than its place; texts stay texts."""
    content = BytesIO()
    with look():
        figure.savefig(content, format="svg", metadata=_METADATA["svg"])
    return _placed(content.getvalue().decode())


def _placed(document: str) -> str:
    """The element without the document around it; its height follows from its width."""
    element = document[document.index("<svg") :].strip()
    head, rest = element.split(">", 1)
    return re.sub(r' height="[^"]*"', "", head) + ' role="img">' + rest


def _png(figure: Figure) -> bytes:
    content = BytesIO()
    with look():
        figure.savefig(content, format="png", dpi=figure.dpi)
    return content.getvalue()

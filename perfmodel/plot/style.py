"""One look for all figures: colours, canvas, axes, legends, files; nothing global is changed.

The strong colours are those of Okabe and Ito, which people with colour-blindness can distinguish:
work of the device stands out, the host is pale, waiting is pink to brown, what has no reason is
black.

Source: M. Okabe, K. Ito, "Color Universal Design", 2008.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.files import atomic_write
from perfmodel.base.registry import library
from perfmodel.base.units import US_PER_MS, US_PER_S
from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


INK = "#222222"
FAINT = "#8A8A8A"


def _palette(text: str) -> dict[str, str]:
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


KIND_COLOURS = _palette(
    "kernel #0072B2 collective #D55E00 copy #009E73 host #B5CBDD launch #E8D44D sync #CC79A7 wait "
    "#E7BCD3 allocator #8C510A mark #222222 offload #01665E"
)
"""Colour of a piece of a timeline, by its kind."""
CAUSE_COLOURS = _palette(
    "compute #0072B2 communication #D55E00 memcpy #009E73 host_t1 #56B4E9 host_t2 #7B5EA7 host_t3 "
    "#A58CC7 host_t4 #E8D44D host_t5 #CFC0E0 host_op_without_launch #8FD1C3 launch_latency "
    "#B59B2B blocking_call #CC79A7 hidden_sync #93306B allocator #8C510A launch_queue_full "
    "#DFC27D other_stream #5A5A5A sm_occupancy #35577A collective_wait #F4A582 data_loading "
    "#01665E before_window #DADADA recording_missing #B8B8B8 end_of_step #EFEBD8 unexplained "
    "#000000 waiting_for_input #C7E9C0"
)
"""Colour of a stretch of time, by what it is due to."""
FURTHER_COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7B5EA7"),
    *("#8C510A", "#8FD1C3", "#5A5A5A", "#F4A582", "#CFC0E0", "#01665E", "#DFC27D"),
)
"""What names that have no colour of their own take, in order."""
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Per format that can be written: what keeps two runs alike, byte by byte."""


def look() -> AbstractContextManager[None]:
    """A context in which matplotlib draws in this style; what was set before returns after it."""
    style = Path(__file__).with_name("perfmodel.mplstyle")
    return library("matplotlib").rc_context(fname=style)  # type: ignore[no-any-return]


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """A colour per name: its own if it is a known cause or kind.

    Any other name takes the next colour that no name before it has; the answer depends on the
    names and their order alone.
    """
    names = list(dict.fromkeys(names))
    known = KIND_COLOURS | CAUSE_COLOURS
    taken = {known[name] for name in names if name in known}
    spare = [each for each in FURTHER_COLOURS if each not in taken] or list(FURTHER_COLOURS)
    rest = [name for name in names if name not in known]
    chosen = known | {name: spare[at % len(spare)] for at, name in enumerate(rest)}
    return {name: chosen[name] for name in names}


def text_colour(background: str) -> str:
    """White, or dark where that reads better on a `#rrggbb` colour.

    Source: relative luminance of sRGB (WCAG 2.1), with an exponent of 2.2.
    """
    red, green, blue = (int(background[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return "white" if 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 < 0.25 else INK


@contextmanager
def panels(
    width_in: float, height_in: float, rows: int = 1, columns: int = 1
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A new figure and its axes, to be drawn on in this project's style. It needs no display, and
    shows itself in a notebook without pyplot."""
    with look():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        FigureCanvasAgg(figure)
        shown = partial(_drawn, figure, "png", dpi=figure.dpi)
        figure._repr_png_ = shown  # type: ignore[attr-defined]
        yield figure, figure.subplots(rows, columns, squeeze=False).ravel().tolist()


def _drawn(figure: Figure, form: str, **more: Any) -> bytes:
    content = BytesIO()
    with look():
        figure.savefig(content, format=form, metadata=_METADATA[form], **more)
    return content.getvalue()


def save(figure: Figure, path: Path | str) -> None:
    """Write `figure` to `path` as its suffix says (png, svg or pdf), whole or not at all.

    Raises `UsageError` for any other suffix and `PerfmodelError` where it cannot be written.
    """
    path = Path(path)
    suffix = path.suffix.lstrip(".").lower()
    if suffix not in _METADATA:
        known = ", ".join(f".{name}" for name in _METADATA)
        raise UsageError(f"{path}: figures are written as one of {known}; found '{path.suffix}'")
    with atomic_write(path) as file:
        file.write(_drawn(figure, suffix))


class Frame(Protocol):
    """Columns by name."""

    def __getitem__(self, name: str, /) -> Any: ...

    def __contains__(self, name: str, /) -> bool: ...


def floats(frame: Frame, name: str) -> NDArray[np.float64]:
    """The column `name` as numbers. Raises `UsageError` where there is none."""
    return np.asarray(_column(frame, name), dtype=np.float64)


def texts(frame: Frame, name: str) -> NDArray[np.object_]:
    """The column `name` as texts. Raises `UsageError` where there is none."""
    return np.asarray([str(value) for value in _column(frame, name)], dtype=object)


def _column(frame: Frame, name: str) -> Any:
    if name not in frame:
        raise UsageError(f"the frame has no column '{name}'")
    return frame[name]


class Entry(NamedTuple):
    """One line of a legend; without a colour it is a heading."""

    colour: str | None
    text: str


def draw_legend(axes: Axes, entries: list[Entry], *, with_path: bool = False) -> None:
    """Draw the entries beside the axes, on the right; the critical path before the headings."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(facecolor=e.colour or "none", label=e.text) for e in entries]
    if with_path:
        first_heading = next((i for i, e in enumerate(entries) if e.colour is None), len(entries))
        path = Line2D([], [], color=INK, linewidth=1.1, label="critical path")
        handles.insert(first_heading, path)
    if not handles:
        return
    legend = axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.005, 1.0), borderaxespad=0.0,
        handlelength=1.1, handleheight=0.9, labelspacing=0.35, handletextpad=0.5,
    )  # fmt: skip
    headings = {entry.text for entry in entries if entry.colour is None}
    for text in legend.get_texts():
        if text.get_text() in headings:
            text.set_fontweight("bold")


def time_axis(axes: Axes, span_us: float, text: str, *, most_ticks: int, room_frac: float) -> None:
    """Make x an axis of time from 0 to `span_us` and `room_frac` of it more, in its best unit.

    Data stay in microseconds; the ticks stand at round numbers of the unit.
    """
    from matplotlib.ticker import MaxNLocator

    per_unit, unit = (US_PER_MS, "ms") if span_us >= 2 * US_PER_MS else (1.0, "us")
    if span_us >= 10 * US_PER_S:
        per_unit, unit = US_PER_S, "s"
    limit_us = (1 + room_frac) * span_us
    locator = MaxNLocator(nbins=most_ticks, steps=[1, 2, 2.5, 5, 10])
    values = np.asarray(locator.tick_values(0, span_us / per_unit), dtype=np.float64)
    values = values[values * per_unit <= limit_us]
    axes.set_xlim(0, limit_us)
    axes.set_xticks(values * per_unit, [f"{value:g}" for value in values.tolist()])
    axes.set_xlabel(f"{text} ({unit})")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)


def write_numbers(axes: Axes, log: str = "") -> None:
    """Write the ticks of both axes as numbers without powers of ten; axes of `log` are logarithmic,
    with ticks at 1, 2 and 5."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for letter in log:
        getattr(axes, f"set_{letter}scale")("log")
        axis = getattr(axes, f"{letter}axis")
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_formatter(NullFormatter())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))

"""One colour per thing and one look for all figures; nothing global is changed.

The strong colours are those of Okabe and Ito, which people with colour-blindness can distinguish:
work of the device stands out, the host is pale, waiting is pink to brown, what has no reason is
black.

Source: M. Okabe, K. Ito, "Color Universal Design", 2008.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

INK = "#222222"
FAINT = "#8A8A8A"
GRID = "#E3E3E3"
OTHER_COLOUR = "#C8C8C8"


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
SCOPE_COLOURS = _palette(
    "comm #D55E00 exposed_comm #D55E00 overlapped_comm #E9A877 host #B5CBDD idle #EDEDED"
)
"""Colour of a scope of what-ifs or a row of an accounting, where no cause has that name."""
FAMILY_COLOURS = _palette(
    "matmul #0072B2 convolution #2A4B8D attention #7B5EA7 embedding #E69F00 elementwise #56B4E9 "
    "optimizer #CC79A7 memcpy_host #009E73 memset #A6DBC8 reduction #9AC7D9 norm #B8A9C9 "
    "gather_scatter #F0E442 other #C8C8C8"
)
"""Colour of a kernel family; the others take one of `FURTHER_COLOURS`."""
TEXTS: dict[str, str] = {
    "host_t1": "T1 between ops",
    "host_t2": "T2 before first launch",
    "host_t3": "T3 after last launch",
    "host_t4": "T4 launch call",
    "host_t5": "T5 between launches",
    "host_op_without_launch": "op without launch",
    "kernel": "compute kernel",
    "host": "host (ops and gaps)",
    "launch": "launch call",
    "wait": "return from a wait",
    "collective_wait": "waiting for other ranks",
    "waiting_for_input": "waiting for input",
    "offload": "rows beside the device",
}
"""What a figure calls a kind or cause whose name alone says little."""
FURTHER_COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7B5EA7"),
    *("#8C510A", "#8FD1C3", "#5A5A5A", "#F4A582", "#CFC0E0", "#01665E", "#DFC27D"),
)
"""What names that have no colour of their own take, in order."""

_LOOK: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8.0,
    "text.color": INK,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8.0,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.6,
    "axes.facecolor": "white",
    "axes.grid": False,
    "axes.unicode_minus": False,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.fontsize": 7.5,
    "legend.title_fontsize": 8.0,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "figure.dpi": 110.0,
    "savefig.dpi": 160.0,
    "savefig.facecolor": "white",
    "patch.linewidth": 0.0,
    "text.usetex": False,
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "perfmodel",
    "pdf.fonttype": 42,
}


def readable(name: str) -> str:
    """The text of a legend for a cause, kind, scope or family."""
    return TEXTS.get(name, name.replace("_", " "))


def look() -> AbstractContextManager[None]:
    """A context in which matplotlib draws in this style; what was set before returns after it."""
    import matplotlib

    return matplotlib.rc_context(_LOOK)


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """A colour per name: its own if it is a known cause, scope, kind or family.

    Any other name takes the next colour that no name before it has; the answer depends on the
    names and their order alone.
    """
    names = list(dict.fromkeys(names))
    known = FAMILY_COLOURS | KIND_COLOURS | SCOPE_COLOURS | CAUSE_COLOURS
    chosen = {name: known[name] for name in names if name in known}
    free = [colour for colour in FURTHER_COLOURS if colour not in chosen.values()]
    rest = [name for name in names if name not in known]
    spare = free or list(FURTHER_COLOURS)
    chosen |= {name: spare[i % len(spare)] for i, name in enumerate(rest)}
    return {name: chosen[name] for name in names}


def is_dark(colour: str) -> bool:
    """Whether white text reads better on a `#rrggbb` colour than dark text.

    Source: relative luminance of sRGB (WCAG 2.1), with an exponent of 2.2.
    """
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return bool(0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 < 0.25)

"""The pictures of the documentation: draws all of them, or says which no longer show what is true.

    python tests/docs/pictures.py [--check] [WORD ...]

Draws those whose names hold a WORD, or all. Each carries in its metadata what can be read on it:
titles, legends and points of a figure, the words of a page. `--check` works that out anew, without
drawing, and exits with 1 where it differs: pixels may, since fonts and browsers do.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from difflib import unified_diff
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
sys.path[:0] = [str(ROOT)]  # started as a file

from perfmodel import breakdown, predict, read  # noqa: E402
from perfmodel.plot.style import look  # noqa: E402
from perfmodel.reporting.tables import median_step, straggler_text  # noqa: E402
from perfmodel.reporting.written import page_of  # noqa: E402

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEY = "shown"
"""Of the metadata of a PNG file: what can be read on it."""
MEASURED = {
    "scaling.png": "benchmarks/scaling.py --figure",
    "sweep_scaling.png": "benchmarks/sweep.py --figure",
}
"""Times of a machine: only measuring again says whether they hold (docs/releasing.md)."""
WIDE = ("--window-size=1000,1330",)
PHONE = ("--window-size=500,1240", "--blink-settings=preferredColorScheme=0")


def timeline() -> Figure:
    """Several ranks, of which one holds the others up: the median step of the one it waits for."""
    found = breakdown(read(Path(os.environ["PERFMODEL_REFERENCE"]) / "traces" / "dlrm_v100x8"))
    rank = found.ranks[0]
    figure = found.plot(rank.rank, median_step(rank.steps).index)
    assert found.waiting is not None
    figure.axes[0].set_title(straggler_text(found.waiting.to_dict()), loc="left")
    return figure


def design_gains(name: str) -> Figure:
    from benchmarks import design_gains

    figure: Figure = getattr(design_gains, name)()
    return figure


def page() -> str:
    """A trace of two ranks: the step, who holds the others up, gains, and the timeline."""
    name = "traces/cpu_dlrm_2rank"
    trace = replace(read(ROOT / name), source=name)
    return page_of(predict(trace), trace, name)


FIGURES: Mapping[str, Callable[[], Figure]] = {
    "timeline.png": timeline,
    "hotline_gains.png": lambda: design_gains("hotline_gains"),
    "smartnic_gains.png": lambda: design_gains("smartnic_gains"),
}
SCREENS = {"report.png": WIDE, "report_phone.png": PHONE}
DRAWN = (*FIGURES, *SCREENS)


def shown_by_figure(figure: Figure) -> list[str]:
    """Its texts but for those of ticks, and the points of its curves to three digits."""
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

    texts = {each.get_text() for each in figure.findobj(Text)}
    curves = (line.get_xydata().tolist() for line in figure.findobj(Line2D))
    points = {" ".join(f"{x:.3g}" for point in curve for x in point) for curve in curves}
    return sorted(filter(None, {" ".join(text.split()) for text in texts | points}))


def shown_by_page(html: str) -> list[str]:
    """Its words, but for scripts, styles and figures."""
    bare = re.sub(r"(?s)<(script|style|svg)\b.*?</\1>", " ", html)
    lines = (" ".join(unescape(line).split()) for line in re.split(r"<[^>]*>", bare))
    return list(filter(None, lines))


def stamped(path: Path) -> list[str]:
    """What a picture said that it shows; nothing where it does not say."""
    from PIL import Image

    with Image.open(path) as image:
        return str(image.info.get(KEY, "")).splitlines()


def stamp(path: Path, shown: list[str]) -> None:
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_text(KEY, "\n".join(shown), zip=True)
    with Image.open(path) as image:
        image.convert("RGB").save(path, optimize=True, pnginfo=info)


def screen(html: str, path: Path, options: tuple[str, ...]) -> None:
    """What a browser shows of the page, without a network."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        sys.exit("pictures: Chromium draws pages, and is not installed")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "page.html"
        source.write_text(html)
        quiet = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
        own = (f"--user-data-dir={folder}/profile", f"--screenshot={path}")
        waits = ("--virtual-time-budget=5000", *options)
        command = [browser, *quiet, *own, *waits, source.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


def update(name: str, *, check: bool) -> Iterator[str]:
    """Draws a picture, or says in which lines it is stale."""
    path = IMAGES / name
    if name == "timeline.png" and "PERFMODEL_REFERENCE" not in os.environ:
        print(f"{name}: left as it is, without PERFMODEL_REFERENCE", file=sys.stderr)
        return
    with look():
        made = FIGURES[name]() if name in FIGURES else page()
    shown = shown_by_page(made) if isinstance(made, str) else shown_by_figure(made)
    if check:
        yield from unified_diff(stamped(path), shown, f"{name}, drawn", "now", lineterm="", n=0)
        return
    if isinstance(made, str):
        screen(made, path, SCREENS[name])
    else:
        with look():
            made.savefig(path, dpi=110 if "gains" in name else 160)
    stamp(path, shown)


def main(words: list[str]) -> int:
    wanted = [word for word in words if word != "--check"] or [""]
    stale = []
    for name in DRAWN:
        if any(word in name for word in wanted):
            stale += update(name, check="--check" in words)
    print("\n".join(stale) or "pictures: as they should be")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The page of a prediction: complete by itself, safe, the same every time, alive in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from perfmodel import predict, read
from perfmodel.cli.prediction_options import read_demo
from perfmodel.hardware import load
from perfmodel.prediction import Prediction
from perfmodel.report.page import page_html
from perfmodel.report.page_parts import data, sortable

MOST_BYTES = 3_000_000
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="module")
def prediction() -> Prediction:
    trace, _ = read_demo()
    return predict(trace)


def test_a_replay_on_a_cpu_claims_no_device(prediction: Prediction) -> None:
    page = page_html(prediction)
    assert "90 % interval" in page
    assert "device busy" not in page


def test_a_prediction_from_shapes_has_both() -> None:
    trace, _ = read_demo()
    page = page_html(predict(trace, hardware=["v100-sxm2-16gb"]))
    assert "90 % interval" in page
    assert "device busy" in page


class Checked(HTMLParser):
    """Elements that were closed in the order in which they were opened, and what they load."""

    ALONE = ("meta", "link", "br", "path", "use", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.loads += [found[key] or "" for key in ("src", "href") if key in found]
        if "id" in found:
            self.ids.append(found["id"] or "")
        if tag not in self.ALONE:
            self.opened.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for key, value in attrs if key in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.ALONE:
            assert self.opened.pop() == tag


def test_the_page_needs_nothing_else(prediction: Prediction) -> None:
    page = page_html(prediction)
    found = Checked(page)
    assert found.opened == []
    assert all(place.startswith(("#", "data:,")) for place in found.loads)
    assert {"summary", "timeline", "why", "tables", "hardware", "notes"} <= set(found.ids)


def test_the_same_prediction_gives_the_same_bytes(prediction: Prediction) -> None:
    assert page_html(prediction) == page_html(prediction)


def test_the_timeline_holds_the_step(prediction: Prediction) -> None:
    """Of each row, starts are kept as distances; boxes lie within the step, in order."""
    page = page_html(prediction)
    text = re.search(r'id="timeline-data">(.*?)</script>', page, re.DOTALL)
    assert text
    views = json.loads(text.group(1))
    assert [view["name"].partition(",")[0] for view in views] == ["predicted", "measured"]
    result = prediction.results[0]
    step_us = result.timeline.step_us[result.median_mark]
    assert views[0]["span"] == pytest.approx(step_us * 10, abs=1)
    for row in views[0]["rows"]:
        at = 0
        for distance, length in zip(row["start"], row["length"], strict=True):
            assert distance >= 0
            at += distance
            assert at + length <= views[0]["span"] + 1


def test_names_in_a_trace_are_texts_and_nothing_else(prediction: Prediction) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    shown = replace(prediction, source=prediction.source | {"trace": evil}, warnings=[evil])
    page = page_html(shown)
    assert "<img" not in page
    assert "</script>" not in data("x", {"name": evil}).removesuffix("</script>")
    assert "<img" not in sortable([evil], [[evil]], evil)


def test_figures_of_the_hardware_stand_with_their_sources(prediction: Prediction) -> None:
    page = page_html(prediction, [load("h100-sxm")])
    assert "hbm_gb_per_s" in page
    assert "Figures of h100-sxm" in page


def test_a_large_trace_makes_a_page_of_less_than_three_megabytes(reference: Path) -> None:
    trace = read(reference / "traces" / "dlrm_v100x8" / "kineto_rank0.json.gz")
    assert len(page_html(predict(trace)).encode()) < MOST_BYTES


SCRIPT = """<script>
const told = {};
const table = document.querySelector("#tables table.sortable:last-of-type");
const column = table.tHead.rows[0].cells.length - 1;
const value = (row) => Number(row.cells[column].dataset.value);
const values = () => [...table.tBodies[0].rows].map(value);
const button = table.tHead.rows[0].cells[column].querySelector("button");
button.click(); told.down = values(); button.click(); told.up = values();
told.sort = table.tHead.rows[0].cells[column].getAttribute("aria-sort");
const canvas = document.querySelector("#timeline canvas");
const span = () => Number(canvas.dataset.to) - Number(canvas.dataset.from);
canvas.focus(); told.focused = document.activeElement === canvas;
told.whole = span();
for (const key of ["+", "+", "ArrowRight"])
  canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
told.near = span(); told.from = Number(canvas.dataset.from);
canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "0", bubbles: true }));
told.again = span();
const pen = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
const pixel = (_, at) => pen.slice(4 * at, 4 * at + 3).join();
told.colours = new Set(Array.from({ length: pen.length / 4 }, pixel)).size;
const result = document.createElement("pre");
result.id = "shown"; result.textContent = JSON.stringify(told); document.body.append(result);
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_in_a_browser_tables_sort_and_the_timeline_zooms_by_keyboard(
    prediction: Prediction, tmp_path: Path
) -> None:
    assert CHROMIUM
    page = tmp_path / "page.html"
    page.write_text(page_html(prediction).replace("</body>", SCRIPT))
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [CHROMIUM, *QUIET, profile, "--enable-logging=stderr", "--dump-dom", page.as_uri()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in ran.stderr
    found = re.search(r'<pre id="shown">(.*?)</pre>', ran.stdout, re.DOTALL)
    assert found
    told = json.loads(found.group(1))
    assert told["down"] == sorted(told["down"], reverse=True)
    assert told["up"] == told["down"][::-1] or sorted(told["up"]) == told["up"]
    assert (told["sort"], told["focused"]) == ("ascending", True)
    assert told["near"] == pytest.approx(0.49 * told["whole"])
    assert told["from"] > 0
    assert told["again"] == told["whole"]
    assert told["colours"] > 5


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_the_page_prints(prediction: Prediction, tmp_path: Path) -> None:
    assert CHROMIUM
    page, paper = tmp_path / "page.html", tmp_path / "page.pdf"
    page.write_text(page_html(prediction))
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [CHROMIUM, *QUIET, profile, f"--print-to-pdf={paper}", page.as_uri()]
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    assert paper.read_bytes().startswith(b"%PDF")

"""The page of a prediction: complete by itself, safe, the same every time, alive in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tiny import Tiny

import perfmodel.prediction.gains as gains_module
from perfmodel import breakdown, predict, read
from perfmodel.prediction import Prediction
from perfmodel.prediction.breakdown.tables import MAX_ROWS
from perfmodel.reporting.broken_down import BreakdownPage, gain_blocks
from perfmodel.reporting.page import data, page_html, sortable
from perfmodel.reporting.predicted import prediction_blocks
from perfmodel.reporting.tables import Block, Table, columns
from perfmodel.reporting.tracks import Shown, Source, Tables
from perfmodel.reporting.written import gains_of, page_of

MAX_BYTES = 3_000_000
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="module")
def prediction() -> Prediction:
    return predict("demo:")


@pytest.fixture(scope="module")
def page(prediction: Prediction) -> str:
    return page_html(prediction)


def test_a_replay_on_a_cpu_claims_no_device(page: str) -> None:
    assert ">low<" in page
    assert "GPU active" not in page


def test_a_prediction_from_shapes_has_both() -> None:
    page = page_html(predict("demo:", hardware=["v100-sxm2-16gb"]))
    assert ">low<" in page
    assert "GPU active" in page


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


def test_the_page_needs_nothing_else(page: str) -> None:
    found = Checked(page)
    assert found.opened == []
    assert all(place.startswith(("#", "data:,")) for place in found.loads)
    assert {"summary", "timeline", "tables", "notes"} <= set(found.ids)


@pytest.mark.slow
def test_the_page_of_a_trace_has_all_that_breakdown_prints(reference: Path) -> None:
    trace = read(reference / "traces" / "dlrm_v100x8")
    prediction, found = predict(trace), breakdown(trace)
    helps = gains_of(prediction, "name")
    ((gains, _),) = helps
    page = page_html(prediction, helps, trace, found)
    shown = BreakdownPage(found, MAX_ROWS)
    blocks: list[Block] = [*shown.ranks(), *gain_blocks(gains), *shown.hotspots()]
    for rank in found.ranks:
        blocks += [*shown.causes(rank), *shown.details(rank)]
    tables = [each for each in blocks if isinstance(each, Table)]
    assert len(tables) > 20
    assert [each.title for each in tables if sortable(each) not in page] == []
    lines = [each for each in blocks if isinstance(each, str)]
    assert [line for line in lines if escape(line.strip()) not in page] == []
    title = re.search(r"<h1>(.*?)</h1>", page)
    assert title
    assert escape(shown.verdict(found.slowest, gains)) == title[1]


def test_families_of_predicted_kernels_are_named_in_gains() -> None:
    ((gains, lost),) = gains_of(predict("demo:", hardware=["v100-sxm2-16gb"]), None)
    assert gains
    assert not lost
    assert {gain.command for gain in gains} == {""}
    assert not any(gain.name.startswith("other ") for gain in gains)


def test_where_the_work_was_not_recorded_no_gain_is_denied() -> None:
    t = Tiny()
    t.op("aten::mm", 0, 100)
    t.call("cudaLaunchKernel", 10, 20)
    page = page_of(predict(t.trace()), t.trace(), None)
    assert "Largest gains: no GPU work was recorded, but 1 launch call" in page
    assert "no what-if alone gains" not in page


def test_what_helps_that_cannot_be_worked_out_costs_no_page(
    prediction: Prediction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gains_module, "measured", [].pop)
    helps = gains_of(prediction, None)
    assert "could not be worked out" in page_html(prediction, helps)


def test_the_title_is_the_verdict_of_the_terminal() -> None:
    prediction = predict("criteo-kaggle", hardware=["dgx-a100-80gb", "dgx-h100"])
    _, verdict, *_ = prediction_blocks(prediction)
    assert f"<h1>{verdict}</h1>" in page_html(prediction)


def test_the_same_prediction_gives_the_same_bytes(prediction: Prediction, page: str) -> None:
    assert page_html(prediction) == page


def test_the_timeline_holds_the_step(prediction: Prediction, page: str) -> None:
    """Of each row, starts are kept as distances; boxes lie within the step, in order."""
    views = views_of(page)
    first = {view["mode"].partition(",")[0]: view for view in reversed(views["views"])}
    assert set(first) == {"predicted", "measured"}
    result = prediction.results[0]
    step_us = result.timeline.step_us[result.median_mark]
    assert first["predicted"]["span"] == pytest.approx(step_us * 10, abs=1)
    assert first["predicted"]["length"] == pytest.approx(step_us * 10, abs=1)
    for view in views["views"]:
        for row in view["rows"]:
            at = 0
            for distance, length in zip(row["start"], row["length"], strict=True):
                assert distance >= 0
                at += distance
                assert at + length <= view["span"] + 1


def views_of(page: str) -> dict[str, Any]:
    text = re.search(r'id="timeline-data">(.*?)</script>', page, re.DOTALL)
    assert text
    found: dict[str, Any] = json.loads(text.group(1))
    return found


def test_the_timeline_holds_all_ranks_and_the_path_of_the_last(
    reference: Path,
) -> None:
    trace = read(reference / "traces" / "dlrm_v100x8")
    prediction = predict(trace)
    page = page_html(prediction, trace=trace)
    assert len(page.encode()) < MAX_BYTES
    view = views_of(page)["views"][0]
    path, *rows = view["rows"]
    assert {row["rank"] for row in rows} == {0, 1, 2, 3}
    assert path["rank"] is None
    measured = prediction.results[0].rank.measured
    assert measured is not None
    assert sum(path["length"]) == pytest.approx(measured["step_us"] * 10, rel=0.02)
    on_path = {view["rows"][row]["rank"] for row, _, _ in view["path"]}
    assert on_path == {prediction.results[0].rank.rank}


def test_a_box_says_its_operators_inputs_and_launch(reference: Path) -> None:
    trace = read(reference / "traces" / "dlrm_v100x8" / "kineto_rank0.json.gz")
    views = views_of(page_html(predict(trace), trace=trace))
    (row,) = (r for r in views["views"][0]["rows"] if r["name"].endswith("gpu0 stream7"))
    at = next(i for i, about in enumerate(row["about"]) if about and row["launch"][i] > 0)
    facts = dict(map(tuple, views["notes"][row["about"][at]]))
    assert {"operator", "inputs", "launched by"} <= set(facts)
    assert facts["launched by"].startswith("cudaLaunchKernel on ")
    assert "after" in dict(map(tuple, views["notes"][row["after"][at]]))


def test_a_view_with_too_many_boxes_holds_the_longest(prediction: Prediction) -> None:
    result = prediction.results[0]
    shown = Shown("predicted", result.timeline, result.median_mark, False)
    tables = Tables()
    source = Source(shown, None, tables)
    whole, part = (source.view(result.median_mark, most) for most in (10**6, 50))
    lengths = sorted(n for row in whole["rows"][1:] for n in row["length"])
    kept = [n for row in part["rows"][1:] for n in row["length"]]
    assert 0 < len(kept) <= 50
    assert min(kept) >= lengths[-51] - 1
    assert "left out" in part["note"]


def test_names_in_a_trace_are_texts_and_nothing_else(prediction: Prediction) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    shown = replace(prediction, source=prediction.source | {"trace": evil}, warnings=[evil])
    page = page_html(shown)
    assert "<img" not in page
    assert "</script>" not in data("x", {"name": evil}).removesuffix("</script>")
    assert "<img" not in sortable(Table(evil, columns("name"), [{"name": evil}]))


def test_a_large_trace_makes_a_page_of_less_than_three_megabytes(reference: Path) -> None:
    trace = read(reference / "traces" / "dlrm_v100x8" / "kineto_rank0.json.gz")
    assert len(page_html(predict(trace)).encode()) < MAX_BYTES


SCRIPT = """<script>
const wait = setInterval(() => {
if (!document.querySelector("#timeline canvas").dataset.ready) return;
clearInterval(wait);
const told = {};
const table = document.querySelector("#tables table.sortable:last-of-type");
const shown = () => [...table.tBodies[0].rows].filter((row) => !row.hidden).length;
const [filter, more] = table.querySelectorAll(".tools > *");
told.first = shown(); more.click(); told.every = [shown(), table.tBodies[0].rows.length];
filter.value = "addmm"; filter.dispatchEvent(new Event("input")); told.filtered = shown();
const link = [...table.tBodies[0].rows].find((row) => !row.hidden).querySelector("td button");
link.click();
const text = (selector) => document.querySelector(selector).textContent;
told.linked = [text("#detail dl"), text("#hits")];
document.activeElement.blur();
filter.value = ""; filter.dispatchEvent(new Event("input"));
const value = (row) => Number(row.cells[0].dataset.value);
const values = () => [...table.tBodies[0].rows].map(value);
const button = table.tHead.rows[0].cells[0].querySelector("button");
button.click(); told.down = values(); button.click(); told.up = values();
told.sort = table.tHead.rows[0].cells[0].getAttribute("aria-sort");
const canvas = document.querySelector("#timeline canvas");
const span = () => Number(canvas.dataset.to) - Number(canvas.dataset.from);
const box = canvas.getBoundingClientRect();
const wheel = (more) => canvas.dispatchEvent(new WheelEvent("wheel",
  { deltaY: -1, clientX: box.left + box.width / 2, bubbles: true, cancelable: true, ...more }));
told.whole = span();
told.scrolls = wheel({}); told.still = span();
wheel({ ctrlKey: true }); told.wheeled = span();
const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
press("0");
canvas.focus(); told.focused = document.activeElement === canvas;
["+", "+", "ArrowRight"].forEach(press);
told.near = span(); told.from = Number(canvas.dataset.from);
press("0"); told.again = span();
canvas.setPointerCapture = () => {};
const now = canvas.getBoundingClientRect();
const spot = { clientX: now.left + 160, clientY: now.top + 24 + 3 + 8, bubbles: true };
for (const kind of ["pointerdown", "pointerup"]) canvas.dispatchEvent(new PointerEvent(kind, spot));
told.detail = document.querySelector("#detail dl").textContent;
told.open = !document.querySelector("#detail").hidden;
press("Escape"); told.closed = document.querySelector("#detail").hidden;
const search = document.querySelector("#timeline input[type=search]");
search.value = "addmm"; search.dispatchEvent(new Event("input"));
told.hits = document.querySelector("#hits").textContent;
search.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" })); told.found = span();
const legend = [...document.querySelectorAll(".legend li")];
told.legend = legend.map((item) => item.textContent);
told.swatches = legend.map((item) => item.querySelector("i").style.background);
press("0");
setTimeout(() => {
  const pen = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const pixel = (_, at) => pen.slice(4 * at, 4 * at + 3).join();
  told.colours = new Set(Array.from({ length: pen.length / 4 }, pixel)).size;
  told.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const result = document.createElement("pre");
  result.id = "shown"; result.textContent = JSON.stringify(told); document.body.append(result);
}, 200);
}, 50);
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("size", ["1440,900", "390,800"])
def test_in_a_browser_it_does_what_it_says(page: str, tmp_path: Path, size: str) -> None:
    assert CHROMIUM
    file = tmp_path / "page.html"
    allowed = re.sub(r"script-src '[^']*'", "script-src 'unsafe-inline'", page)
    file.write_text(allowed.replace("</body>", SCRIPT))
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    options = (*QUIET, profile, f"--window-size={size}", "--virtual-time-budget=5000")
    command = [CHROMIUM, *options, "--enable-logging=stderr", "--dump-dom", file.as_uri()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in ran.stderr
    found = re.search(r'<pre id="shown">(.*?)</pre>', ran.stdout, re.DOTALL)
    assert found
    told = json.loads(unescape(found.group(1)))
    assert told["first"] == 12
    assert len(set(told["every"])) == 1
    assert 0 < told["filtered"] < 12
    assert "ddmm" in told["linked"][0]
    assert re.match(r"[1-9]\d* boxes", told["linked"][1])
    assert told["down"] == sorted(told["down"], reverse=True)
    assert told["up"] == sorted(told["up"])
    assert (told["sort"], told["focused"]) == ("ascending", True)
    assert told["scrolls"]
    assert told["still"] == told["whole"]
    assert told["wheeled"] == pytest.approx(0.8 * told["whole"])
    assert told["near"] == pytest.approx(0.49 * told["whole"])
    assert told["from"] > 0
    assert told["again"] == told["whole"]
    assert (told["open"], told["closed"]) == (True, True)
    assert "critical path" in told["detail"]
    assert re.match(r"\d+ boxes", told["hits"])
    assert told["found"] < told["whole"]
    assert len(set(told["legend"])) == len(told["legend"]) == len(set(told["swatches"]))
    assert told["colours"] > 5
    assert told["wide"] <= 0, "the page scrolls sideways"


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_browser_runs_no_other_script(page: str, tmp_path: Path) -> None:
    assert CHROMIUM
    file = tmp_path / "page.html"
    foreign = '<script>document.body.id = "foreign"</script></body>'
    file.write_text(page.replace("</body>", foreign))
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [CHROMIUM, *QUIET, profile, "--virtual-time-budget=2000", "--dump-dom", file.as_uri()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert '<body id="foreign"' not in ran.stdout
    assert re.search(r'<canvas[^>]*style="height: \d+px', ran.stdout), "its own did not run"


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_the_page_prints(page: str, tmp_path: Path) -> None:
    assert CHROMIUM
    file, paper = tmp_path / "page.html", tmp_path / "page.pdf"
    file.write_text(page)
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [CHROMIUM, *QUIET, profile, f"--print-to-pdf={paper}", file.as_uri()]
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    assert paper.read_bytes().startswith(b"%PDF")

"""Names in a trace are text: in the page, its script and its figures."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import cycle
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from cli.conftest import Run
from cli.samples import document, write

from perfmodel.cli import main

EVIL = (
    "javascript:alert(1)",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><script>alert(1)</script>",
    "<!--<svg onload=alert(1)>",
    "$\\frac{a}{b}$ & \u202e",
)


def hostile(*names: str) -> dict[str, Any]:
    """A trace in which operators and kernels have these names in turn, the thread and the device
    all of them."""
    content, in_turn = document(steps=3), cycle(names)
    for event in content["traceEvents"]:
        if event["cat"] in ("cpu_op", "kernel"):
            event["name"] = next(in_turn) + event["name"]
    name = " ".join(names)
    content["deviceProperties"][0]["name"] = name
    thread = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": name}}
    content["traceEvents"].append(thread)
    return content


class Elements(HTMLParser):
    """The tags of a page, and attributes that run something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.running: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for key, value in attributes:
            is_inert = key.startswith("data-")  # names that the page looks up
            runs = (value or "").strip().lower().startswith("javascript:") and not is_inert
            if key.startswith("on") or runs:
                self.running.append(f"{tag} {key}={value}")


def elements(page: Path) -> Elements:
    found = Elements()
    found.feed(page.read_text("utf-8"))
    return found


def test_names_add_no_element_to_the_page(run: Run, tmp_path: Path) -> None:
    pages = []
    for at, names in enumerate((EVIL, ("plain",))):
        trace = write(tmp_path / f"{at}.json", hostile(*names))
        pages.append(tmp_path / f"{at}.html")
        assert run("report", trace, "-o", pages[-1]).status == 0
    evil, plain = map(elements, pages)
    assert evil.running == plain.running == []
    assert sorted(set(evil.tags)) == sorted(set(plain.tags))
    assert evil.tags.count("script") == plain.tags.count("script")
    assert "img" not in evil.tags


def test_names_add_no_element_to_a_figure(run: Run, tmp_path: Path) -> None:
    trace, figure = write(tmp_path / "t.json", hostile(*EVIL)), tmp_path / "f.svg"
    assert run("breakdown", trace, "--figure", figure).status == 0
    tags = {re.sub(r"\{.*\}", "", each.tag) for each in ElementTree.parse(figure).iter()}
    assert not tags & {"script", "img", "foreignObject", "a"}


def test_names_reach_the_terminal_without_escapes(run: Run, tmp_path: Path) -> None:
    trace = write(tmp_path / "t.json", hostile(*(f"\x1b[2J{name}" for name in EVIL)))
    for verb in ("breakdown", "predict"):
        ran = run(verb, trace)
        assert ran.status == 0
        assert "\x1b" not in ran.out + ran.err


@pytest.mark.parametrize("odd", ["\udcff", "a\nb", "\x1b[31m"], ids=ascii)
def test_names_of_folders_are_said_as_text(
    odd: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Bytes that are no UTF-8, line ends, and what a terminal obeys; what was written stays."""
    folder = tmp_path / odd
    folder.mkdir()
    trace = write(folder / "trace.json", document())
    for number, words in enumerate((["export"], ["breakdown", "-f", "csv"], ["fit", "overheads"])):
        assert main([*words, str(trace), "-o", f"{folder}/{number}"]) == 0
        said = capfd.readouterr()
        assert "\x1b" not in said.out + said.err
        assert all("perfmodel: " in line for line in said.err.splitlines())

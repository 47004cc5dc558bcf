"""Links between pages lead to files and headings that are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs.pages import ROOT

_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
_FENCED = re.compile(r"^```.*?^```", re.M | re.S)
_MARKUP = re.compile(r"\[([^\]]*)\]\([^)]*\)|[`*]")


def anchors(page: str) -> set[str]:
    """Of its headings, as `toc` and `attr_list` of Python-Markdown make them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", _FENCED.sub("", page), re.M):
        words, _, named = heading.partition(" {#")
        kept = re.sub(r"[^\w\s-]", "", _MARKUP.sub(r"\1", words)).strip().lower()
        found.add(named.rstrip("}") or re.sub(r"[-\s]+", "-", kept))
    return found


def dead(page: Path) -> Iterator[str]:
    for path, anchor in _LINK.findall(_FENCED.sub("", page.read_text())):
        target = (page.parent / path).resolve() if path else page
        is_there = target.exists()
        if is_there and anchor and target.suffix == ".md":
            is_there = anchor in anchors(target.read_text())
        if not is_there:
            yield f"{path}#{anchor}" if anchor else path


def test_a_heading_is_found_by_its_words() -> None:
    page = "# A `b`, [c](d.md)!\n```\n# no\n```\n## Words {#name}\n"
    assert anchors(page) == {"a-b-c", "name"}


@pytest.mark.parametrize(
    "page",
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "traces" / "README.md"],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_no_link_is_dead(page: Path) -> None:
    assert list(dead(page)) == []

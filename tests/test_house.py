"""Order in the house: sizes of files, rooms, the public names and what is shipped."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import house
import pytest
from house import PACKAGE, ROOT

import perfmodel

DOCS = ROOT / "docs"
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_no_file_is_long_without_a_reason() -> None:
    assert not house.too_long(), (
        f"split it, or say in its first lines why it is longer than {house.MAX_LINES} lines"
    )


def test_a_reason_in_the_first_lines_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, excused = tmp_path / "perfmodel" / "a.py", tmp_path / "perfmodel" / "b.py"
    long.parent.mkdir()
    body = "x = 1\n" * house.MAX_LINES
    long.write_text('"""One purpose."""\n' + body)
    excused.write_text('"""Longer than 400 lines: one table of the standard."""\n' + body)
    monkeypatch.setattr(house, "ROOT", tmp_path)
    assert house.too_long() == ["perfmodel/a.py: 401 lines"]


def test_no_file_imports_one_that_imports_it_back() -> None:
    assert not house.circle()


def test_a_circle_is_found_also_within_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "perfmodel"
    package.mkdir()
    (package / "a.py").write_text("from perfmodel import b")
    (package / "b.py").write_text("def later():\n    from perfmodel.a import x")
    monkeypatch.setattr(house, "PACKAGE", package)
    assert set(house.circle()) == {"perfmodel.a", "perfmodel.b"}


def test_rooms_keep_to_their_budget() -> None:
    text = (ROOT / house.BUDGET).read_text(encoding="utf-8")
    assert not house.over_budget(house.rooms(), text, text)


def test_a_budget_is_not_raised_without_a_reason(tmp_path: Path) -> None:
    room = house.Room("trace", {tmp_path / "read.py": 30}, ())
    old, raised = "[trace]\nlines = 20", '[trace]\nlines = 40\nwhy = "rocpd"'
    assert house.over_budget([room], old, old) == ["trace: 30 lines, 20 allowed"]
    assert house.over_budget([room], raised, old) == []
    assert house.over_budget([room], raised.replace("40", "50"), raised) == [
        "trace: raised to 50 lines; say `why`"
    ]


def test_every_package_is_in_the_table_of_the_architecture() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    table = text[text.index("## Packages") : text.index("## Reading")]
    named = {name.removesuffix(".py").rstrip("/") for name in re.findall(r"`([\w./]+)`", table)}
    rooms = {room for floor in house.layers() for room in floor} - {"__main__"}
    assert not rooms - named


def test_public_names_are_listed_in_the_documentation() -> None:
    text = (DOCS / "python.md").read_text(encoding="utf-8")
    table = text[text.index("## Public names") :]
    listed = re.findall(r"^\| `(\w+)` \|", table, re.M)
    assert sorted(listed) == sorted(perfmodel.__all__)


def test_every_file_beside_the_code_is_shipped() -> None:
    globs = SETTINGS["tool"]["setuptools"]["package-data"]["perfmodel"]
    shipped = {path for pattern in globs for path in PACKAGE.glob(pattern) if path.is_file()}
    there = {
        path
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix != ".py" and path.parent.name != "__pycache__"
    }
    assert not sorted(str(path.relative_to(PACKAGE)) for path in there - shipped)
    assert PACKAGE / "py.typed" in shipped


def test_the_version_is_semantic_and_in_the_changelog() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(-[0-9A-Za-z.]+)?", perfmodel.__version__)
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first = re.findall(r"^## (\S+)", text, re.M)[0]
    assert first in ("Unreleased", perfmodel.__version__)

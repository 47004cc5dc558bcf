"""Pictures say what can be read on them; `pictures.py --check` compares that with what is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docs.pages import PAGES

from docs import pictures


def test_every_picture_is_drawn_by_the_script_and_stands_on_a_page() -> None:
    names = {path.name for path in pictures.IMAGES.iterdir()}
    assert names == {*pictures.DRAWN, *pictures.MEASURED}
    linked = {name for page in PAGES for name in re.findall(r"images/([\w.]+)\)", page.read_text())}
    assert linked == names


def test_a_stale_picture_is_told_by_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    Image.new("RGB", (2, 2)).save(tmp_path / "report.png")
    monkeypatch.setattr(pictures, "IMAGES", tmp_path)
    monkeypatch.setattr(pictures, "page", lambda: "<p>3.77 ms</p><script>no</script>")
    assert "+3.77 ms" in list(pictures.update("report.png", check=True))
    pictures.stamp(tmp_path / "report.png", ["3.77 ms"])
    assert list(pictures.update("report.png", check=True)) == []
    pictures.stamp(tmp_path / "report.png", ["3.82 ms"])
    assert list(pictures.update("report.png", check=True))[-2:] == ["-3.82 ms", "+3.77 ms"]

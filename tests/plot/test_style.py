"""Colours that can be told apart, files that are whole, and nothing global changed."""

from itertools import combinations
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.plot import breakdown_figure, colours_of, save
from perfmodel.plot.style import CAUSE_COLOURS, FURTHER_COLOURS, KIND_COLOURS
from perfmodel.timeline.graph.kinds import Cause, NodeKind

DEUTERANOPIA = np.array(
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
)
"""On linear RGB. Source: Machado, Oliveira, Fernandes, IEEE TVCG 15(6), 2009, severity 1.0."""
PARTS = {"": {"compute": 1.0}}


def test_every_cause_and_kind_has_its_colour() -> None:
    assert set(CAUSE_COLOURS) == {cause.name.lower() for cause in Cause}
    assert set(KIND_COLOURS) == {kind.name.lower() for kind in NodeKind}
    assert len(set(CAUSE_COLOURS.values())) == len(CAUSE_COLOURS)


@pytest.mark.parametrize(
    "names",
    [
        ["kernel", "collective", "copy", "allocator"],
        ["host", "launch", "sync", "allocator"],
        ["compute", "communication", "memcpy", "host_t1", "blocking_call", "unexplained"],
        ["host_t1", "host_t2", "host_t4", "host_t5"],
    ],
)
def test_what_stands_side_by_side_differs_without_green_cones(names: list[str]) -> None:
    colours = colours_of(names)
    seen = {n: (DEUTERANOPIA @ np.array(to_rgb(c)) ** 2.2).clip(0, 1) for n, c in colours.items()}
    for one, other in combinations(names, 2):
        distance = np.linalg.norm(seen[one] ** (1 / 2.2) - seen[other] ** (1 / 2.2))
        assert distance > 0.12, (one, other)


def test_unknown_names_get_different_colours() -> None:
    colours = colours_of(["compute", "mine", "yours", "mine"])
    assert colours["compute"] == CAUSE_COLOURS["compute"]
    assert set(colours.values()) <= {CAUSE_COLOURS["compute"], *FURTHER_COLOURS}
    assert len(set(colours.values())) == 3


@pytest.mark.parametrize(
    ("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_files_by_suffix_are_the_same_each_time(tmp_path: Path, suffix: str, magic: bytes) -> None:
    contents = []
    for name in ("a", "b"):
        save(breakdown_figure(PARTS), tmp_path / f"{name}.{suffix}")
        contents.append((tmp_path / f"{name}.{suffix}").read_bytes())
    assert contents[0].startswith(magic)
    assert contents[0] == contents[1]


def test_an_unknown_suffix_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.png, \.svg, \.pdf; found '\.bmp'"):
        save(breakdown_figure(PARTS), tmp_path / "figure.bmp")
    with pytest.raises(PerfmodelError, match="cannot be written"):
        save(breakdown_figure(PARTS), tmp_path / "none" / "figure.png")
    assert list(tmp_path.iterdir()) == []


def test_names_are_no_markup_in_svg(tmp_path: Path) -> None:
    save(
        breakdown_figure({"": {"<script>x</script> $a_b$": 1.0}}),
        tmp_path / "f.svg",
    )
    text = (tmp_path / "f.svg").read_text()
    assert "<script>" not in text
    assert "&lt;script&gt;x&lt;/script&gt; $a b$" in text


def test_drawing_changes_nothing_global() -> None:
    before = dict(matplotlib.rcParams)
    figure = breakdown_figure(PARTS)
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert dict(matplotlib.rcParams) == before

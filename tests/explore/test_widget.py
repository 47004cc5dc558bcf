"""The explorer, moved as a user would move it, without a browser."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import perfmodel
from perfmodel.errors import LibraryError, UsageError
from perfmodel.explore.widget import USUAL_AXES
from perfmodel.workload.load import FOLDER

pytest.importorskip("ipywidgets")
SPEC = {
    "workload": "criteo-kaggle",
    "axes": {"batch": [2048, 4096], "hardware": ["dgx-a100-80gb", "dgx-h100"], "nodes": [1]},
}


def parts(widget: Any) -> tuple[Any, dict[str, Any], Any, Any]:
    knobs, shown = widget.children
    return knobs.children[0], {each.tooltip: each for each in knobs.children[1:]}, *shown.children


def test_a_control_moves_the_chart_and_the_words() -> None:
    across, controls, chart, said = parts(perfmodel.explore(SPEC))
    assert list(controls) == ["batch", "hardware", "nodes"]
    assert across.value == "batch"
    first, words = bytes(chart.value), said.value
    assert first.startswith(b"\x89PNG")
    step = perfmodel.predict("criteo-kaggle", hardware="dgx-a100-80gb", batch=2048).results[0]
    assert words.startswith(f"{step.text}, {2048 / step.step_us:,.2f} M samples/s")
    controls["hardware"].value = "dgx-h100"
    assert bytes(chart.value) != first
    assert said.value.startswith("dgx-h100")
    across.value = "hardware"
    assert said.value.startswith("dgx-h100")


def test_a_file_is_of_a_workload_or_of_a_sweep(tmp_path: Path) -> None:
    own, swept = tmp_path / "own.toml", tmp_path / "sweep.toml"
    own.write_text((FOLDER / "criteo-kaggle.toml").read_text())
    swept.write_text('workload = "own.toml"\n[axes]\nbatch = [2048, 4096]\nhardware = ["t4"]\n')
    assert list(parts(perfmodel.explore(own))[1]) == list(USUAL_AXES)
    assert list(parts(perfmodel.explore(swept))[1]) == ["batch", "hardware"]


def test_a_point_that_cannot_be_says_why() -> None:
    given = {"workload": "nvidia-dlrm-extra-large", "hardware": "t4", "axes": {"batch": [65536]}}
    said = parts(perfmodel.explore(given))[-1]
    assert "memory" in said.value or "fit" in said.value


def test_without_ipywidgets_it_says_in_a_line_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(LibraryError, match="ipywidgets is not installed: `pip install ipywidgets`"):
        perfmodel.explore(SPEC)


def test_the_package_stays_one_that_has_names() -> None:
    from perfmodel.explore import load_spec

    assert perfmodel.explore.load_spec is load_spec
    assert "sensitivity" in dir(perfmodel.explore)


@pytest.mark.parametrize(("given", "across"), [(SPEC, "speed"), (SPEC | {"axes": {}}, None)])
def test_what_is_no_axis_is_an_error(given: dict[str, Any], across: str | None) -> None:
    given = given | {"hardware": "dgx-h100"} if not given["axes"] else given
    with pytest.raises(UsageError, match="expected an axis"):
        perfmodel.explore(given, across)

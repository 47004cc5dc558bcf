"""Coefficients are data: each with value, unit and source, each read, none hidden in code.

`python tests/cost/test_coefficients.py` writes `docs/coefficients.md`.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
COST = ROOT / "perfmodel" / "cost"
FILES = sorted((COST / "coefficients").glob("*.toml"))
PAGE = ROOT / "docs" / "coefficients.md"
KEYS = {"value", "unit", "meaning", "source", "fitted_on", "range"}
ROOMS = ("gpu", "collectives")
DEFINITIONS = {
    "BYTES_PER_US": "1 GB/s in bytes per microsecond",
    "CODECS": "bytes of the formats on the wire",
    "_RING_TURNS": "how often a ring sends the payload",
    "KNOTS": "grid of the learned curves",
    "RATES_GB_PER_S": "grid of the learned curves",
    "Z90": "quantile of the normal distribution",
    "_COUNT": "range of what a file may say",
    "_RATE": "range of what a file may say",
    "_POINT": "range of what a file may say",
    "_WIRES": "range of what a file may say",
    "_LARGEST": "range of what a file may say",
}
INTRO = """# Coefficients and their sources

Figures that were fitted, read from a source or assumed. They stand in
`perfmodel/cost/coefficients/*.toml`. This list is generated from those files:
`python tests/cost/test_coefficients.py`. "not recorded" means that nobody wrote down where a
figure is from. Coefficients that fits write (`fitted.json`, bundled trees) are not listed.
"""


def entries() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in FILES:
        for module, group in tomllib.loads(path.read_text("utf-8")).items():
            for name, entry in group.items():
                yield f"{path.stem}.{module}.{name}", entry


def used() -> set[str]:
    """`ROOM.MODULE.NAME` of every figure that a module of `perfmodel/cost` asks for."""
    found = set()
    for path in COST.rglob("*.py"):
        calls = [
            node
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Call) and len(node.args) == 1
            if isinstance(node.args[0], ast.Constant)
        ]
        groups = {
            str(call.args[0].value)
            for call in calls
            if isinstance(call.func, ast.Name) and call.func.id == "coefficients"
        }
        names = [
            call.args[0].value
            for call in calls
            if isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Name)
            and call.func.value.id == "_C"
        ]
        found |= {f"{group}.{name}" for group in groups for name in names}
    return found


def hidden(source: str) -> list[str]:
    """Names of module-level constants with a float other than 0 and 1 in their value."""
    found = []
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        floats = [
            part.value
            for part in ast.walk(node.value)
            if isinstance(part, ast.Constant) and isinstance(part.value, float)
        ]
        if any(value not in (0.0, 1.0) for value in floats):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found += [
                part.id for each in targets for part in ast.walk(each) if isinstance(part, ast.Name)
            ]
    return found


def page() -> str:
    lines, heading = [INTRO], ""
    for name, entry in entries():
        group, _, key = name.rpartition(".")
        if group != heading:
            heading = group
            lines.append(f"\n## {group}\n\n| Name | Value | Unit | Meaning | Source |")
            lines.append("|---|---|---|---|---|")
        value = entry["value"]
        if isinstance(value, dict):
            value = ", ".join(f"{each} {figure}" for each, figure in value.items())
        source = entry["source"]
        for more, words in (("fitted_on", "fitted on"), ("range", "range")):
            source += f"; {words}: {entry[more]}" if more in entry else ""
        cells = (f"`{key}`", value, entry["unit"], entry.get("meaning", ""), source)
        lines.append("| " + " | ".join(str(each).replace("|", "\\|") for each in cells) + " |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(("name", "entry"), list(entries()))
def test_each_has_value_unit_and_source(name: str, entry: dict[str, Any]) -> None:
    assert entry.keys() <= KEYS, name
    assert entry["value"] is not None
    assert entry["unit"].strip()
    assert entry["source"].strip()


def test_each_is_read_and_no_other_asked_for() -> None:
    assert {name for name, _ in entries()} == used()


@pytest.mark.parametrize("room", ROOMS)
def test_no_figure_hides_in_code(room: str) -> None:
    found = {
        f"{path.relative_to(COST)}: {name}"
        for path in (COST / room).rglob("*.py")
        for name in hidden(path.read_text("utf-8"))
        if name not in DEFINITIONS
    }
    assert found == set()


def test_a_hidden_figure_is_noticed() -> None:
    assert hidden("_A, B = 2.5, 1\nC: float = 0.0\nD = {'x': (3, 0.4)}") == ["_A", "B", "D"]


def test_the_page_lists_them() -> None:
    assert PAGE.read_text("utf-8") == page()


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")

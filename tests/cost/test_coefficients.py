"""Coefficients are data: each with value, unit and source, each read, none hidden in code.

`python tests/cost/test_coefficients.py` writes `docs/coefficients.md`.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from perfmodel.cost.coefficients import (
    Group,
    cached_with_reads,
    coefficient_reads,
    coefficients,
    reading,
)
from perfmodel.hardware import device
from perfmodel.ops.rows import Rows
from perfmodel.prediction.explain.modelled import model_reason

ROOT = Path(__file__).parents[2]
COST = ROOT / "perfmodel" / "cost"
FILES = sorted((COST / "coefficients").glob("*.toml"))
PAGE = ROOT / "docs" / "coefficients.md"
KEYS = {"value", "unit", "meaning", "source", "fitted_on", "range"}
METHODS = ("table", "tuples", "rows")
COMPUTED = {
    "name": ("passes", "on_chip_passes"),
    "f'{unit}_tiles'": ("vector_tiles", "matrix_tiles"),
}
"""Arguments of methods that are no texts, and what they can be."""
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
    """`PACKAGE.MODULE.NAME` of every coefficient that a module of the package asks for."""
    found = set()
    for path in (ROOT / "perfmodel").rglob("*.py"):
        text = path.read_text("utf-8")
        if "coefficients(" in text or "parameters(" in text:
            found |= asked_for(text)
    return found


def asked_for(source: str) -> set[str]:
    """Attributes and tables of groups that are bound to a name, or asked for on the spot."""
    tree, groups, found = ast.parse(source), {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets = node.targets[0]
            names = targets.elts if isinstance(targets, ast.Tuple) else [targets]
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for name, value in zip(names, values, strict=False):
                if isinstance(name, ast.Name) and group_of(value):
                    groups[name.id] = group_of(value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            group = groups.get(getattr(node.value, "id", None)) or group_of(node.value)
            if group and node.attr not in METHODS:
                found.add(f"{group}.{node.attr}")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            group = groups.get(getattr(node.func.value, "id", None))
            if group and node.func.attr in METHODS:
                found |= {f"{group}.{name}" for name in texts(node.args[0])}
    return found


def group_of(node: ast.AST) -> str | None:
    """`gpu.matmul` of `coefficients("gpu.matmul")`."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "coefficients":
        return str(ast.literal_eval(node.args[0]))
    return None


def texts(node: ast.expr) -> set[str]:
    """The names that an argument stands for: itself, or those of `COMPUTED`."""
    if isinstance(node, ast.Constant):
        return {str(node.value)}
    return set(COMPUTED[ast.unparse(node)])


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


def test_reads_are_logged_while_someone_reads() -> None:
    group = coefficients("gpu.program")
    before = group.strided
    with reading() as outer:
        with reading() as inner:
            assert group.strided == before
        assert group.table("traffic")["cat"] > 1.0
    assert inner == {"gpu.program.strided"}
    assert outer == {"gpu.program.strided", "gpu.program.traffic"}
    assert type(group) is Group
    (first, second) = coefficient_reads(outer)
    assert (first.name, first.value, first.unit) == ("gpu.program.strided", before, "ratio")
    assert second.source.startswith("as `latency_us`")


def test_what_a_cached_answer_read_is_logged_again() -> None:
    group = coefficients("gpu.program")
    known = cached_with_reads(cache, lambda key: key * group.least)
    assert known(2.0) == 2.0 * group.least
    with reading() as log:
        known(2.0)
    assert log == {"gpu.program.least"}


@pytest.mark.parametrize("hardware", ["a100-sxm-80gb", "epyc-7742"])
def test_an_explanation_names_the_same_each_time(hardware: str) -> None:
    rows = Rows.of([{"op": "linear", "m": 512, "n": 512, "k": 512}])
    first, second = (model_reason(rows, device(hardware)).coefficients for _ in range(2))
    assert first == second
    assert first


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

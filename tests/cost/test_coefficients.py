"""Coefficients are data: each with value, unit and source, each read, none hidden in code.

`python tests/cost/test_coefficients.py` writes `docs/coefficients.md`.
"""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from perfmodel.cost.coefficients import coefficients
from perfmodel.cost.contract import coefficients_of
from perfmodel.cost.models import ANALYSES
from perfmodel.errors import ModelError
from perfmodel.hardware import device
from perfmodel.ops.rows import Rows
from perfmodel.prediction.explain import reason_of_row

ROOT = Path(__file__).parents[2]
COST = ROOT / "perfmodel" / "cost"
FILES = sorted((COST / "coefficients").glob("*.toml"))
PAGE = ROOT / "docs" / "coefficients.md"
KEYS = {
    *("value", "unit", "meaning", "source", "fitted_on", "rows"),
    *("range", "effect", "from_figures"),
}
FIGURES = "from_figures"
OPEN = ("learned", "durations.py", "host")
"""Folders and files whose numbers stay in code: shapes of learned features, which change with the
trees that were fitted to them; the reach of a learned growth; quantiles of what a host takes."""
ARITHMETIC = {0.0, 0.5, 1.0, 2.0}
ALLOWED = {
    ("collectives/learned.py", 0.7): "the most that trees correct",
    ("collectives/learned.py", 150.0): "grid of the learned curves",
    ("collectives/learned.py", 225.0): "grid of the learned curves",
    ("collectives/learned.py", 1.645): "quantile of the normal distribution",
    ("cpu/terms.py", 3.0): "end of a search for an exponent",
    ("gpu/embedding.py", 8.0): "bits of a byte",
    ("cpu/terms.py", 5e-4): "half of a FLOP's nanosecond in microseconds",
}
"""Floats in code that are no coefficients, and why."""
FEWEST_ROWS = 10
PUBLIC = re.compile(
    r"\baten/|ATen/|\b[\w-]+/[\w.-]+(@[0-9a-f]{8}|, )|\bPyTorch[ ,]|FBGEMM,|cuDNN \d|glibc|Linux"
    r"|et al\.|Lavin and Gray|[Ww]hite ?paper|[Gg]uide|data ?sheet|descriptions"
    r"|forums\.developer|standard|specification"
)
"""A data sheet, a paper or a line of public source."""
INTRO = """# Coefficients and their sources

Figures that were fitted, read from a source or assumed. They stand in
`perfmodel/cost/coefficients/*.toml`. This list is generated from those files:
`python tests/cost/test_coefficients.py`. A source that begins with "assumed"
names a choice without a measurement, and why; `effect` says what a wrong one changes, over random
kernels of its heuristic on six devices (learned corrections, where a device has them, make up for
part of it). Coefficients that fits write (`fitted.json`, bundled trees) are not listed.
"""
FITTED = """
## Parameters of CPUs

A calibration may hold them; all others are those of `cpu-epyc`, times by the speed of a thread,
rates by what data sheets say. `perfmodel fit device` finds the ratios and the cost of host work.

| Name | Unit | Meaning |
|---|---|---|"""


@cache
def every() -> tuple[tuple[str, dict[str, Any]], ...]:
    return tuple(
        (f"{path.stem}.{module}.{name}", entry)
        for path in FILES
        for module, group in tomllib.loads(path.read_text("utf-8")).items()
        for name, entry in group.items()
    )


def entries() -> list[tuple[str, dict[str, Any]]]:
    """Those that have a value; other parameters are the reference CPU's."""
    return [(name, entry) for name, entry in every() if "value" in entry]


def used() -> set[str]:
    """`PACKAGE.MODULE.NAME` of every coefficient that a module of the package asks for."""
    found = set()
    for path in (ROOT / "perfmodel").rglob("*.py"):
        text = path.read_text("utf-8")
        if "coefficients(" in text or "parameters(" in text:
            found |= asked_for(text)
    return found


def asked_for(source: str) -> set[str]:
    """Attributes and items of groups that are bound to a name, or asked for on the spot."""
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
            if group and node.attr != "entries":
                found.add(f"{group}.{node.attr}")
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            group = groups.get(getattr(node.value, "id", None)) or group_of(node.value)
            found |= {f"{group}.{node.slice.value}"} if group else set()
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "parameters":
            group = getattr(node.args[0], "value", None) if node.args else None
            found |= {
                name
                for name, entry in every()
                if name.startswith(f"{group}.") and ("value" not in entry or FIGURES in entry)
            }
    return found


def group_of(node: ast.AST) -> str | None:
    """`gpu.matmul` of `coefficients("gpu.matmul")`."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "coefficients":
        return getattr(node.args[0], "value", None)
    return None


def hidden(source: str) -> set[float]:
    """Floats anywhere in the code that are neither plain arithmetic nor a power of ten."""
    floats = {
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, float)
    }
    return {each for each in floats - ARITHMETIC if f"{each:e}".split("e")[0] != "1.000000"}


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
        for more, words in (
            ("fitted_on", "fitted on"),
            ("rows", "rows"),
            ("range", "range"),
            ("effect", "effect"),
        ):
            source += f"; {words}: {entry[more]}" if more in entry else ""
        lines.append(row_of(f"`{key}`", value, entry["unit"], entry.get("meaning", ""), source))
    lines += [FITTED]
    for name, entry in every():
        if "value" not in entry:
            lines.append(row_of(f"`{name}`", entry["unit"], entry["meaning"]))
    return "\n".join(lines) + "\n"


def row_of(*cells: object) -> str:
    return "| " + " | ".join(str(each).replace("|", "\\|") for each in cells) + " |"


def test_each_has_value_unit_and_source() -> None:
    for name, entry in every():
        assert entry.keys() <= KEYS, name
        assert entry["unit"].strip(), name
    for name, entry in entries():
        assert entry["value"] is not None, name
        assert entry["unit"].strip(), name
        assert entry["source"].strip(), name
        assert "not recorded" not in entry["source"], name


def test_every_family_of_kernels_lists_what_its_models_use() -> None:
    for family in ANALYSES:
        modules = {each.name.split(".")[1] for each in coefficients_of(family, "cuda")}
        assert {"heuristic", "program", "rates"} < modules, family
    (strided,) = (
        each for each in coefficients_of("vector", "cuda") if each.name == "gpu.program.strided"
    )
    assert (strided.value, strided.unit) == (coefficients("gpu.program").strided, "ratio")


def test_each_is_measured_often_published_or_says_that_it_is_assumed() -> None:
    known = dict(entries())
    for name, entry in known.items():
        source = entry["source"]
        while same := re.match(r"as `(?:\w+\.)?(\w+)`", source):
            entry = known[f"{name.rpartition('.')[0]}.{same[1]}"]
            source = entry["source"]
        is_grounded = re.match(r"assumed|by definition", source) or PUBLIC.search(source)
        assert is_grounded or entry.get("rows", 0) >= FEWEST_ROWS, (name, source)


def test_a_table_or_file_that_is_missing_is_named() -> None:
    with pytest.raises(ModelError, match=r"gpu\.toml: no coefficients \[nothing\.NAME\] in it"):
        coefficients("gpu.nothing")
    with pytest.raises(ModelError, match=r"nothing\.toml"):
        coefficients("nothing.streaming")


@pytest.mark.parametrize("hardware", ["a100-sxm-80gb", "epyc-7742"])
def test_an_explanation_names_the_same_each_time(hardware: str) -> None:
    rows = Rows.of([{"op": "linear", "m": 512, "n": 512, "k": 512}])
    first, second = (reason_of_row(rows, device(hardware)).coefficients for _ in range(2))
    assert first == second
    assert first


def test_each_is_read_and_no_other_asked_for() -> None:
    assert {name for name, _ in every()} == used()


def test_no_figure_hides_in_code() -> None:
    found = set()
    for path in COST.rglob("*.py"):
        name = path.relative_to(COST).as_posix()
        if not name.startswith(OPEN):
            found |= {(name, value) for value in hidden(path.read_text("utf-8"))}
    assert found == ALLOWED.keys()


def test_a_hidden_figure_is_noticed() -> None:
    assert hidden("_A = 2.5\nB = 1e-3 * 2.0\ndef f(x=0.4):\n    return 0.9 * x + 8") == {
        2.5,
        0.4,
        0.9,
    }


def test_the_page_lists_them() -> None:
    assert PAGE.read_text("utf-8") == page()


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")

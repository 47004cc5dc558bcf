"""Notebooks import what is public, from the top: `import perfmodel`, `from perfmodel import NAME`.

That their cells run and say what they said is checked by `python notebooks/execute.py --check`.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import perfmodel

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SPECIAL = ("__file__", "__version__")


def code_of(notebook: Path) -> str:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    sources = ("".join(each["source"]) for each in cells if each["cell_type"] == "code")
    return "\n".join(each for each in sources if not each.startswith("%%"))


def faults(code: str) -> Iterator[str]:
    """What `code` uses of perfmodel that is not public at the top, or in a room that is."""
    tree = ast.parse(code)
    rooms: dict[str, ModuleType] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names if each.name.startswith("perfmodel")]
            rooms |= {name: perfmodel for name in names if name == "perfmodel"}
            yield from (f"import {name}" for name in names if name != "perfmodel")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("perfmodel"):
            for each in node.names:
                if node.module != "perfmodel" or each.name not in perfmodel.__all__:
                    yield f"from {node.module} import {each.name}"
                elif isinstance(room := getattr(perfmodel, each.name), ModuleType):
                    rooms[each.asname or each.name] = room
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr not in SPECIAL:
            room = _room_of(node.value, rooms)
            if room is not None and node.attr not in room.__all__:
                yield ast.unparse(node)


def _room_of(value: ast.expr, rooms: dict[str, ModuleType]) -> ModuleType | None:
    if isinstance(value, ast.Name):
        return rooms.get(value.id)
    if isinstance(value, ast.Attribute):
        above = _room_of(value.value, rooms)
        room = getattr(above, value.attr, None) if above is perfmodel else None
        return room if isinstance(room, ModuleType) else None
    return None


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem[:2])
def test_a_notebook_uses_public_names_from_the_top(notebook: Path) -> None:
    assert not list(faults(code_of(notebook)))


def test_there_are_notebooks_that_use_it() -> None:
    assert len(NOTEBOOKS) >= 3
    assert sum("perfmodel" in code_of(each) for each in NOTEBOOKS) == len(NOTEBOOKS)


@pytest.mark.parametrize(
    "code",
    [
        "from perfmodel.hardware import load",
        "from perfmodel.base import registry",
        "import perfmodel.hardware",
        "import perfmodel\nperfmodel.timeline.schedule",
        "import perfmodel\nperfmodel.hardware.catalogue.load('t4')",
        "from perfmodel import designs as d\nd.neo.Neo()",
    ],
)
def test_what_is_not_public_is_found(code: str) -> None:
    assert len(list(faults(code))) == 1


def test_what_is_public_is_no_fault() -> None:
    code = "import perfmodel\nfrom perfmodel import plot as p, read\n"
    assert not list(faults(code + "p.save; perfmodel.hardware.load('t4').name; read('x').ranks"))

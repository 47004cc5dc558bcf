"""What benchmarks import is there: most of them run by hand alone."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_names_that_benchmarks_import_from_the_package_are_there() -> None:
    missing = []
    for path in sorted(BENCHMARKS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            home = getattr(node, "module", None) or ""
            if not home.startswith("perfmodel") or home.startswith("perfmodel.collect"):
                continue  # the collector imports PyTorch
            names = [each.name for each in getattr(node, "names", ())]
            missing += [f"{path.name}: {home}.{name}" for name in names if not _has(home, name)]
    assert not missing


def _has(home: str, name: str) -> bool:
    try:
        return hasattr(import_module(home), name) or bool(import_module(f"{home}.{name}"))
    except ModuleNotFoundError:
        return False

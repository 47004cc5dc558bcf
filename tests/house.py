"""What the house looks like: rooms from the top, their sizes, budgets and what each imports.

    python tests/house.py [BASE]   prints a table and the longest files; the change since BASE, a
                                   commit (default the last one)

`tests/budget.toml` holds the most lines that each room may have. Who raises one says why there.
The order of rooms is the contract of `lint-imports` in `pyproject.toml`, which holds the layers;
imports count wherever they stand in a file.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "perfmodel"
BUDGET = "tests/budget.toml"
WHERE_CODE_IS = ("perfmodel", "tests", "benchmarks", "notebooks")
MAX_LINES = 400
REASON = re.compile(rf"longer than {MAX_LINES} lines", re.IGNORECASE)
"""Stands in the first lines of a file that has a reason to be."""
FIRST_LINES = 20
LONGEST = 10


@dataclass(frozen=True)
class Room:
    """A package or module below `perfmodel`."""

    name: str
    files: dict[Path, int]
    """Lines of each."""
    imports: tuple[str, ...]
    """Other rooms, from the top."""


def layers() -> list[list[str]]:
    """Rooms from the top, those on one floor together."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    found = next(each["layers"] for each in contracts if each["type"] == "layers")
    return [re.findall(r"\w+", floor) for floor in found]


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def sources(*folders: str) -> dict[Path, int]:
    """Lines of every Python file below these folders of the checkout."""
    return {path: lines(path) for each in folders for path in sorted((ROOT / each).rglob("*.py"))}


def rooms() -> list[Room]:
    """From the top."""
    order = [name for floor in layers() for name in floor]
    found = []
    for name in order:
        alone = PACKAGE / f"{name}.py"
        paths = [alone] if alone.is_file() else sorted((PACKAGE / name).rglob("*.py"))
        used = {room for path in paths for room in _imported(path)} - {name}
        known = tuple(room for room in order if room in used)
        found.append(Room(name, {path: lines(path) for path in paths}, known))
    return found


def _imported(path: Path) -> Iterator[str]:
    """Rooms that a file imports from."""
    return (name.split(".")[1] for name in _names(path))


@cache
def _names(path: Path) -> list[str]:
    """What a file imports of ours, as modules and as names in them, also within functions."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            beside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = beside if node.module == "perfmodel" else [node.module, *beside]
        found += (name for name in names if name.startswith("perfmodel."))
    return found


def circle() -> list[str]:
    """Modules of which each imports the next, and the last the first; none where there are none.

    What packages pass on in their `__init__.py` is not followed.
    """
    files = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py"
    }
    graph = {name: set(_names(path)) & files.keys() for name, path in files.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def too_long() -> list[str]:
    """Files above the limit that do not say why."""
    return [
        f"{path.relative_to(ROOT)}: {count} lines"
        for path, count in sources(*WHERE_CODE_IS).items()
        if count > MAX_LINES and not REASON.search(_beginning(path))
    ]


def _beginning(path: Path) -> str:
    return "\n".join(path.read_text(encoding="utf-8").splitlines()[:FIRST_LINES])


def budget(text: str) -> dict[str, dict[str, str | int]]:
    """By room, its `lines` and `why` they were raised last, where they were."""
    return tomllib.loads(text)


def over_budget(known: list[Room], text: str, before: str) -> list[str]:
    """Rooms above their budget, and budgets that were raised since `before` without a new reason;
    `text` and `before` are contents of the budget's file."""
    now, then = budget(text), budget(before)
    allowed = {name: int(entry["lines"]) for name, entry in now.items()}
    found = [
        f"{room.name}: {sum(room.files.values())} lines, {allowed.get(room.name, 0)} allowed"
        for room in known
        if sum(room.files.values()) > allowed.get(room.name, 0)
    ]
    return found + [
        f"{name}: raised to {lines} lines; say `why`"
        for name, lines in allowed.items()
        if name in then
        and lines > int(then[name]["lines"])
        and now[name].get("why", "") in ("", then[name].get("why", ""))
    ]


def _git(*arguments: str) -> str:
    """What git prints; nothing where it fails, as outside of a checkout."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


def changed(base: str) -> dict[str, int]:
    """Lines more than in `base`, by room."""
    more: dict[str, int] = {}
    for line in _git("diff", "--numstat", base, "--", "perfmodel/*.py").splitlines():
        added, removed, path = line.split("\t")
        # A file that moved reads `perfmodel/{old => new}/name.py`.
        path = re.sub(r"\{.* => (.*)\}", r"\1", path).split(" => ")[-1].replace("//", "/")
        room = path.split("/")[1].removesuffix(".py")
        more[room] = more.get(room, 0) + int(added) - int(removed)
    return more


def main() -> None:
    base = sys.argv[1] if len(sys.argv) > 1 else "HEAD~1"
    known, more = rooms(), changed(base)
    text = (ROOT / BUDGET).read_text(encoding="utf-8")
    allowed = budget(text)
    print("| room | files | lines | budget | change | longest | imports |")
    print("|---|--:|--:|--:|--:|--:|---|")
    for room in known:
        counts, most = room.files.values(), allowed.get(room.name, {}).get("lines", "")
        cells = (room.name, len(counts), sum(counts), most, f"{more.get(room.name, 0):+}")
        print("| " + " | ".join(map(str, (*cells, max(counts), ", ".join(room.imports)))) + " |")
    ours = sources("perfmodel")
    print(f"\nperfmodel: {len(ours)} files, {sum(ours.values())} lines", end="")
    print(f" ({sum(more.values()):+} since {base})" if more else "")
    everything = sources(*WHERE_CODE_IS)
    print(f"with tests: {len(everything)} files, {sum(everything.values())} lines; the longest:")
    for path in sorted(everything, key=lambda each: -everything[each])[:LONGEST]:
        print(f"{everything[path]:5} {path.relative_to(ROOT)}")
    if problems := over_budget(known, text, _git("show", f"{base}:{BUDGET}")):
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()

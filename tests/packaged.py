"""A wheel and an sdist hold every file of the package, and the wheel works where no checkout is.

    python -m build && python tests/packaged.py dist

`python -m build` makes the wheel from the sdist, so a wheel that is whole shows that the sdist is.
The wheel is installed alone into an environment that finds its dependencies in this one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BESIDE = {"pyproject.toml", "README.md", "LICENSE"}
"""What an sdist holds besides the package."""
COMMANDS = (
    ("predict",),
    ("predict", "--workload", "criteo-kaggle", "--hardware", "dgx-a100-40gb", "-o", "step.json"),
    ("plan", "--workload", "torchrec-golden", "--hardware", "dgx-1"),
    ("kernel", "linear", "m=4096", "n=1024", "k=479", "--hardware", "h100-sxm"),
    ("kernel", "all_reduce", "size_bytes=1000000", "ranks=8", "--hardware", "dgx-a100-40gb"),
    ("hardware", "list"),
    ("report", "-o", "page.html"),
)
"""Each reads other files that are shipped beside the code."""
OTHERS = """import json, sys
from perfmodel.cli import main
sys.exit(any(map(main, json.loads(sys.argv[1]))))"""


def package_files() -> set[str]:
    """Files of the package in this checkout."""
    found = (path for path in (ROOT / "perfmodel").rglob("*") if path.is_file())
    return {str(p.relative_to(ROOT)) for p in found if p.parent.name != "__pycache__"}


def only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        sys.exit(f"{folder}: {len(found)} files {pattern}; expected one: empty it and build again")
    return found[0]


def faults(dist: Path) -> list[str]:
    """What is missing in the archives, or too much."""
    with zipfile.ZipFile(only(dist, "*.whl")) as wheel:
        in_wheel = {name for name in wheel.namelist() if ".dist-info/" not in name}
    with tarfile.open(only(dist, "*.tar.gz")) as sdist:
        in_sdist = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = package_files()
    return [
        *(f"wheel: no {name}" for name in sorted(wanted - in_wheel)),
        *(f"wheel: {name} is not in the checkout" for name in sorted(in_wheel - wanted)),
        *(f"sdist: no {name}" for name in sorted((wanted | BESIDE) - in_sdist)),
    ]


def works(wheel: Path, folder: Path) -> None:
    """Install the wheel and run its commands in an empty folder; raises where one fails."""
    environment, empty = folder / "environment", folder / "empty"
    empty.mkdir()
    venv.create(environment)
    python = environment / "bin" / "python"
    home = _ask(python, "import sysconfig; print(sysconfig.get_path('purelib'))", empty)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", home]
    subprocess.run([*pip, str(wheel)], check=True)
    Path(home, "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    where = _ask(python, "import perfmodel; print(perfmodel.__file__)", empty)
    if not Path(where).is_relative_to(home):
        sys.exit(f"the wheel is not what runs: {where}")
    first, *others = COMMANDS
    for code in (["-m", "perfmodel", *first], ["-c", OTHERS, json.dumps(others)]):
        command = [str(python), *code]
        subprocess.run(command, check=True, cwd=empty, env=_clean(), stdout=subprocess.DEVNULL)


def _ask(python: Path, code: str, folder: Path) -> str:
    ran = [str(python), "-c", code]
    done = subprocess.run(ran, check=True, cwd=folder, env=_clean(), capture_output=True, text=True)
    return done.stdout.strip()


def _clean() -> dict[str, str]:
    """Nothing of the caller's Python settings."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


def main() -> int:
    dist = Path(sys.argv[1] if len(sys.argv) > 1 else "dist").resolve()
    found = faults(dist)
    print("\n".join(found) or "wheel and sdist hold every file of the package")
    if found:
        return 1
    with tempfile.TemporaryDirectory() as folder:
        works(only(dist, "*.whl"), Path(folder))
    print(f"the wheel runs {len(COMMANDS)} commands in an empty folder")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Execute the notebooks of this folder.

`python notebooks/execute.py [NAME ...]` writes the outputs of those files back, or of all. With
`--check` nothing is written, and their cells run one after another in this process, which spares
as many kernels that each load everything anew. Either fails where a cell fails. A notebook that
imports PyTorch is left out, and said to be, where that is not installed, unless it is named.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import inspect
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import nbformat
from IPython.core.interactiveshell import InteractiveShell
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
MAX_BYTES = 200_000
TIMEOUT_S = 300


@contextlib.contextmanager
def elsewhere() -> Iterator[Path]:
    """A folder that is none of this checkout, beside its traces: a notebook runs from anywhere."""
    with TemporaryDirectory() as name:
        folder = Path(name, "notebooks")
        folder.mkdir()
        Path(name, "traces").symlink_to(FOLDER.parent / "traces")
        yield folder


def execute(path: Path) -> nbformat.NotebookNode:
    """The notebook with fresh outputs, without what differs from run to run."""
    notebook = nbformat.read(path, as_version=4)
    with elsewhere() as folder:
        here = {"metadata": {"path": str(folder)}}
        NotebookClient(notebook, timeout=TIMEOUT_S, resources=here).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {}
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def not_shown(function: Any, **choices: Any) -> Any:
    """A widget's function, not called: cells call it below, and a widget hides what it raises.
    Raises `TypeError` where it does not take these `choices`."""
    inspect.signature(function).bind(**choices)
    return function


def check(path: Path) -> None:
    """Run the cells of a notebook here, as a kernel would. Raises what a cell raises."""
    shell = InteractiveShell.instance()
    shell.reset()
    with (
        elsewhere() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(io.StringIO()),
        mock.patch("ipywidgets.interact", not_shown),
    ):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code":
                shell.run_cell(cell.source).raise_error()


def lacks_pytorch(path: Path) -> bool:
    """Whether the notebook needs PyTorch, and it is not here."""
    cells = nbformat.read(path, as_version=4).cells
    uses = any(cell.source.startswith("import torch") for cell in cells)
    return uses and importlib.util.find_spec("torch") is None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("names", nargs="*", type=Path, metavar="NAME", help="a file; default: all")
    options = parser.parse_args()
    os.environ.setdefault("MPLBACKEND", "Agg")
    if missing := [str(path) for path in options.names if not path.is_file()]:
        parser.error(f"no such file: {', '.join(missing)}")
    for path in options.names or sorted(FOLDER.glob("*.ipynb")):
        if not options.names and lacks_pytorch(path):
            print(f"{path.name}: left out: needs PyTorch")
            continue
        if options.check:
            check(path.resolve())
        else:
            nbformat.write(execute(path), path)
        size = path.stat().st_size
        if size > MAX_BYTES:
            print(f"{path.name}: {size} bytes with its outputs, the limit is {MAX_BYTES}")
            return 1
        print(f"{path.name}: {size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())

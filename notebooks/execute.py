"""Execute the notebooks of this folder.

`python notebooks/execute.py` writes their outputs back. With `--check` nothing is written. Either
fails where a cell fails.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
MAX_BYTES = 200_000
TIMEOUT_S = 300


def execute(path: Path) -> nbformat.NotebookNode:
    """The notebook with fresh outputs, without what differs from run to run."""
    notebook = nbformat.read(path, as_version=4)
    here = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(notebook, timeout=TIMEOUT_S, resources=here).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {}
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def main() -> int:
    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook = execute(path)
        size = len(nbformat.writes(notebook))
        if size > MAX_BYTES:
            print(f"{path.name}: {size} bytes with its outputs, the limit is {MAX_BYTES}")
            return 1
        if "--check" not in sys.argv[1:]:
            nbformat.write(notebook, path)
        print(f"{path.name}: {size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())

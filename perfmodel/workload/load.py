"""Finding workloads: by their name in the catalogue, or in a file of the user."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from pathlib import Path

import tomllib

from perfmodel.errors import PerfmodelError, WorkloadError
from perfmodel.files import read_bytes
from perfmodel.workload.model import Workload
from perfmodel.workload.schema import build

FOLDER = Path(__file__).parent / "catalogue"
MAX_FILE_BYTES = 10_000_000


def workloads() -> list[str]:
    """Names of the catalogue's workloads, sorted."""
    return sorted(_files())


def load_workload(name_or_path: str | Path) -> Workload:
    """The workload of that name in the catalogue, or in the TOML file at that path.

    What ends in `.toml` or holds a `/` is a path. Raises `WorkloadError`: an unknown name (with the
    nearest ones), or a file that does not hold.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text:
        path = Path(name_or_path)
        return _read(path, path.stem, str(path))
    return _named(text)


@cache
def _files() -> dict[str, Path]:
    return {path.stem: path for path in FOLDER.glob("*.toml")}


@cache
def _named(name: str) -> Workload:
    if name not in _files():
        near = get_close_matches(name.lower(), _files(), n=4, cutoff=0.3) or workloads()
        raise WorkloadError(
            f"unknown workload {name[:80]!r}; nearest: {', '.join(near)} "
            "(or the path of a .toml file of your own)"
        )
    return _read(_files()[name], name, f"catalogue workload {name}")


def _read(path: Path, name: str, where: str) -> Workload:
    try:
        document = tomllib.loads(read_bytes(path, max_bytes=MAX_FILE_BYTES).decode())
    except PerfmodelError as error:
        raise WorkloadError(str(error)) from None
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{where}: byte {error.start} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise WorkloadError(f"{where}: {error}") from None
    return build(document, name, where)

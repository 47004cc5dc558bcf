"""Results of a sweep on disk: a folder of Parquet parts, each whole or not at all.

Which points a part holds is fixed by its number. So a sweep that was killed goes on with the parts
that are missing: no row is lost, none is there twice. The name of a part ends with a digest of the
sweep, the number and the content: what was changed, renamed or brought here is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import perfmodel
from perfmodel.base.arrays import Floats
from perfmodel.base.files import atomic_write, read_bytes, write_text
from perfmodel.base.frames import MAX_TABLE_BYTES, frame_of
from perfmodel.errors import PerfmodelError, UsageError
from perfmodel.explore.axes import Points
from perfmodel.explore.spec import TRACES, Spec

if TYPE_CHECKING:
    import pandas as pd


MANIFEST = "_sweep.json"
"""Readers of Parquet folders pass over names that begin so."""
SCHEMA = "perfmodel.sweep-results/2"
POINT, ERROR = "point", "error"
_MAX_BYTES = 100_000_000
_PARTS = "part-*.parquet"
_PART = re.compile(r"part-(\d{8})-[0-9a-f]{16}\.parquet")


def identity(spec: Spec) -> str:
    """A digest of all that the results depend on: points, input, machine, wishes, the version and
    the data of this package."""
    about = asdict(spec)
    del about["where"], about["at"]
    text = json.dumps(about, sort_keys=True, default=str)
    digest = hashlib.sha256(f"{SCHEMA}\n{perfmodel.__version__}\n{_data()}\n{text}\n".encode())
    for path in _files(spec):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _data() -> str:
    """A digest of the catalogues and of what models were fitted to."""
    digest = hashlib.sha256()
    root = Path(perfmodel.__file__).parent
    for path in sorted((*root.rglob("*.toml"), *root.rglob("*.json"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _files(spec: Spec) -> list[Path]:
    """Files that the sweep reads, but those of a corpus, which its points name."""
    if spec.kind == TRACES:
        return []
    values = [value for each in spec.space.values.values() for value in each]
    named = [each for each in (spec.input, spec.hardware, *values) if isinstance(each, str)]
    paths = [Path(each) for each in dict.fromkeys(named) if "/" in each or "." in each]
    return sorted(
        file
        for path in paths
        for file in (path.rglob("*") if path.is_dir() else [path])
        if file.is_file()
    )


def packed(spec: Spec, points: Points, first: int, raw: Mapping[str, Any]) -> bytes:
    """The Parquet file of one part: number, axes (of one type in every part), figures and error of
    each of its points."""
    import pandas as pd

    columns: dict[str, Any] = {POINT: np.arange(first, first + len(points))}
    for axis, values in spec.space.values.items():
        column, kinds = points.column(axis), {type(value) for value in values}
        if kinds <= {int, float} or kinds == {bool}:
            columns[axis] = np.array(column, kinds.pop() if len(kinds) == 1 else float)
        else:
            columns[axis] = [each if isinstance(each, str) else json.dumps(each) for each in column]
    content = BytesIO()
    pd.DataFrame(columns | dict(raw)).to_parquet(content, index=False)
    return content.getvalue()


@dataclass(frozen=True)
class Store:
    """The folder of one sweep's results."""

    folder: Path
    parts: int
    identity: str

    @classmethod
    def open(cls, folder: str | Path, spec: Spec) -> Store:
        """The folder, made where there is none.

        Raises `UsageError` where it holds anything but results of this very sweep.
        """
        path = Path(folder)
        about: dict[str, Any] = {
            "schema": SCHEMA,
            "identity": identity(spec),
            "points": len(spec.space),
        }
        about |= {"part_points": spec.chunk, "axes": list(spec.space.axes)}
        manifest = path / MANIFEST
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path}: is a file; results of a sweep are a folder")
        if manifest.is_file():
            try:
                held = json.loads(read_bytes(manifest, max_bytes=_MAX_BYTES))
            except (ValueError, RecursionError):
                raise UsageError(f"{manifest}: not JSON, damaged: name another folder") from None
            if not isinstance(held, dict) or held.get("identity") != about["identity"]:
                raise UsageError(
                    f"{path}: holds results of another sweep (or of another version, input or "
                    "machine): name another folder with -o"
                )
        elif path.is_dir() and any(path.iterdir()):
            raise UsageError(f"{path}: is not empty and no results of a sweep: name another folder")
        else:
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                text = error.strerror or str(error)
                raise PerfmodelError(f"{path}: cannot be written: {text}") from None
            write_text(manifest, json.dumps(about, indent=1) + "\n")
        return cls(path, spec.parts, about["identity"])

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within it no other process sweeps into the folder, where the system can tell.

        Raises `UsageError` where one does; a process that ends, in whatever way, lets go.
        """
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        with (self.folder / MANIFEST).open("rb") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"{self.folder}: another sweep writes to it now: wait until it is done (its "
                    "results are then used), or name another folder with -o"
                ) from None
            except OSError:  # a file system without locks
                pass
            yield

    def missing(self) -> list[int]:
        """Numbers of the parts that are not there yet."""
        names = (_PART.fullmatch(path.name) for path in self.folder.iterdir())
        done = {int(stored.group(1)) for stored in names if stored}
        return [part for part in range(self.parts) if part not in done]

    def _path(self, part: int, content: bytes) -> Path:
        digest = hashlib.sha256(f"{self.identity}\n{part}\n".encode() + content).hexdigest()[:16]
        return self.folder / f"part-{part:08d}-{digest}.parquet"

    def write(self, part: int, content: bytes) -> None:
        """One part, whole or not at all. Raises `PerfmodelError` where it cannot be written."""
        with atomic_write(self._path(part, content)) as file:
            file.write(content)

    def frame(self) -> pd.DataFrame:
        """All rows that are there, by their number. Raises `PerfmodelError` for damaged parts."""
        import pandas as pd

        frames = []
        for path in sorted(self.folder.glob(_PARTS)):
            name, content = _PART.fullmatch(path.name), read_bytes(path, max_bytes=MAX_TABLE_BYTES)
            if not name or self._path(int(name.group(1)), content) != path:
                raise PerfmodelError(f"{path}: damaged or of another sweep: delete it, sweep again")
            frames.append(frame_of(content))
        if not frames:
            raise PerfmodelError(f"{self.folder}: holds no results yet")
        return pd.concat(frames, ignore_index=True)


def floats_of(frame: pd.DataFrame, column: str) -> Floats:
    """A column of figures."""
    values: Floats = frame[column].to_numpy(np.float64)
    return values

"""Boosted trees as plain arrays, walked with NumPy, and the directories of models that hold them: a
manifest and files of trees, plain data, checked by hash.

A user's own regressor (`fit kernels --estimator`) is in joblib's format: loading it runs code, so
it is loaded only where the user has said that the directory is trusted.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from struct import Struct
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfmodel.base.arrays import Floats
from perfmodel.base.files import check_input, gunzip, read_bytes, write_text
from perfmodel.base.registry import library
from perfmodel.cost.learned.features import NOT_BELOW, PHYSICS
from perfmodel.cost.learned.model import MAX_LOG, OTHERS, File, Fitted, Learned, Part
from perfmodel.errors import ModelError, PerfmodelError

DEEPEST = 12
"""Levels; `fit kernels` makes eight, and leaves double with each."""
_HEAD = Struct("<IIId")
"""Columns of the matrix, trees, depth, and the start of the sum."""
_ROWS_AT_ONCE = 256
"""Rows that are walked at once: what a processor's cache holds of all trees."""


@dataclass(frozen=True)
class Forest:
    """Trees padded to one depth, as heaps: the children of node `i` are `2 i + 1` for values below
    its threshold and `2 i + 2` for others. Below where a tree ends, thresholds are infinite."""

    feature: NDArray[np.int32]
    """`[trees, 2^depth - 1]`."""
    threshold: NDArray[np.float32]
    value: NDArray[np.float32]
    """Of leaves, `[trees, 2^depth]`."""
    start: float

    @property
    def depth(self) -> int:
        """Steps of a walk."""
        return int(self.value.shape[1]).bit_length() - 1

    def predict(self, matrix: np.ndarray) -> Floats:
        """The sum over trees for each row of `matrix` `[rows, columns]`, without missing values."""
        single = np.ascontiguousarray(matrix, np.float32)
        begins = range(0, len(single), _ROWS_AT_ONCE)
        blocks = [self._walked(single[at : at + _ROWS_AT_ONCE]) for at in begins]
        return self.start + np.concatenate(blocks or [np.zeros(0)])

    def _walked(self, matrix: NDArray[np.float32]) -> Floats:
        """All rows through all trees, level by level; `clip`, which never has to, spares checks."""
        flat, row = matrix.ravel(), np.arange(len(matrix), dtype=np.int32) * matrix.shape[1]
        trees, inner = self.feature.shape
        tree, at = np.arange(trees, dtype=np.int32)[:, None], np.zeros((1, len(matrix)), np.int32)
        for _ in range(self.depth):
            node = at + inner * tree
            values = flat.take(self.feature.take(node, mode="clip") + row, mode="clip")
            at = 2 * at + 1 + (values >= self.threshold.take(node, mode="clip"))
        leaves = self.value.take(at + (inner + 1) * tree - inner, mode="clip")
        return np.asarray(leaves.sum(axis=0, dtype=np.float64))


def pack(forest: Forest, columns: int) -> bytes:
    """`forest`, of at most 256 `columns`, as `unpack` reads it: features, thresholds and leaves of
    all trees, one, four and four bytes each (little-endian)."""
    head = _HEAD.pack(columns, len(forest.feature), forest.depth, forest.start)
    numbers = (each.astype("<f4").tobytes() for each in (forest.threshold, forest.value))
    return b"".join([head, forest.feature.astype(np.uint8).tobytes(), *numbers])


def unpack(raw: bytes, columns: int) -> Forest:
    """The trees that `pack` wrote for so many `columns`; raises `ValueError` for anything else."""
    own, trees, depth, start = _HEAD.unpack(raw[: _HEAD.size].ljust(_HEAD.size, b"\0"))
    leaves = 1 << min(depth, DEEPEST)
    inner, before = trees * (leaves - 1), _HEAD.size
    if depth > DEEPEST or len(raw) != before + 5 * inner + 4 * trees * leaves or not trees:
        raise ValueError(f"{len(raw)} bytes are not {trees} trees of {depth} levels")
    if own != columns:
        raise ValueError(f"it is of {own} columns, not of {columns}")
    feature = np.frombuffer(raw, np.uint8, inner, before).astype(np.int32)
    threshold = np.frombuffer(raw, "<f4", inner, before + inner).astype(np.float32)
    value = np.frombuffer(raw, "<f4", trees * leaves, before + 5 * inner).astype(np.float32)
    if not np.isfinite([start, *value]).all() or np.isnan(threshold).any():
        raise ValueError("a number that is not finite")
    if feature.max(initial=-1) >= columns:
        raise ValueError(f"a node asks for a column that is none of {columns}")
    shape = trees, leaves - 1
    value = value.reshape(trees, leaves)
    return Forest(feature.reshape(shape), threshold.reshape(shape), value, start)


MANIFEST = "manifest.json"
BUNDLED = Path(__file__).parents[1] / "bundled"
SCHEMA = "perfmodel.kernel-models/14"
_MAX_BYTES = 64_000_000
_REMEDY = "fit it again with perfmodel fit kernels"


class _Manifest(msgspec.Struct):
    """All parts of a directory, and what they were fitted to."""

    about: dict[str, Any]
    parts: list[Fitted]

    def __post_init__(self) -> None:
        if any(OTHERS not in part.files or part.family not in PHYSICS for part in self.parts):
            raise ValueError(f"a part without trees, or of none of {', '.join(PHYSICS)}")
        for part in self.parts:
            needed = {"base_us", "work", *NOT_BELOW.get(part.family, ())}
            if missing := set().union(*(needed - own.keys() for own in part.measured.values())):
                raise ValueError(f"{part.name}: {min(missing)} is not among what was measured")
        ends = [end for part in self.parts for both in part.intervals.values() for end in both]
        if not all(abs(end) <= MAX_LOG for end in ends):
            raise ValueError(f"ends of intervals beyond {MAX_LOG:g}")


class Stored:
    """Boosted trees, or a user's regressor, decoded when they are first asked."""

    def __init__(self, content: bytes, about: File, where: str) -> None:
        self.content, self.about, self._where = content, about, where
        self._decoded: Any = None

    def predict(self, matrix: np.ndarray) -> Floats:
        """The answers `[n]`; raises `ModelError` for content that gives none."""
        if self.about.regressor:
            return self._by_regressor(matrix)
        if self._decoded is None:
            try:
                raw = gunzip(self.content, self._where, max_bytes=_MAX_BYTES)
                self._decoded = unpack(raw, matrix.shape[1])
            except ValueError as error:
                raise ModelError(f"{self._where}: not an ensemble of trees: {error}") from None
        factors: Floats = self._decoded.predict(matrix)
        if not (np.abs(factors) <= MAX_LOG).all():
            raise ModelError(f"{self._where}: answers that are no logarithm of a factor")
        return factors

    def _by_regressor(self, matrix: np.ndarray) -> Floats:
        name = f"{self._where}: {self.about.regressor}"
        try:
            if self._decoded is None:
                library("sklearn")
                import joblib
                from sklearn.exceptions import InconsistentVersionWarning

                if os.getcwd() not in sys.path:
                    sys.path.insert(0, os.getcwd())
                with warnings.catch_warnings():
                    warnings.simplefilter("error", InconsistentVersionWarning)
                    self._decoded = joblib.load(io.BytesIO(self.content))
            predicted = np.asarray(self._decoded.predict(matrix), np.float64)
        except Exception as error:  # the user's code may raise anything
            what = " ".join(str(error).split())[:200] or type(error).__name__
            raise ModelError(f"{name}: {what}") from error
        if predicted.shape != (len(matrix),) or not np.isfinite(predicted).all():
            raise ModelError(f"{name} does not give one finite number per row")
        return np.clip(predicted, self.about.low, self.about.high)


def save(folder: Path, families: Mapping[str, Learned], about: Mapping[str, Any]) -> None:
    """Write `families` and their provenance `about` as the directory `folder`, whole or not at all.

    Raises `PerfmodelError` when `folder` exists or cannot be written.
    """
    if folder.exists():
        raise PerfmodelError(f"{folder}: exists already; name a new directory")
    import tempfile  # only who writes needs it

    temporary = None
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        parts = []
        for part in (each for model in families.values() for each in model.parts):
            for trees in part.trees.values():
                (temporary / trees.about.file).write_bytes(trees.content)
            files = {name: trees.about for name, trees in part.trees.items()}
            parts.append(msgspec.structs.replace(part.fitted, files=files))
        content = {"schema": SCHEMA, "about": dict(about), "parts": msgspec.to_builtins(parts)}
        content["sha256"] = _digest_of(content)
        write_text(temporary / MANIFEST, json.dumps(content, indent=1))
        temporary.chmod(0o755)
        temporary.rename(folder)
    except OSError as error:
        raise PerfmodelError(f"{folder}: cannot be written: {error.strerror or error}") from None
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def load_models(folder: str | Path, *, trusted: bool = False) -> dict[str, Learned]:
    """The families of a model directory, to pass as `models`.

    Nothing in it is executed, unless it holds a regressor of a user's (`fit kernels --estimator`):
    those are loaded only where the folder is `trusted`. Raises `ModelError` that names the file for
    one that is missing, cut, changed, of another version, or not trusted.
    """
    return dict(_loaded(str(Path(folder).resolve()), str(folder), trusted))


@lru_cache(maxsize=8)
def _loaded(folder: str, shown: str, trusted: bool) -> Mapping[str, Learned]:
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise ModelError(f"{folder}: not a directory of models: it holds no {MANIFEST}")
    try:
        content = msgspec.json.decode(read_bytes(path, max_bytes=_MAX_BYTES))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ModelError(f"{path}: not JSON, cut or damaged; {_REMEDY}") from None
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise ModelError(f"{path}: schema {schema!r} where {SCHEMA!r} is expected; {_REMEDY}")
    if content.pop("sha256", None) != _digest_of(content):
        raise ModelError(f"{path}: its content was changed since it was written; {_REMEDY}")
    try:
        parts = msgspec.convert(content, _Manifest, str_keys=True).parts
    except msgspec.ValidationError as error:
        raise ModelError(f"{path}: unusable ({error}); {_REMEDY}") from None
    classes = [each.regressor for part in parts for each in part.files.values() if each.regressor]
    if classes and not trusted:
        raise ModelError(
            f"{shown}: holds a regressor of a user's ({classes[0]}), and loading it runs code "
            "from that folder; if you trust whoever made it, add --trust-models"
        )
    return models_of([(each, _read(each, Path(folder))) for each in parts])


def models_of(parts: list[tuple[Fitted, Mapping[str, Any]]]) -> dict[str, Learned]:
    """Kernel models by family, from all fitted parts and their trees."""
    models: dict[str, Learned] = {}
    for fitted, trees in parts:
        heuristic, known = PHYSICS[fitted.family], models.get(fitted.family)
        part = Part(fitted, trees, heuristic)
        name, before = f"gpu/{fitted.family}/learned", known.parts if known else ()
        models[fitted.family] = Learned(name, heuristic, (*before, part))
    return models


def _digest_of(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _read(fitted: Fitted, folder: Path) -> dict[str, Stored]:
    trees = {}
    for name, about in fitted.files.items():
        path = folder / Path(about.file).name
        try:
            check_input(path)
            if not about.regressor and path.stat().st_size > _MAX_BYTES:
                raise ModelError(f"{path}: above {_MAX_BYTES} bytes; {_REMEDY}")
            content = path.read_bytes()
        except (OSError, ValueError) as error:
            raise ModelError(f"{path}: cannot be read: {error.args[-1]}") from None
        if hashlib.sha256(content).hexdigest() != about.sha256:
            raise ModelError(f"{path}: cut, or changed since it was written; {_REMEDY}")
        trees[name] = Stored(content, about, str(path))
    return trees

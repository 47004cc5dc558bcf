"""Model directories: a manifest and one file of trees per part; plain data, checked by hash."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.contract import KERNELS
from perfmodel.cost.gpu.heuristic import Floor, Heuristic
from perfmodel.cost.learned.corrections import Extension, Gains, Growth
from perfmodel.cost.learned.floors import KnownFloor
from perfmodel.cost.learned.forest import MAX_LOG, Ensemble, Forest
from perfmodel.cost.learned.manifest import (
    SPREAD,
    Manifest,
    StoredFamily,
    StoredFloor,
    StoredPart,
)
from perfmodel.cost.learned.model import Learned
from perfmodel.cost.learned.packed import pack, trees_of, unpack
from perfmodel.cost.learned.part import Part, SeparateTrees, Spread
from perfmodel.cost.learned.pickled import Pickled
from perfmodel.errors import ModelError, PerfmodelError
from perfmodel.files import check_input, gunzip, read_bytes, write_text
from perfmodel.provenance import answered_by

MANIFEST = "manifest.json"
BUNDLED = Path(__file__).parents[1] / "bundled"
SCHEMA = "perfmodel.kernel-models/12"
_MAX_BYTES = 64_000_000
_CHOSEN: ContextVar[Mapping[str, Learned] | None] = ContextVar("kernel models", default=None)
_CLASS = "class"
"""Key of a file that is a user's regressor: whether it is there decides how the file is read."""
_ALIKE = ("name", "build", "dtypes", "ops", "figures", "share", "as_nearest", "devices", "tiles")
_REMEDY = "fit it again with perfmodel fit kernels"


class Trees:
    """Boosted trees, decoded when they are first asked."""

    suffix = ".trees.gz"

    def __init__(self, packed: bytes, where: str) -> None:
        self.packed = packed
        self._where = where
        self._forest: Forest | None = None

    def predict(self, matrix: np.ndarray) -> Floats:
        """The ensemble's answers; raises `ModelError` for content that is no ensemble."""
        if self._forest is None:
            try:
                raw = gunzip(self.packed, self._where, max_bytes=_MAX_BYTES)
                self._forest = unpack(raw, matrix.shape[1])
            except ValueError as error:
                raise ModelError(f"{self._where}: not an ensemble of trees: {error}") from None
        factors = self._forest.predict(matrix)
        if not (np.abs(factors) <= MAX_LOG).all():
            raise ModelError(f"{self._where}: answers that are no logarithm of a factor")
        return factors


def pack_estimator(fitted: Any, where: str) -> Ensemble:
    """A fitted estimator as it is stored: XGBoost's as trees, any other by joblib."""
    if hasattr(fitted, "get_booster"):
        return Trees(gzip.compress(pack(*trees_of(fitted.get_booster())), 9, mtime=0), where)
    return Pickled.of(fitted.regressor_, where, (fitted.low_, fitted.high_))


def save(folder: Path, families: Mapping[str, Learned], about: Mapping[str, Any]) -> None:
    """Write `families` and their provenance `about` as the directory `folder`, whole or not at all.

    Raises `PerfmodelError` when `folder` exists or cannot be written.
    """
    if folder.exists():
        raise PerfmodelError(f"{folder}: exists already; name a new directory")
    import tempfile  # only who writes needs it

    try:
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise PerfmodelError(f"{folder}: cannot be written: {error.strerror or error}") from None
    try:
        content: dict[str, Any] = {"schema": SCHEMA, "about": dict(about), "families": {}}
        for family, model in families.items():
            content["families"][family] = {
                "parts": [_part_to_json(part, temporary) for part in model.parts],
                "floors": {key: _floors_to_json(value) for key, value in model.floors.items()},
            }
        content["sha256"] = _digest_of(content)
        write_text(temporary / MANIFEST, json.dumps(content, indent=1))
        temporary.chmod(0o755)
        temporary.rename(folder)
    except OSError as error:
        raise PerfmodelError(f"{folder}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load_models(folder: str | Path, *, trusted: bool = False) -> dict[str, Learned]:
    """The families of a model directory, to pass as `models`.

    Nothing in it is executed, unless it holds a regressor of a user's (`fit kernels --estimator`):
    those are loaded only where the folder is `trusted`. Raises `ModelError` that names the file for
    one that is missing, cut, changed, of another version, or not trusted.
    """
    return dict(_loaded(str(Path(folder).resolve()), str(folder), trusted))


@contextmanager
def using_models(folder: str | Path | None, *, trusted: bool = False) -> Iterator[None]:
    """Within it, the families of `folder` answer before the bundled ones; None changes nothing.

    Raises `ModelError` as `load_models` does.
    """
    chosen = None if folder is None else load_models(folder, trusted=trusted)
    token = _CHOSEN.set(chosen if chosen is not None else _CHOSEN.get())
    try:
        with answered_by(None if folder is None else Path(folder) / MANIFEST):
            yield
    finally:
        _CHOSEN.reset(token)


def default_models() -> Mapping[str, Learned]:
    """The fitted models by family: those of `using_models`, else those of the package."""
    chosen = _CHOSEN.get()
    return _bundled() if chosen is None else {**_bundled(), **chosen}


@lru_cache(maxsize=1)
def _bundled() -> dict[str, Learned]:
    """None where the package was installed without."""
    return load_models(BUNDLED) if (BUNDLED / MANIFEST).is_file() else {}


def provenance(folder: str | Path) -> dict[str, Any]:
    """What the directory's manifest says that its models were fitted on. Raises `ModelError`."""
    return _manifest(Path(folder)).about


@lru_cache(maxsize=8)
def _loaded(folder: str, shown: str, trusted: bool) -> tuple[tuple[str, Learned], ...]:
    manifest = _manifest(Path(folder))
    if not trusted and (classes := _pickled_classes(manifest)):
        raise ModelError(
            f"{shown}: holds a regressor of a user's ({classes[0]}), and loading it runs code "
            "from that folder; if you trust whoever made it, add --trust-models"
        )
    return tuple(
        (family, _family(family, content, Path(folder)))
        for family, content in manifest.families.items()
    )


def _pickled_classes(manifest: Manifest) -> list[str]:
    """What the manifest says the regressors are that would run code when they are loaded."""
    parts = [part for family in manifest.families.values() for part in family.parts]
    return [str(part.trees[_CLASS]) for part in parts if _CLASS in part.trees]


def _manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
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
        return msgspec.convert(content, Manifest, str_keys=True)
    except msgspec.ValidationError as error:
        raise ModelError(f"{path}: unusable ({error}); {_REMEDY}") from None


def _digest_of(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _family(family: str, content: StoredFamily, folder: Path) -> Learned:
    heuristic = KERNELS[f"gpu/{family}/heuristic"]
    assert isinstance(heuristic, Heuristic)
    return Learned(
        name=f"gpu/{family}/learned",
        heuristic=heuristic,
        parts=tuple(_part_of(part, folder) for part in content.parts),
        floors={key: tuple(map(_floor_of, floors)) for key, floors in content.floors.items()},
    )


def _part_to_json(part: Part, folder: Path) -> dict[str, Any]:
    trees = _written(part.trees, folder / f"{part.name}{part.trees.suffix}")
    if isinstance(part.trees, Pickled):
        trees |= part.trees.about
    return {
        "name": part.name,
        "build": part.build,
        **{name: list(getattr(part, name)) for name in ("dtypes", "ops", "figures")},
        "trees": trees,
        "own": {
            str(place): _written(each, folder / f"{part.name}.{place}{each.suffix}")
            for place, each in part.own.items()
        },
        "separate": [
            _written(each.trees, folder / f"{part.name}.separate_{number}{each.trees.suffix}")
            | {"framework": each.framework, "kinds": sorted(each.kinds)}
            | {"places": list(each.places)}
            for number, each in enumerate(part.separate)
        ],
        "share": part.share,
        "as_nearest": part.as_nearest,
        "devices": [dict(each) for each in part.devices],
        "spreads": {
            op: {kind: list(getattr(each, kind)) for kind in SPREAD}
            | {"centre": each.centre, "least_us": each.least_us}
            for op, each in part.spreads.items()
        },
        "tiles": {key: [list(tile) for tile in tiles] for key, tiles in part.tiles.items()},
        "measured": [[*key, list(places)] for key, places in part.measured.items()],
        "least": [[*key, dict(least)] for key, least in part.least.items()],
        "extensions": {
            op: {
                "trust": each.trust,
                "known": [
                    [part.devices.index(own.device), own.most_work, own.per_base]
                    for own in each.known
                ],
            }
            for op, each in part.extensions.items()
        },
        "gains": {
            "figure": part.gains.figure,
            "slopes": {
                op: {str(place): slope for place, slope in known.items()}
                for op, known in part.gains.slopes.items()
            },
        },
    }


def _written(trees: Ensemble, path: Path) -> dict[str, Any]:
    path.write_bytes(trees.packed)
    return {"file": path.name, "sha256": hashlib.sha256(trees.packed).hexdigest()}


def _part_of(stored: StoredPart, folder: Path) -> Part:
    return Part(
        **{name: getattr(stored, name) for name in _ALIKE},
        trees=_trees(stored.trees, folder),
        own={at: _trees(msgspec.structs.asdict(own), folder) for at, own in stored.own.items()},
        separate=tuple(
            SeparateTrees(
                _trees({"file": each.file, "sha256": each.sha256}, folder),
                *(each.framework, each.kinds, each.places),
            )
            for each in stored.separate
        ),
        spreads={op: Spread(*msgspec.structs.astuple(each)) for op, each in stored.spreads.items()},
        measured={(op, kind): places for op, kind, places in stored.measured},
        extensions={
            op: Extension(
                each.trust,
                tuple(Growth(stored.devices[place], *figures) for place, *figures in each.known),
            )
            for op, each in stored.extensions.items()
        },
        gains=Gains(stored.gains.figure, stored.gains.slopes),
        least={(op, kind, place): least for op, kind, place, least in stored.least},
    )


def _trees(content: Mapping[str, str | float], folder: Path) -> Ensemble:
    path = folder / Path(str(content.get("file"))).name
    try:
        if _CLASS not in content and path.stat().st_size > _MAX_BYTES:
            raise ModelError(f"{path}: above {_MAX_BYTES} bytes; {_REMEDY}")
        check_input(path)
        raw = path.read_bytes()
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error.args[-1]}") from None
    if hashlib.sha256(raw).hexdigest() != content.get("sha256"):
        raise ModelError(f"{path}: cut, or changed since it was written; {_REMEDY}")
    if _CLASS not in content:
        return Trees(raw, str(path))
    if set(content) != {"file", "sha256", *Pickled.ABOUT}:
        raise ModelError(f"{folder / MANIFEST}: a regressor without {', '.join(Pickled.ABOUT)}")
    return Pickled(raw, str(path), content)


def _floor_of(it: StoredFloor) -> KnownFloor:
    return KnownFloor(it.device, Floor(it.floor_us, it.offset_us, it.is_measured, it.scatter))


def _floors_to_json(floors: tuple[KnownFloor, ...]) -> list[dict[str, Any]]:
    return [{"device": dict(each.device), **asdict(each.floor)} for each in floors]

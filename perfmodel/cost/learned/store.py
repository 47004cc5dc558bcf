"""Model directories: a manifest and one file of trees per part; plain data, checked by hash."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.arrays import Floats
from perfmodel.cost.contract import KERNELS
from perfmodel.cost.gpu.heuristic import Floor, Heuristic
from perfmodel.cost.learned.corrections import Extension, Gains, Growth
from perfmodel.cost.learned.forest import Ensemble, Forest
from perfmodel.cost.learned.model import KnownFloor, Learned
from perfmodel.cost.learned.part import Part, Spread
from perfmodel.cost.learned.pickled import Pickled
from perfmodel.cost.learned.ubjson import decode_trees, without_unused
from perfmodel.errors import ModelError, PerfmodelError
from perfmodel.files import gunzip, read_bytes, write_text

MANIFEST = "manifest.json"
BUNDLED = Path(__file__).parents[1] / "bundled"
SCHEMA = "perfmodel.kernel-models/6"
_MOST_BYTES = 64_000_000
_CHOSEN: ContextVar[Mapping[str, Learned] | None] = ContextVar("kernel models", default=None)
_CLASS = "class"
"""Key of a file that is a user's regressor: whether it is there decides how the file is read."""
_SPREAD = ("seen", "beyond", "unseen", "physics", "domain")
_REMEDY = "fit it again with perfmodel fit kernels"


class Trees:
    """Boosted trees, decoded when they are first asked."""

    suffix = ".ubj.gz"

    def __init__(self, packed: bytes, where: str) -> None:
        self.packed = packed
        self._where = where
        self._forest: Forest | None = None

    def predict(self, matrix: np.ndarray) -> Floats:
        """The ensemble's answers; raises `ModelError` for content that is no ensemble."""
        if self._forest is None:
            try:
                self._forest = decode_trees(gunzip(self.packed, self._where, max_bytes=_MOST_BYTES))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise ModelError(f"{self._where}: not an ensemble of trees: {error}") from None
        return self._forest.predict(matrix)


def pack_estimator(fitted: Any, where: str) -> Ensemble:
    """A fitted estimator as it is stored: XGBoost's as trees, any other by joblib."""
    if hasattr(fitted, "get_booster"):
        raw = bytes(fitted.get_booster().save_raw(raw_format="ubj"))
        return Trees(gzip.compress(without_unused(raw), 9, mtime=0), where)
    return Pickled.of(fitted.regressor_, where, (fitted.low_, fitted.high_))


def save(folder: Path, families: Mapping[str, Learned], about: Mapping[str, Any]) -> None:
    """Write `families` and their provenance `about` as the directory `folder`, whole or not at all.

    Raises `PerfmodelError` when `folder` exists or cannot be written.
    """
    folder = Path(folder)
    if folder.exists():
        raise PerfmodelError(f"{folder}: exists already; name a new directory")
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
    about: dict[str, Any] = _manifest(Path(folder))["about"]
    return about


@lru_cache(maxsize=8)
def _loaded(folder: str, shown: str, trusted: bool) -> tuple[tuple[str, Learned], ...]:
    manifest = _manifest(Path(folder))
    try:
        if not trusted and (classes := _pickled_classes(manifest)):
            raise ModelError(
                f"{shown}: holds a regressor of a user's ({classes[0]}), and loading it runs code "
                "from that folder; if you trust whoever made it, add --trust-models"
            )
        return tuple(
            (family, _family(family, content, Path(folder)))
            for family, content in manifest["families"].items()
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{shown}/{MANIFEST}: unusable ({error!r}); {_REMEDY}") from None


def _pickled_classes(manifest: Mapping[str, Any]) -> list[str]:
    """What the manifest says the regressors are that would run code when they are loaded."""
    return [
        part["trees"][_CLASS]
        for family in manifest["families"].values()
        for part in family["parts"]
        if _CLASS in part["trees"]
    ]


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise ModelError(f"{folder}: not a directory of models: it holds no {MANIFEST}")
    try:
        content = json.loads(read_bytes(path, max_bytes=_MOST_BYTES))
    except (ValueError, RecursionError):
        raise ModelError(f"{path}: not JSON, cut or damaged; {_REMEDY}") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        schema = content.get("schema") if isinstance(content, dict) else None
        raise ModelError(f"{path}: schema {schema!r} where {SCHEMA!r} is expected; {_REMEDY}")
    stated = content.pop("sha256", None)
    if stated != _digest_of(content):
        raise ModelError(f"{path}: its content was changed since it was written; {_REMEDY}")
    return content


def _digest_of(content: Mapping[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _family(family: str, content: Mapping[str, Any], folder: Path) -> Learned:
    heuristic = KERNELS[f"gpu/{family}/heuristic"]
    assert isinstance(heuristic, Heuristic)
    return Learned(
        name=f"gpu/{family}/learned",
        heuristic=heuristic,
        parts=tuple(_part_from_json(part, folder) for part in content["parts"]),
        floors={key: _floors_from_json(value) for key, value in content["floors"].items()},
    )


def _part_to_json(part: Part, folder: Path) -> dict[str, Any]:
    name = f"{part.name}{part.trees.suffix}"
    (folder / name).write_bytes(part.trees.packed)
    trees = {"file": name, "sha256": hashlib.sha256(part.trees.packed).hexdigest()}
    if isinstance(part.trees, Pickled):
        trees |= part.trees.about
    return {
        "name": part.name,
        "build": part.build,
        "dtypes": list(part.dtypes),
        "ops": list(part.ops),
        "figures": list(part.figures),
        "trees": trees,
        "share": part.share,
        "as_nearest": part.as_nearest,
        "devices": [dict(each) for each in part.devices],
        "spreads": {
            op: {kind: list(getattr(each, kind)) for kind in _SPREAD}
            | {"centre": each.centre, "least_us": each.least_us}
            for op, each in part.spreads.items()
        },
        "tiles": {key: [list(tile) for tile in tiles] for key, tiles in part.tiles.items()},
        "measured": [[*key, list(places)] for key, places in part.measured.items()],
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


def _part_from_json(content: Mapping[str, Any], folder: Path) -> Part:
    return Part(
        name=content["name"],
        build=content["build"],
        dtypes=tuple(content["dtypes"]),
        ops=tuple(content["ops"]),
        figures=tuple(content["figures"]),
        trees=_trees(content["trees"], folder),
        share=float(content["share"]),
        as_nearest=bool(content["as_nearest"]),
        devices=tuple(content["devices"]),
        spreads={op: _spread_from_json(each) for op, each in content["spreads"].items()},
        tiles=content["tiles"],
        measured={(op, kind): tuple(places) for op, kind, places in content["measured"]},
        extensions={
            op: Extension(
                float(each["trust"]),
                tuple(
                    Growth(content["devices"][index], float(most_work), float(per_base))
                    for index, most_work, per_base in each["known"]
                ),
            )
            for op, each in content["extensions"].items()
        },
        gains=Gains(
            content["gains"]["figure"],
            {
                op: {int(place): float(slope) for place, slope in known.items()}
                for op, known in content["gains"]["slopes"].items()
            },
        ),
    )


def _spread_from_json(content: Mapping[str, Any]) -> Spread:
    seen, beyond, unseen, physics, domain = (tuple(content[kind]) for kind in _SPREAD)
    centre, least_us = float(content["centre"]), float(content["least_us"])
    return Spread(seen, beyond, unseen, physics, domain, centre, least_us)


def _trees(content: Mapping[str, Any], folder: Path) -> Ensemble:
    path = folder / Path(content["file"]).name
    try:
        if _CLASS not in content and path.stat().st_size > _MOST_BYTES:
            raise ModelError(f"{path}: above {_MOST_BYTES} bytes; {_REMEDY}")
        raw = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
    if hashlib.sha256(raw).hexdigest() != content["sha256"]:
        raise ModelError(f"{path}: cut, or changed since it was written; {_REMEDY}")
    return Pickled(raw, str(path), content) if _CLASS in content else Trees(raw, str(path))


def _floors_to_json(floors: tuple[KnownFloor, ...]) -> list[dict[str, Any]]:
    return [
        {
            "device": dict(each.device),
            "floor_us": each.floor.floor_us,
            "offset_us": each.floor.offset_us,
        }
        for each in floors
    ]


def _floors_from_json(content: list[Mapping[str, Any]]) -> tuple[KnownFloor, ...]:
    return tuple(
        KnownFloor(each["device"], Floor(float(each["floor_us"]), float(each["offset_us"])))
        for each in content
    )

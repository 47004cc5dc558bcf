"""Finding parts: by their name in the catalogue, or in a file of the user."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from perfmodel.errors import HardwareError
from perfmodel.hardware.drivers import called, has_memory, memory_in, plain
from perfmodel.hardware.parts import KINDS, Device, Host, Node, Part, kind_of
from perfmodel.hardware.schema import build, fields_of
from perfmodel.hardware.tables import Table, expand, read_table

FOLDER = Path(__file__).parent / "catalogue"
_FOLDER_OF = {
    "device": "devices",
    "host": "hosts",
    "link": "links",
    "nic": "nics",
    "storage": "storage",
    "node": "nodes",
    "cluster": "clusters",
}
_MAX_EXTENDS = 10
PLAIN_HOST = "generic-server"

P = TypeVar("P", bound=Part)


@dataclass(frozen=True)
class Figure:
    """One figure of a part, as `perfmodel hardware` shows it."""

    key: str
    value: float
    source: str


def names(kind: str | None = None) -> list[str]:
    """Names of the catalogue's parts, sorted; of one kind (`device`, `node`, …) if given."""
    if kind is not None and kind not in KINDS:
        raise HardwareError(f"unknown kind {kind!r}; expected one of {', '.join(KINDS)}")
    return sorted(name for name, (its, _) in _files().items() if kind in (None, its))


def load(name_or_path: str | Path) -> Part:
    """The part of that name in the catalogue, or in the TOML file at that path.

    What ends in `.toml` or holds a `/` is a path. A device may also be given by its driver's name.
    Raises `HardwareError`: unknown name (with the nearest ones), or a file that does not hold.
    """
    if _is_path(name_or_path):
        return _read(Path(name_or_path))
    return _load_named(str(name_or_path))


def device(name_or_path: str | Path) -> Device:
    """The device of that name or file. Raises `HardwareError`, also when it is another kind."""
    return _expect(load(name_or_path), Device)


def host(name_or_path: str | Path) -> Host:
    """The host of that name or file. Raises `HardwareError`, also when it is another kind."""
    return _expect(load(name_or_path), Host)


def node(name_or_path: str | Path) -> Node:
    """The node of that name or file; for a device, the node that it usually sits in.

    Raises `HardwareError`, also for a part that is neither.
    """
    part = load(name_or_path)
    return node_of(part) if isinstance(part, Device) else _expect(part, Node)


def node_of(device: Device) -> Node:
    """The node that `device` usually sits in, with `device` and its links, and named after it.

    Where the catalogue has none: one device on a plain host.
    """
    if device.usual_node is None:
        return Node(name=device.name, device=device, gpus=1, host=host(PLAIN_HOST), sockets=1)
    usual = _expect(load(device.usual_node), Node)
    link = usual.link and replace(usual.link, gb_per_s=device.peer_gb_per_s)
    return replace(usual, name=device.name, device=device, link=link)


def devices() -> list[Device]:
    """Every device of the catalogue."""
    return [device(name) for name in names("device")]


def from_driver_name(name: str, memory_bytes: int | None = None) -> Device:
    """The device that a driver calls `name` (`NVIDIA H100 80GB HBM3`, `AMD Instinct MI210`).

    Matched without regard to case, maker and memory suffix; `memory_bytes`, as the driver reports
    it, decides between variants that only differ in memory. Raises `HardwareError` when no device
    has that name, when several have, and when its memory is another than the catalogue's.
    """
    found = called(name, devices())
    if not found:
        raise unknown(name)
    memory_bytes = memory_bytes or memory_in(name)
    fitting = [each for each in found if memory_bytes is None or has_memory(each, memory_bytes)]
    if len(fitting) == 1:
        return fitting[0]
    known = ", ".join(f"{each.name} ({each.hbm_bytes / 1e9:.0f} GB)" for each in found)
    if fitting:
        raise HardwareError(f"device {name[:80]!r} may be {known}: say which")
    raise HardwareError(
        f"device {name[:80]!r} with {(memory_bytes or 0) / 1e9:.0f} GB is none of {known}: "
        "describe it in a .toml file of your own"
    )


def figures(part: Part) -> list[Figure]:
    """Every figure that `part` itself holds, with its source; parts within it are left out."""
    found = []
    for key, entry in fields_of(type(part)).items():
        value = getattr(part, key)
        if entry.is_figure and value is not None:
            found.append(Figure(key, value, part.sources.get(key, "not stated")))
    return found


def unknown(name: str) -> HardwareError:
    """The error for a name that is in no file, naming the nearest that are."""
    text = plain(name).replace(" ", "-")
    known = names()
    within = [each for each in known if text and text in each]
    near = within or get_close_matches(text, known, n=4, cutoff=0.4) or names("device")
    return HardwareError(
        f"unknown hardware {name[:80]!r}; nearest: {', '.join(near[:8])} "
        "(or the path of a .toml file of your own)"
    )


def _is_path(name: str | Path) -> bool:
    return isinstance(name, Path) or name.endswith(".toml") or "/" in name


def _expect(part: Part, cls: type[P]) -> P:
    if not isinstance(part, cls):
        raise HardwareError(f"{part.name} is a {kind_of(part)}; expected a {kind_of(cls)}")
    return part


@cache
def _files() -> dict[str, tuple[str, Path]]:
    """Name of every part of the catalogue, to its kind and file."""
    found: dict[str, tuple[str, Path]] = {}
    for kind, folder in _FOLDER_OF.items():
        for path in sorted((FOLDER / folder).glob("*.toml")):
            if path.stem in found:
                raise HardwareError(f"{path}: the catalogue already has a {found[path.stem][0]}")
            found[path.stem] = (kind, path)
    return found


@cache
def _load_named(name: str) -> Part:
    if name not in _files():
        return from_driver_name(name)
    cls, table = _table(name, base=FOLDER, depth=0)
    return build(cls, table, _place(name))


def _read(path: Path) -> Part:
    cls, table = _table(str(path), base=Path(), depth=0)
    return build(cls, table, str(path))


def _table(name: str, *, base: Path, depth: int) -> tuple[type[Part], Table]:
    """The expanded table of a name, or of a path relative to the folder `base`."""
    if depth > _MAX_EXTENDS:
        raise HardwareError(f"{name}: extends itself, or a chain of more than {_MAX_EXTENDS} parts")
    if _is_path(name):
        path = base / name
        where, stem = str(path), path.stem
        table = read_table(path)
    elif name in _files():
        kind, path = _files()[name]
        where, stem = _place(name), name
        table = {"kind": kind} | read_table(path)
    else:
        raise unknown(name)
    lookup = partial(_table, base=path.parent, depth=depth + 1)
    return expand(table, where, lookup, name=stem)


def _place(name: str) -> str:
    """How errors and sources name a file of the catalogue: without this machine's folders."""
    return f"catalogue {_files()[name][0]} {name}"

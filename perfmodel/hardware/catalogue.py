"""Finding parts: by name, by a driver's name, or in a file; whole nodes and clusters; which device
one was made from by changing figures, and whose fitted figures a generation takes that has none of
its own."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cache, lru_cache, partial
from pathlib import Path
from types import MappingProxyType

from perfmodel.base.registry import Registry
from perfmodel.base.schema import Table, read_toml
from perfmodel.errors import HardwareError
from perfmodel.hardware.parts import KINDS, Cluster, Device, Host, Node, Part, a_kind_of, kind_of
from perfmodel.hardware.schema import MAX_NODES, Lookup, P, build_part, consistent, expand

FOLDER = Path(__file__).parent / "catalogue"
_MAX_EXTENDS, _MAX_BYTES = 10, 1_000_000


def names(kind: str | None = None) -> list[str]:
    """Names of the catalogue's parts, sorted; of one kind (`device`, `node`, …) if given."""
    _known_kind(kind)
    return sorted({name for its, name in _files() if kind in (None, its)})


def find(words: str = "", kind: str | None = None) -> list[Part]:
    """The catalogue's parts, or those of one kind, sorted by kind, maker and name.

    Only those that hold every word of `words` in name, maker, architecture or aliases.
    """
    _known_kind(kind)

    def says_all(part: Part) -> bool:
        more = (part.architecture or "", *part.aliases) if isinstance(part, Device) else ()
        text = " ".join((part.name, part.maker or "", *more)).lower()
        return all(word in text for word in words.lower().split())

    order = list(KINDS)
    parts = (_load_named(name, its) for its, name in _files() if kind in (None, its))
    return sorted(
        filter(says_all, parts),
        key=lambda it: (order.index(kind_of(it)), it.maker is None, it.maker or "", it.name),
    )


def load(name_or_path: str | Path, kind: str | None = None) -> Part:
    """The part of that name in the catalogue, or in the TOML file at that path.

    What ends in `.toml` or holds a `/` is a path. A device may also be given by its driver's name.
    Names are unique within a kind; of two parts with one name (a CPU is a device and a host) that
    of `kind` is taken, else the first in the order of `KINDS`.
    Raises `HardwareError`: unknown name (with the nearest ones), or a file that does not hold.
    """
    if not _is_path(name_or_path):
        return _load_named(str(name_or_path), kind)
    path = Path(name_or_path)
    cls, table = _expanded_table(str(path), None, base=Path())
    return build_part(cls, table, str(path))


def parts_named(name_or_path: str | Path) -> list[Part]:
    """Every part of that name (a CPU is a device and a host), or the one that `load` finds."""
    kinds = [kind for kind, name in _files() if name == name_or_path]
    return [load(name_or_path, kind) for kind in kinds] or [load(name_or_path)]


def device(name_or_path: str | Path) -> Device:
    """The device of that name or file. Raises `HardwareError`, also when it is another kind."""
    return expect_kind(load(name_or_path, "device"), Device)


def host(name_or_path: str | Path) -> Host:
    """The host of that name or file. Raises `HardwareError`, also when it is another kind."""
    return expect_kind(load(name_or_path, "host"), Host)


def devices() -> list[Device]:
    return [device(name) for name in names("device")]


def from_driver_name(name: str, memory_bytes: int | None = None) -> Device:
    """The device that a driver calls `name` (`NVIDIA H100 80GB HBM3`, `AMD Instinct MI210`).

    Matched without regard to case, maker and memory suffix; `memory_bytes`, as the driver reports
    it, decides between variants that only differ in memory. Raises `HardwareError` when no device
    has that name, when several have, and when its memory is another than the catalogue's.
    """
    devices = _devices_that_mention(_name_without_memory(name).split())
    for form in (normalised_name, _name_without_memory):
        result = [d for d in devices if form(name) in map(form, (d.name, *d.aliases))]
        if result:
            break
    else:
        raise unknown_name_error(name)
    if not memory_bytes and (size := _SIZE.search(normalised_name(name))):
        memory_bytes = int(size[1]) * 2**30
    fitting = [
        each
        for each in result
        if not memory_bytes or abs(memory_bytes / each.hbm_bytes - 1) <= _TOLERANCE_FRAC
    ]
    if len(fitting) == 1:
        return fitting[0]
    known = ", ".join(f"{each.name} ({each.hbm_bytes / 1e9:.0f} GB)" for each in result)
    if fitting:
        raise HardwareError(f"device {name[:80]!r} may be {known}: say which")
    raise HardwareError(
        f"device {name[:80]!r} with {(memory_bytes or 0) / 1e9:.0f} GB is none of {known}: "
        "describe it in a .toml file of your own"
    )


def _devices_that_mention(words: list[str]) -> list[Device]:
    """The devices whose file holds every word: all that can go by a name of these words, since
    aliases are not inherited. Reading a text is cheap, building a device is not."""
    files = [(name, path) for (kind, name), path in _files().items() if kind == "device"]
    texts = {name: f"{name} {path.read_text('utf-8')}".lower() for name, path in files}
    return [device(name) for name, text in texts.items() if all(word in text for word in words)]


def unknown_name_error(name: str) -> HardwareError:
    """The error for a name that is in no file, naming the nearest that are."""
    return HardwareError(
        f"unknown hardware {name[:80]!r}; nearest: {', '.join(nearest_names(name, names())[:8])} "
        "(or the path of a .toml file of your own)"
    )


def expect_kind(part: Part, cls: type[P]) -> P:
    """`part`, which must be of type `cls`; raises `HardwareError` where it is another kind."""
    if not isinstance(part, cls):
        raise HardwareError(f"{part.name} is {a_kind_of(part)}; expected {a_kind_of(cls)}")
    return part


def lookup_from(folder: Path, within: tuple[str, ...] = ()) -> Lookup:
    """How names and paths (relative to `folder`) in a table are found, itself `within` others."""
    return partial(_expanded_table, base=folder, within=within)


def _known_kind(kind: str | None) -> None:
    if kind is not None and kind not in KINDS:
        raise HardwareError(f"unknown kind {kind!r}; expected one of {', '.join(KINDS)}")


def _is_path(name: str | Path) -> bool:
    return isinstance(name, Path) or name.endswith(".toml") or "/" in name


@cache
def _files() -> dict[tuple[str, str], Path]:
    """Kind and name of every part of the catalogue, to its file; in the order of `KINDS`."""
    return {
        (kind, path.stem): path
        for kind in KINDS
        for path in sorted((FOLDER / f"{kind}s").glob("*.toml"))
    }


def _kind_of_name(name: str, kind: str | None) -> str | None:
    """`kind` where the catalogue has such a part of that name, else the first kind that has one."""
    if kind is not None and (kind, name) in _files():
        return kind
    return next((its for its, known in _files() if known == name), None)


@cache
def _load_named(name: str, kind: str | None) -> Part:
    its = _kind_of_name(name, kind)
    if its is None:
        return from_driver_name(name)
    cls, table = _expanded_table(name, KINDS[its], base=FOLDER)
    return build_part(cls, table, f"catalogue {its} {name}")


def _expanded_table(
    name: str, wanted: type[Part] | None, *, base: Path, within: tuple[str, ...] = ()
) -> tuple[type[Part], Table]:
    """The expanded table of a name, or of a path relative to the folder `base`; `within` are the
    files on the way to it."""
    if _is_path(name):
        path = base / name
        where, stem = str(path), path.stem
        if str(path.resolve()) in within or len(within) > _MAX_EXTENDS:
            raise HardwareError(
                f"{name}: extends itself, or a chain of more than {_MAX_EXTENDS} parts"
            )
        table = read_toml(path, _MAX_BYTES, HardwareError)
    elif kind := _kind_of_name(name, kind_of(wanted) if wanted else None):
        path = _files()[kind, name]
        where, stem = f"catalogue {kind} {name}", name
        table = {"kind": kind} | read_toml(path, _MAX_BYTES, HardwareError)
    else:
        raise unknown_name_error(name)
    within = (*within, str(path.resolve()))
    cls, table = expand(table, where, lookup_from(path.parent, within), name=stem)
    if cls is Device and not _is_path(name):
        table["based_on"] = name
    return cls, table


_MAKER = re.compile(
    r"\b(nvidia|amd|intel|tesla|geforce|instinct|radeon|graphics|corporation)\b|\([^()]*\)"
)
"""Words that name a maker or a line of products, and remarks in parentheses."""
_CPU = re.compile(r"\b\d+-core\b|\b(cpu|processor)\b|@ ?[\d.]+ ?ghz\b")
"""What Linux writes around the name of a CPU."""
_SIZE = re.compile(r"\b(\d+) ?gi?b\b")
"""The memory that a name tells: `80GB` is 80 GiB."""
_MEMORY = re.compile(r"\b\d+ ?gi?b\b|\bhbm\w+")
_TOLERANCE_FRAC = 0.15
"""Drivers report up to 8 % less than the datasheet, which mixes GB with GiB (7 %)."""


def nearest_names(name: str, known: Sequence[str]) -> list[str]:
    """Of the catalogue's names, those that hold every word of `name`, else the four most alike.

    Alike as a whole, or in as many first words: `h900` is more like `h100-sxm` than like `p100`.
    """
    words = normalised_name(name)[:80].split()
    within = [each for each in known if words and all(word in each for word in words)]
    if within:
        return sorted(within, key=lambda each: not each.startswith(words[0]))
    text = "-".join(words)

    def likeness(each: str) -> float:
        begin = "-".join(each.split("-")[: max(len(words), 1)])
        return max(SequenceMatcher(None, text, form).ratio() for form in (each, begin))

    return sorted(known, key=likeness, reverse=True)[:4]


def normalised_name(name: str) -> str:
    """`name` in lower case, with one space between words, without maker and remarks."""
    return " ".join(re.sub(r"[-_ ]+", " ", _CPU.sub(" ", _MAKER.sub(" ", name.lower()))).split())


def _name_without_memory(name: str) -> str:
    return " ".join(_MEMORY.sub(" ", normalised_name(name)).split())


PLAIN_HOST = "generic-server"


def node(given: str | Path | Part) -> Node:
    """The node of that name or file, or the part itself; of a device the one it usually sits in.

    Raises `HardwareError`, also for a part that is neither.
    """
    part = given if isinstance(given, Part) else load(given)
    return node_of(part) if isinstance(part, Device) else expect_kind(part, Node)


@lru_cache(maxsize=64)
def node_of(device: Device) -> Node:
    """The node that `device` usually sits in, with `device` and its links, and named after it.

    Where the catalogue has none: one device on its usual host, else on a plain one.
    """
    if device.usual_node is None:
        hangs_on = host(device.usual_host or PLAIN_HOST)
        return Node(name=device.name, device=device, gpus=1, host=hangs_on, sockets=1)
    usual = expect_kind(load(device.usual_node, "node"), Node)
    link = usual.link and replace(usual.link, gb_per_s=device.peer_gb_per_s)
    return replace(usual, name=device.name, device=device, link=link)


def cluster(given: str | Path | Part, nodes: int | None = None) -> Cluster:
    """`nodes` equal nodes (1 unless the part is a cluster, whose number it replaces).

    `given` is a cluster, a node or a device by name or file, or the part itself. Raises
    `HardwareError`, also for a number of nodes that cannot be.
    """
    if nodes is not None and not 1 <= nodes <= MAX_NODES:
        raise HardwareError(f"nodes: expected a whole number from 1 to {MAX_NODES}, got {nodes}")
    part = given if isinstance(given, Part) else load(given)
    if isinstance(part, Cluster):
        return part if nodes is None else consistent(replace(part, nodes=nodes), part.name)
    one = node(part)
    source = MappingProxyType({"nodes": "given"})
    return Cluster(name=one.name, maker=one.maker, node=one, nodes=nodes or 1, sources=source)


def original(device: Device) -> Device:
    """The catalogue's device that `device` was made from by changing figures; else itself, also
    where it is another chip by now."""
    if device.based_on is None:
        return device
    known = expect_kind(load(device.based_on, "device"), Device)
    chip = ("target", "compute_capability", "sm_count")
    is_its_chip = all(getattr(known, name) == getattr(device, name) for name in chip)
    return known if is_its_chip and known != device else device


@dataclass(frozen=True)
class Generation:
    """A maker's generation. A model that has no figures of it takes those of the generation `like`
    it, else usual ones. `reduces_in_switch`: links over a switch that adds up by itself (NVLink
    SHARP)."""

    maker: str
    like: str | None = None
    reduces_in_switch: bool = False


GENERATIONS: Registry[Generation] = Registry("device generation", "perfmodel.generations")
"""By `architecture` of a device."""

for _name in ("maxwell", "pascal", "volta", "turing", "ampere", "ada"):
    GENERATIONS.register(_name)(Generation("nvidia"))
for _name in ("hopper", "blackwell"):
    GENERATIONS.register(_name)(Generation("nvidia", reduces_in_switch=True))
GENERATIONS.register("rtx-blackwell")(Generation("nvidia", "ada"))
for _name, _like in (("gcn5", None), ("cdna", None), ("cdna2", "cdna"), ("cdna3", "cdna2")):
    GENERATIONS.register(_name)(Generation("amd", _like))
GENERATIONS.register("cdna4")(Generation("amd", "cdna3"))


def lineage(generation: str | None) -> Iterator[str]:
    """`generation`, then the one that it is like, and so on; an unknown one stands alone."""
    seen: set[str] = set()
    while generation and generation not in seen:
        yield generation
        seen.add(generation)
        known = GENERATIONS.get(generation)
        generation = known.like if known else None


def nearest_known(generation: str | None, known: Collection[str]) -> str | None:
    """The first of its lineage that is among `known`; None if none is."""
    return next((each for each in lineage(generation) if each in known), None)


def reduces_in_switch(generation: str) -> bool:
    """Whether switches between such devices add up by themselves; unknown ones do not."""
    known = GENERATIONS.get(generation)
    return known is not None and known.reduces_in_switch


def unknown_generations(devices: Iterable[Device]) -> list[str]:
    """A note for every GPU of a generation that nobody registered."""
    return [
        f"{device.name}: nothing is known of the generation {device.architecture!r}: models take "
        f"usual figures (known: {', '.join(GENERATIONS)})"
        for device in {each.name: each for each in devices}.values()
        if device.target != "cpu" and device.architecture
        if device.architecture not in GENERATIONS
    ]

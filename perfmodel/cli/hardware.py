"""`perfmodel hardware`: the catalogue, one part of it, or a file of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfmodel.cli.output import STDOUT, Output, rows_csv
from perfmodel.errors import UsageError

if TYPE_CHECKING:
    from perfmodel.hardware import Part


SCHEMA = "perfmodel.hardware/1"
LIST, SHOW, CHECK = ACTIONS = ("list", "show", "check")


def hardware(
    what: list[str] | None = None,
    kind: str | None = None,
    settings: list[str] | None = None,
    nodes: int | None = None,
    target: Output = STDOUT,
) -> None:
    """The hardware catalogue: list, show, check files of your own.

    \b
    Examples:
      perfmodel hardware                       everything that has a name
      perfmodel hardware list --kind device
      perfmodel hardware list amd cdna3
      perfmodel hardware show h100-sxm         each figure and where it comes from
      perfmodel hardware show dgx-h100 --nodes 4 --set device.hbm_gb_per_s=3000
      perfmodel hardware check my-gpu.toml
    """
    action, words = _action(what or [])
    if kind is not None and action != LIST:
        raise UsageError(f"--kind is for `hardware {LIST}`")
    if (settings or nodes is not None) and action != SHOW:
        raise UsageError(f"--set and --nodes are for `hardware {SHOW}`")
    from perfmodel.cli import hardware_tables as tables
    from perfmodel.hardware import load

    if action == LIST:
        parts, show = _listed(words, kind), tables.show_list
    elif action == SHOW:
        parts = [part for name in words for part in _shown(name, settings or [], nodes)]
        show = tables.show_parts
    else:
        parts, show = [load(name) for name in words], tables.show_checked
    target.write(
        lambda: {"schema": SCHEMA, "parts": [part_dict(part) for part in parts]},
        lambda: _csv(parts),
        lambda console: show(console, parts),
    )


def _action(words: list[str]) -> tuple[str, list[str]]:
    """What to do, and with which names."""
    if not words:
        return LIST, []
    action, names = (words[0], words[1:]) if words[0] in ACTIONS else (SHOW, words)
    if action != LIST and not names:
        raise UsageError(f"hardware {action} needs at least one name or file")
    return action, names


def _listed(words: list[str], kind: str | None) -> list[Part]:
    from perfmodel.hardware import find

    parts = find(" ".join(words), kind)
    if not parts:
        where = f"{kind}s" if kind else "parts"
        raise UsageError(f"none of the catalogue's {where} holds {' and '.join(words)!r}")
    return parts


def _shown(name: str, settings: list[str], nodes: int | None) -> list[Part]:
    """What goes by `name`; with settings of its node, or a number of nodes, the whole machine."""
    from perfmodel.hardware import Device, cluster, load, node, with_settings
    from perfmodel.hardware.catalogue import parts_named

    if nodes is not None:
        return [with_settings(cluster(name, nodes), settings)]
    if not settings:
        return parts_named(name)
    part = load(name)
    of_device = all(setting.strip().startswith("device.") for setting in settings)
    whole = node(part) if isinstance(part, Device) and not of_device else part
    return [with_settings(whole, settings)]


def part_dict(part: Part) -> dict[str, Any]:
    """One part as `docs/schemas/hardware.json` describes it."""
    from perfmodel.hardware import figures, kind_of
    from perfmodel.hardware.parts import parts_of, texts_of

    return {
        "name": part.name,
        "kind": kind_of(part),
        "texts": texts_of(part),
        "text_sources": {key: part.sources[key] for key in texts_of(part) if key in part.sources},
        "parts": {key: part_dict(inner) for key, inner in parts_of(part).items()},
        "figures": [
            {"key": figure.key, "value": figure.value, "source": figure.source}
            for figure in figures(part)
        ],
    }


def _csv(parts: list[Part]) -> str:
    """One row per figure."""
    rows = [
        {"kind": each["kind"], "name": each["name"], **figure}
        for each in map(part_dict, parts)
        for figure in each["figures"]
    ]
    return rows_csv(rows, ("kind", "name", "key", "value", "source"))

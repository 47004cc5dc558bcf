"""What was recorded of a peer on another machine, and its place in the table here."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.tools import Tool


def recorded(tool: Tool, reference: Path, name: str, steps: str) -> dict[str, Any] | None:
    """The golden record of a peer on a trace: its own times, on the machine that made it."""
    if tool.recorded is None:
        return None
    path = reference / "golden" / tool.recorded / (name.replace("/", "__") + ".json")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    stages = {
        ours: record["wall_s"][theirs]
        for ours, theirs in tool.recorded_stages.items()
        if theirs in record["wall_s"]
    }
    paths = record.get("critical_path") or {}
    if steps == "one" and paths:
        walls = [found["wall_s"] for found in paths.values() if "wall_s" in found]
        if walls:
            stages["critical_path"] = walls[min(1, len(walls) - 1)]
    work_s = sum(stages.values())
    import_s = record.get("import_s", 0.0)
    # The whole process as it was timed from outside, less what it did beyond our stages.
    beyond_s = record["total_wall_s"] - import_s - work_s
    return {
        "of": tool.recorded_title,
        "peer": record.get("peer", ""),
        "stages": stages,
        "work_s": work_s,
        "import_s": import_s,
        "wall_s": record["time_v"]["wall_s"] - beyond_s,
        "rss_mib": record["time_v"]["max_rss_kb"] / 1024,
        "errors": record.get("errors", {}),
    }


def machine_factor(runs: list[dict[str, Any]], record: dict[str, Any] | None) -> float | None:
    """This machine's time over the recording machine's, from HTA, which was measured on both.

    The recording machine was shared, so its wall times are about 2.2 times the CPU times; the
    factor takes that out as well. In-process times make it; wall times then test it.
    """
    good = [run for run in runs if not run["failure"]]
    if not good or record is None:
        return None
    shared = [stage for stage in record["stages"] if stage in good[0]["stages"]]
    here = statistics.median(sum(run["stages"].get(s, 0.0) for s in shared) for run in good)
    there = sum(record["stages"][stage] for stage in shared)
    return here / there if there else None


def stand_in(
    tool: Tool, record: dict[str, Any], factor: float | None, why: str
) -> list[dict[str, Any]]:
    """Rows for a peer that was not measured here: as recorded, and scaled to this machine."""
    base = {
        "tool": tool.name,
        "import_s": record["import_s"],
        "cpu_s": None,
        "rss_mib": record["rss_mib"],
        "note": why,
    }
    errors = "; ".join(f"{stage}: {error}" for stage, error in record["errors"].items())
    rows = [
        {
            **base,
            "title": f"{record['of']} (recorded)",
            "kind": "recorded",
            "wall_s": record["wall_s"],
            "work_s": record["work_s"],
            "stages": record["stages"],
            "note": "; ".join(filter(None, (why, errors))),
        }
    ]
    if factor is not None:
        rows.append(
            {
                **base,
                "title": f"{record['of']} (recorded x {factor:.2f})",
                "kind": "scaled",
                "factor": factor,
                "wall_s": record["wall_s"] * factor,
                "work_s": record["work_s"] * factor,
                "import_s": record["import_s"] * factor,
                "stages": {stage: value * factor for stage, value in record["stages"].items()},
                "note": "scaled by HTA's in-process time here over its time as recorded",
            }
        )
    return rows

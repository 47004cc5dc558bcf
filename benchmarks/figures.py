"""From single runs to figures: medians, ratios, and whether the promises hold."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.tools import PEERS, Tool

# What has to hold (`--check`): ours is this many times faster than the peer, as a whole process
# and in-process, and takes at most this share of the memory of the peer that takes least.
SPEEDUP = {"hta": 10.0, "tracelens": 5.0}
MEMORY_SHARE = 0.6


def summarise(tool: Tool, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the repeats that worked; what failed is said, never left out."""
    good = [run for run in runs if not run["failure"]]
    if not good:
        return {
            "tool": tool.name,
            "title": tool.title,
            "kind": "failed",
            "note": (runs[0]["failure"] if runs else "not run"),
        }
    stage_names = list(dict.fromkeys(name for run in good for name in run["stages"]))
    notes = [f"{stage}: {error}" for stage, error in good[0]["errors"].items()]
    if len(good) < len(runs):
        failed = next(run["failure"] for run in runs if run["failure"])
        notes.append(f"{len(runs) - len(good)} of {len(runs)} runs failed ({failed})")
    figures: dict[str, Any] = {
        key: statistics.median(run[key] for run in good)
        for key in ("wall_s", "work_s", "import_s", "cpu_s", "rss_mib")
    }
    return {
        "tool": tool.name,
        "title": tool.title,
        "kind": "measured",
        **figures,
        "wall_min_s": min(run["wall_s"] for run in good),
        "wall_max_s": max(run["wall_s"] for run in good),
        "stages": {
            name: statistics.median(run["stages"].get(name, 0.0) for run in good)
            for name in stage_names
        },
        "result": good[0]["result"],
        "runs": len(good),
        "note": "; ".join(notes),
    }


def ratio_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every row against ours and against the floor, both ways."""
    measured = {row["tool"]: row for row in rows if row["kind"] == "measured"}
    ours, floor = measured.get("ours"), measured.get("floor")

    def over(a: dict[str, Any] | None, b: dict[str, Any] | None, key: str) -> float | None:
        if a is None or b is None or not a.get(key) or not b.get(key):
            return None
        return float(a[key] / b[key])

    return [
        {
            "tool": row["tool"],
            "title": row["title"],
            "kind": row["kind"],
            **{
                f"{name}_{way}": over(above, below, key)
                for name, key in (
                    ("wall", "wall_s"),
                    ("work", "work_s"),
                    ("cpu", "cpu_s"),
                    ("memory", "rss_mib"),
                )
                for way, above, below in (
                    ("over_ours", row, ours),
                    ("ours_over", ours, row),
                    ("over_floor", row, floor),
                )
            },
        }
        for row in rows
        if row["kind"] != "failed"
    ]


def check(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """The promises, one by one, each also against the records that stand in for a peer."""
    found = []
    for row in trace["ratios"]:
        factor = SPEEDUP.get(row["tool"])
        if factor is None:
            continue
        for key, title in (("wall", "wall"), ("work", "in-process")):
            value = row[f"{key}_over_ours"]
            found.append(
                {
                    "what": f"{row['title']} / ours, {title}",
                    "value": value,
                    "limit": f">= {factor:g}",
                    "holds": value is not None and value >= factor,
                    "kind": row["kind"],
                }
            )
    peers = [row for row in trace["rows"] if row["tool"] in PEERS and row["kind"] != "failed"]
    ours = next(row for row in trace["rows"] if row["tool"] == "ours")
    if peers:
        least = min(peers, key=lambda row: float(row["rss_mib"]))
        value = ours["rss_mib"] / least["rss_mib"] if ours["kind"] == "measured" else None
        found.append(
            {
                "what": f"ours / {least['title']} (takes least), peak memory",
                "value": value,
                "limit": f"<= {MEMORY_SHARE:g}",
                "holds": value is not None and value <= MEMORY_SHARE,
                "kind": least["kind"],
            }
        )
    return found

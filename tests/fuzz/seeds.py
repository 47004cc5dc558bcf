"""Small real files to damage: the bundled demo, `traces/`, and reference data where it is there."""

from __future__ import annotations

import gzip
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from cli.samples import document

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "perfmodel" / "demo"
REFERENCE = Path(os.environ.get("PERFMODEL_REFERENCE", ROOT.parent / "shared" / "data"))
MAX_EVENTS = 350
_REFERENCE_TRACES = (
    "critical_path/a100_alexnet.json.gz",
    "critical_path/a100_event_sync.json.gz",
    "et_kineto_pairs/a100_simple_add_kineto.json.gz",
    "dlrm_v100x8/kineto_rank0.json.gz",
    "train/v100_resnet50_workers0_a.json.gz",
    "inference/h100_qwen1.5-0.5b.json.gz",
)


def content_of(path: Path) -> bytes:
    """A file's content, gunzipped where it is gzip."""
    raw = path.read_bytes()
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw


@cache
def trace_seeds() -> tuple[bytes, ...]:
    """The traces as JSON, each cut to its first events on host and device."""
    paths = [
        DEMO / "dlrm_cpu_kineto.json.gz",
        ROOT / "traces/cpu_dlrm_2rank/dlrm_rank0_kineto.json.gz",
    ]
    paths += [REFERENCE / "traces" / name for name in _REFERENCE_TRACES]
    found = [json.loads(content_of(path)) for path in paths if path.exists()]
    found += [document(), document(steps=4, world_size=2)]
    return tuple(json.dumps(_shortened(each)).encode() for each in found)


def _shortened(trace: dict[str, Any]) -> dict[str, Any]:
    """The first complete events that end within the time of the first `MAX_EVENTS`, and steps."""
    events = [e for e in trace["traceEvents"] if e.get("ph") in ("X", "M")]
    timed = sorted((e for e in events if e["ph"] == "X"), key=lambda e: float(e["ts"]))
    kernels = [e for e in timed if e.get("cat") == "kernel"]
    first = float(kernels[0]["ts"]) if kernels else float(timed[0]["ts"])
    from_us = max(float(timed[0]["ts"]), first - 2000)
    near = [e for e in timed if float(e["ts"]) >= from_us][:MAX_EVENTS]
    until = max(float(e["ts"]) for e in near)
    steps = [e for e in timed if e["name"].startswith("ProfilerStep") and float(e["ts"]) < until]
    keep = {id(e) for e in (*near, *steps)}
    keep |= {id(e) for e in events if e["ph"] == "M"}
    return trace | {"traceEvents": [e for e in events if id(e) in keep]}


@cache
def execution_trace_seed() -> bytes:
    """The demo's execution trace, cut to the subtrees of its first operators."""
    trace = json.loads(content_of(DEMO / "dlrm_cpu_et.json.gz"))
    kept: set[Any] = set()
    nodes = []
    for node in trace["nodes"]:
        parent = node.get("ctrl_deps", node.get("parent"))
        if len(nodes) < 120 and (not nodes or parent in kept or parent == node["id"]):
            kept.add(node["id"])
            nodes.append(node)
    return json.dumps(trace | {"nodes": nodes}).encode()

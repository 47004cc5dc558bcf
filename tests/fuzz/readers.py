"""Each kind of file: small real seeds, ways to damage it, and what reading and using it means."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz import file_seeds as seeds
from fuzz.damage import Damage, Damaged
from fuzz.outcome import Reader


@dataclass(frozen=True)
class Kind:
    """One kind of file; `verb` are command lines with `{}` for its path."""

    name: str
    suffix: str
    seeds: Callable[[], Sequence[bytes]]
    damages: tuple[Damage, ...]
    read: Reader
    commands: tuple[tuple[str, ...], ...] = ()

    def damaged(self, at: random.Random, start: bytes | None = None) -> Damaged:
        """`start`, else one of the seeds, damaged in one of the ways."""
        damage = at.choice(self.damages)
        return damage(at.choice(self.seeds()) if start is None else start, at)


def read_trace(path: Path) -> tuple[Any, list[str]]:
    """What `breakdown` and `predict` do with a trace; clean where one of them is."""
    import perfmodel

    trace = perfmodel.read(path)
    broken = perfmodel.breakdown(trace)
    predicted = perfmodel.predict(trace)
    told = broken.warnings if predicted.warnings else []
    return [broken.to_dict(), predicted.to_dict()], told


def read_execution_trace(path: Path) -> tuple[Any, list[str]]:
    """An execution trace by itself: its table, its tensors' dependencies, its collectives."""
    import perfmodel

    trace = perfmodel.read(path)
    for each in trace.execution_traces.values():
        each.data_dependencies()
    return None, trace.warnings


def read_hardware(path: Path) -> tuple[Any, list[str]]:
    from perfmodel.hardware import figures, load

    return [[each.key, each.value] for each in figures(load(path))], []


def read_workload(path: Path) -> tuple[Any, list[str]]:
    from perfmodel.workload import load_workload

    workload = load_workload(path)
    return [workload.dense_parameters, workload.table_parameters], []


def read_kernel_rows(path: Path) -> tuple[Any, list[str]]:
    from perfmodel.validate.calibrate.kernel_data import devices_of, family_rows, joined, read_table

    frame = joined([read_table(path)])
    devices_of(frame["device"])
    family_rows(frame, "matmul")
    return None, []


def read_steps(path: Path) -> tuple[Any, list[str]]:
    from perfmodel.validate.calibrate.steps import read_steps as steps

    return [str(each) for each in steps(path)], []


def read_baseline(path: Path) -> tuple[Any, list[str]]:
    from perfmodel.validate.evaluate.baseline import read_baseline as rows

    return list(rows(path)), []


def read_overheads(path: Path) -> tuple[Any, list[str]]:
    import perfmodel

    return str(perfmodel.load_profile(path)), []


def read_manifest(path: Path) -> tuple[Any, list[str]]:
    """The manifest in a copy of the bundled models."""
    return _models({"manifest.json": path.read_bytes()})


def read_trees(path: Path) -> tuple[Any, list[str]]:
    """One ensemble in a copy of the bundled models."""
    return _models({"attention.trees.gz": path.read_bytes()})


def read_sealed_manifest(path: Path) -> tuple[Any, list[str]]:
    """A manifest of one part whose digest was computed anew, and what its models answer."""
    return _models({"manifest.json": _sealed(path.read_bytes())}, ask=True)


def read_sealed_trees(path: Path) -> tuple[Any, list[str]]:
    """An ensemble, unpacked, whose digests were computed anew, and what it answers."""
    import gzip
    import hashlib

    from fuzz.file_seeds import SEALED_TREES, sealed_manifest

    packed = gzip.compress(path.read_bytes(), 1)
    document = json.loads(sealed_manifest())
    part = document["parts"][0]
    part["files"][""]["sha256"] = hashlib.sha256(packed).hexdigest()
    manifest = _sealed(json.dumps(document).encode())
    return _models({"manifest.json": manifest, SEALED_TREES: packed}, ask=True)


def _sealed(manifest: bytes) -> bytes:
    """What somebody writes who knows how the digest is made; anything else as it is."""
    import hashlib

    try:
        content = json.loads(manifest)
        content.pop("sha256", None)
    except (ValueError, AttributeError, RecursionError):
        return manifest
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    sha256 = hashlib.sha256(canonical.encode()).hexdigest()
    return json.dumps(content | {"sha256": sha256}).encode()


def _models(files: dict[str, bytes], ask: bool = False) -> tuple[Any, list[str]]:
    """Load the bundled models with `files` in place of theirs; `ask` also for durations."""
    import tempfile

    import pandas as pd
    from fuzz.seeds import ROOT

    import perfmodel
    from perfmodel.cost.learned.store import load_models

    with tempfile.TemporaryDirectory() as folder:
        for each in (ROOT / "perfmodel" / "cost" / "bundled").iterdir():
            if each.name not in files:
                (Path(folder) / each.name).symlink_to(each)
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        load_models(folder)
        if not ask:
            return None, []
        rows = pd.DataFrame(ASKED, columns=["op", "dtype", "rows", "cols"])
        answers = []
        for device in ("h100-sxm", "l4"):
            own = perfmodel.durations(rows, device, models=folder)
            answers.append(own[["low_us", "duration_us", "high_us"]].to_numpy().tolist())
        return answers, []


ASKED = [
    (op, "fp16", rows, cols)
    for op in ("rms_norm", "gelu", "silu_and_mul", "layer_norm")
    for rows, cols in ((8.0, 128.0), (4096.0, 4096.0))
]
"""Rows that one part answers for, whose manifest and trees are damaged."""


def read_collective_model(path: Path) -> tuple[Any, list[str]]:
    from benchmarks.collective_model import model_to_dict
    from perfmodel.cost.collectives.learned import load

    return model_to_dict(load(path), {}), []


def read_machine(path: Path) -> tuple[Any, list[str]]:
    from perfmodel.cost.collectives.calibrated import load_machine

    return load_machine(path).level, []


def read_curves(path: Path) -> tuple[Any, list[str]]:
    return _curves_and_points(path, path.with_name("sound-points.csv"), seeds.points())


def read_points(path: Path) -> tuple[Any, list[str]]:
    return _curves_and_points(path.with_name("sound-curves.csv"), path, seeds.curves())


def _curves_and_points(curves: Path, points: Path, sound: bytes) -> tuple[Any, list[str]]:
    """What a fit starts from, and how far the shipped model is off."""
    import numpy as np

    from benchmarks.collective_model import initial_constants, read_measured
    from benchmarks.published.collectives import evaluate_collectives
    from perfmodel.cost.collectives.algorithms import costs_of
    from perfmodel.cost.collectives.learned import features_of

    next(each for each in (curves, points) if each.name.startswith("sound")).write_bytes(sound)
    measured, left_out = read_measured([(str(curves), str(points))])
    costs = costs_of(measured.calls, initial_constants())
    columns = [
        costs.total_us,
        measured.points["weight"],
        *features_of(measured.calls, costs).values(),
    ]
    assert all(np.isfinite(np.asarray(each, np.float64)).all() for each in columns)
    found = evaluate_collectives(str(curves), str(points))
    return found.to_dict(), [*left_out.values(), *found.warnings]


def read_log(path: Path) -> tuple[Any, list[str]]:
    from perfmodel.base.files import read_bytes
    from perfmodel.cost.collectives.calibrated import parse

    text = read_bytes(path).decode("utf-8", "replace")
    return [str(point) for point in parse(text, str(path))], []


def read_prediction(path: Path) -> tuple[Any, list[str]]:
    from perfmodel.reporting.difference import difference
    from perfmodel.reporting.sides import side_of

    side = side_of(str(path))
    return difference(side, side).to_dict(), []


def read_sweep(path: Path) -> tuple[Any, list[str]]:
    from perfmodel.explore.spec import load_spec

    spec = load_spec(path)
    return [len(spec.points), str(spec)], []


def read_placement(path: Path) -> tuple[Any, list[str]]:
    """A plan for the small workload on one node of eight GPUs."""
    from fuzz.file_seeds import WORKLOAD

    from perfmodel.explore.torchrec import read_plan
    from perfmodel.hardware import cluster, load
    from perfmodel.hardware.parts import Node
    from perfmodel.workload import load_workload

    model = path.with_name("workload-of-plan.toml")
    model.write_text(WORKLOAD)
    node = load("dgx-a100-40gb")
    assert isinstance(node, Node)
    return str(read_plan(path, load_workload(model), cluster(node, 1))), []


def read_stream(path: Path) -> tuple[Any, list[str]]:
    from perfmodel.embedding import read_stream as stream
    from perfmodel.embedding import reuse_histogram

    return [reuse_histogram(rows).distinct_rows for rows in stream(path).values()], []


def _plain(value: Any) -> Any:
    """What may go into JSON; figures as they are, so that NaN shows."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if isinstance(value, (int, float, str, bool)) or value is None else str(value)

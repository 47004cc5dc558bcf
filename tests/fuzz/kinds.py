"""All kinds of files but traces: seeds, damage, readers, and the verbs that read them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from fuzz import file_seeds as seeds
from fuzz import readers as read
from fuzz.damage import (
    Damage,
    Damaged,
    any_bytes,
    at_path,
    checked_bytes,
    csv_cells,
    json_bytes,
    json_types,
    places,
    toml_bytes,
    toml_types,
)
from fuzz.outcome import VALUE
from fuzz.readers import Kind
from fuzz.seeds import execution_trace_seed

TOML: tuple[Damage, ...] = (toml_bytes, toml_types, toml_types)
JSON: tuple[Damage, ...] = (json_bytes, json_types)
ON = ("--hardware", "dgx-a100-40gb")


def _given(*content: bytes) -> Callable[[], tuple[bytes, ...]]:
    return lambda: content


def _log_rows(content: bytes, at: random.Random) -> Damaged:
    """A row of a log whose time is none, or whose size is none."""
    lines = content.decode().split("\n")
    row = at.choice([i for i, line in enumerate(lines) if line[:1] == " " and line.split()])
    words = lines[row].split()
    new = at.choice(("abc", "nan", "inf", "-4", "1e999", "null"))
    words[5] = new
    lines[row] = " ".join(words)
    return Damaged("type", f"time {new}", "\n".join(lines).encode())


def _rates(content: bytes, at: random.Random) -> Damaged:
    """A rate in a table of curves, which need not have one, that cannot be."""
    lines = content.decode().split("\n")
    row = at.randrange(1, len(lines) - 1)
    cells, new = lines[row].split(","), at.choice(("abc", "-5", "inf", "-inf", "1e999", "9" * 400))
    cells[at.choice((6, 7))] = new
    lines[row] = ",".join(cells)
    return Damaged("invariant", f"rate {new}", "\n".join(lines).encode())


def _numbers(content: bytes, at: random.Random) -> Damaged:
    """A number of a document, not below `about`, that is out of all range."""
    document = json.loads(content)
    every = [each for each in places(document) if each[0] not in ("about", "schema", "sha256")]
    every = [each for each in every if not isinstance(at_path(document, each), str)]
    path, new = at.choice(every), at.choice((-1, 10**6, 2**63, -1e300, 1e300, 0, 1e-300))
    at_path(document, path[:-1])[path[-1]] = new
    return Damaged(VALUE, f"{path}: {new}", json.dumps(document).encode())


def _nodes(content: bytes, at: random.Random) -> Damaged:
    """A node that asks for another figure, or is a leaf or none; a threshold that is no number."""
    nodes = int.from_bytes(content[4:8], "little")
    data, node = bytearray(content), at.randrange(nodes)
    if at.random() < 0.5:
        data[16 + node] = new = at.choice((0, 200, 254, 255))
        return Damaged(VALUE, f"figure {new}", bytes(data))
    place = 16 + nodes + 4 * node
    data[place : place + 4] = number = at.choice(
        (b"\0\0\xc0\x7f", b"\0\0\x80\xff", b"\xff\xff\x7f\x7f")
    )
    return Damaged(VALUE, f"number {number!r}", bytes(data))


def _placements(content: bytes, at: random.Random) -> Damaged:
    """A plan that names ranks, tables or tiers that are not there."""
    new, how = at.choice(
        (
            ((b'"ranks": [4]', b'"ranks": [9]'), "a rank beyond the last"),
            ((b'"ranks": [4]', b'"ranks": [-1]'), "a rank below nought"),
            ((b'"ranks": [4]', b'"ranks": []'), "no rank"),
            ((b"[0, 1, 2, 3]", b"[0, 1, 1, 3]"), "a rank twice"),
            ((b'"rows": 5000', b'"rows": 5001'), "another table"),
            ((b'"tier": "hbm"', b'"tier": "tape"'), "no such tier"),
            ((b'"table_wise"', b'"wise"'), "no such sharding"),
            ((b'"dtype": "fp32"', b'"caches": ["c"]'), "no such cache"),
        )
    )
    return Damaged("reference", how, content.replace(*new))


KINDS = (
    Kind(
        "execution trace",
        ".json",
        lambda: (execution_trace_seed(),),
        (json_bytes,),
        read.read_execution_trace,
        (("export", "{}", "-o", "{out}/x.et"),),
    ),
    Kind("chakra", ".et", lambda: (seeds.chakra_seed(),), (any_bytes,), read.read_execution_trace),
    Kind(
        "hardware",
        ".toml",
        lambda: tuple(
            seeds.catalogue(*each)
            for each in (("device", "h100-sxm"), ("node", "dgx-a100-40gb"), ("host", "epyc-7742"))
        ),
        TOML,
        read.read_hardware,
        (("hardware", "check", "{}"), ("predict", "--hardware", "{}")),
    ),
    Kind(
        "workload",
        ".toml",
        _given(seeds.WORKLOAD.encode()),
        TOML,
        read.read_workload,
        (("predict", "--workload", "{}", *ON),),
    ),
    Kind(
        "measurements CSV",
        ".csv",
        lambda: (seeds.kernel_rows(),),
        (any_bytes, csv_cells(("b", "m", "n", "k", "duration_us"), ("device",))),
        read.read_kernel_rows,
        (("fit", "kernels", "{}", "-o", "{out}/models"),),
    ),
    Kind(
        "measurements Parquet",
        ".parquet",
        lambda: (seeds.kernel_parquet(),),
        (checked_bytes,),
        read.read_kernel_rows,
    ),
    Kind(
        "measured steps",
        ".csv",
        lambda: (seeds.step_rows(),),
        (any_bytes, csv_cells(("ranks", "dim", "pooling", "threads_per_rank", "p10_us"), ())),
        read.read_steps,
    ),
    Kind(
        "baseline",
        ".json",
        lambda: (seeds.baseline(),),
        JSON,
        read.read_baseline,
        (("check", "--baseline", "{}", "traces/cpu_dlrm_2rank"),),
    ),
    Kind(
        "overheads",
        ".json",
        lambda: (seeds.overheads(),),
        JSON,
        read.read_overheads,
        (("predict", "--overheads", "{}"),),
    ),
    Kind("models", ".json", lambda: (seeds.model_manifest(),), JSON, read.read_manifest),
    Kind("trees", ".gz", lambda: (seeds.model_trees(),), (checked_bytes,), read.read_trees),
    Kind(
        "sealed models",
        ".json",
        lambda: (seeds.sealed_manifest(),),
        (json_types, json_types, json_bytes, _numbers),
        read.read_sealed_manifest,
    ),
    Kind(
        "sealed trees",
        ".trees",
        lambda: (seeds.sealed_trees(),),
        (any_bytes, _nodes),
        read.read_sealed_trees,
    ),
    Kind(
        "collective model",
        ".json",
        lambda: (seeds.collective_model(),),
        (json_bytes,),
        read.read_collective_model,
    ),
    Kind("machine points", ".json", lambda: (seeds.machine_points(),), JSON, read.read_machine),
    Kind(
        "nccl-tests log",
        ".log",
        _given(seeds.LOG.encode()),
        (any_bytes, _log_rows),
        read.read_log,
        (("fit", "collectives", "--log", "{}", *ON, "-o", "{out}/c.json"),),
    ),
    Kind(
        "curves of collectives",
        ".csv",
        lambda: (seeds.curves(),),
        (any_bytes, csv_cells(("n_gpus", "n_nodes"), ("curve_id", "collective")), _rates),
        read.read_curves,
    ),
    Kind(
        "points of curves",
        ".csv",
        lambda: (seeds.points(),),
        (any_bytes, csv_cells(("size_bytes", "time_us"), ("curve_id",))),
        read.read_points,
    ),
    Kind("memory snapshot", ".pickle", seeds.memory_snapshots, (any_bytes,), read.read_trace),
    Kind(
        "saved prediction",
        ".json",
        lambda: (seeds.prediction(),),
        (json_bytes,),
        read.read_prediction,
        (("diff", "{}", "{}"),),
    ),
    Kind(
        "sweep",
        ".toml",
        _given(seeds.SWEEP.encode()),
        TOML,
        read.read_sweep,
        (("sweep", "{}", "-o", "{out}/sweep"),),
    ),
    Kind(
        "placement",
        ".json",
        lambda: (seeds.placement(),),
        (json_bytes, json_types, _placements),
        read.read_placement,
    ),
    Kind(
        "TorchRec plan",
        ".json",
        lambda: (seeds.torchrec_plan(),),
        (json_bytes,),
        read.read_placement,
    ),
    Kind("index stream", ".txt", _given(seeds.STREAM), (any_bytes,), read.read_stream),
)

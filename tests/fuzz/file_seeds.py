"""Small sound files of every other kind that the package reads."""

from __future__ import annotations

import csv
import io
import json
import pickle
from functools import cache
from typing import Any

from fuzz.seeds import ROOT, content_of, execution_trace_seed

PACKAGE = ROOT / "perfmodel"
LOG = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20
# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid   3245 on    node-a device  0 [0x10] NVIDIA A100-SXM4-40GB
#  Rank  1 Group  0 Pid   3246 on    node-a device  1 [0x47] NVIDIA A100-SXM4-40GB
#       size         count      type   redop    root     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    98.50   10.65   10.65      0
     2097152        524288     float     sum      -1    144.2   14.54   14.54      0
     4194304       1048576     float     sum      -1    244.2   17.17   17.17      0
"""
WORKLOAD = """\
title = "small"
batch = 2048
[model]
dense_features = 13
bottom_mlp = [64, 32]
top_mlp = [64, 1]
[interaction]
kind = "dot"
[[tables]]
rows = 100_000
dim = 32
pooling = 4
distribution = "zipf"
alpha = 1.05
[[tables]]
rows = 5_000
dim = 32
pooling = 1
[training]
loss = "bce_with_logits"
dense_optimizer = "sgd"
table_optimizer = "sgd"
[implementation]
name = "reference"
precision = "fp32"
"""
SWEEP = """\
workload = "criteo-kaggle"
hardware = "dgx-1"
batch = 4096
[axes]
device.hbm_gb_per_s = { low = 600, high = 2400, steps = 3 }
host.single_thread_ratio = [0.5, 1.0]
"""


def catalogue(kind: str, name: str) -> bytes:
    """A file of the hardware catalogue, with the kind and name that a user's file states."""
    text = (PACKAGE / "hardware" / "catalogue" / f"{kind}s" / f"{name}.toml").read_text()
    head = "".join(
        f'{key} = "{value}"\n'
        for key, value in (("kind", kind), ("name", f"my-{name}"))
        if not text.startswith(f"{key} =") and f"\n{key} =" not in text
    )
    return (head + text).encode()


@cache
def chakra_seed() -> bytes:
    """The execution trace as Chakra's protobuf."""
    from chakra_writer import encode_chakra

    from perfmodel.trace.execution_trace import decode_execution_trace

    return encode_chakra(decode_execution_trace(execution_trace_seed(), "seed"))


@cache
def kernel_rows() -> bytes:
    """Measured kernels of a GPU, as CSV in the schema of measurement tables."""
    text = io.StringIO()
    keys = ("op", "device", "dtype", "direction", "timing", "b", "m", "n", "k", "duration_us")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(keys)
    for at in range(8):
        sizes = (1, 128 << at % 3, 256, 512)
        writer.writerow(
            ("bmm", "Tesla V100-SXM2-16GB", "fp32", "fwd", "event_single_call", *sizes, 20 + at)
        )
    return text.getvalue().encode()


@cache
def kernel_parquet() -> bytes:
    """The same as Parquet."""
    import pandas as pd

    content = io.BytesIO()
    pd.read_csv(io.BytesIO(kernel_rows())).to_parquet(content)
    return content.getvalue()


@cache
def step_rows() -> bytes:
    """Measured steps of workloads."""
    return content_of(ROOT / "traces" / "cpu_dlrm_truth" / "one_rank.csv")


@cache
def baseline() -> bytes:
    """The head of the baseline that the project holds."""
    document = json.loads((ROOT / "traces" / "baseline.json").read_text())
    return json.dumps(document | {"rows": document["rows"][:4]}).encode()


@cache
def overheads() -> bytes:
    """The fallback rows of a profile."""
    document = json.loads(
        (PACKAGE / "lowering" / "host" / "catalogue" / "lin2022-v100.json").read_text()
    )
    rows = [row for row in document["rows"] if row["op"] is None]
    return json.dumps(document | {"rows": rows}).encode()


@cache
def model_manifest() -> bytes:
    """The manifest of the bundled kernel models."""
    return (PACKAGE / "cost" / "bundled" / "manifest.json").read_bytes()


@cache
def model_trees() -> bytes:
    """One of its ensembles of trees."""
    return (PACKAGE / "cost" / "bundled" / "attention.trees.gz").read_bytes()


SEALED_TREES = "vector_half.trees.gz"


@cache
def sealed_manifest() -> bytes:
    """The manifest with the part of `SEALED_TREES` alone."""
    document = json.loads(model_manifest())
    parts = [each for each in document["parts"] if each["files"][""]["file"] == SEALED_TREES]
    document["parts"] = parts
    return json.dumps({key: each for key, each in document.items() if key != "sha256"}).encode()


@cache
def sealed_trees() -> bytes:
    """Those trees, unpacked."""
    import gzip

    return gzip.decompress((PACKAGE / "cost" / "bundled" / SEALED_TREES).read_bytes())


@cache
def collective_model() -> bytes:
    """The collective model that comes with the package."""
    return (PACKAGE / "cost" / "collectives" / "fitted.json").read_bytes()


@cache
def curves() -> bytes:
    """Descriptions of measured curves: of two repositories, within a node and over two."""
    rows = [
        "curve_id,collective,gpu,n_gpus,n_nodes,intra_link,intra_gb_per_s_per_gpu,"
        "node_nic_gb_per_s,network,variant,repo,quality_flags"
    ]
    for repo in ("theirs", "ours"):
        for op in ("all_reduce", "alltoall"):
            wires = "A100-SXM4-80GB,8,1,NVLink3+NVSwitch,300,,none,,"
            rows.append(f"{repo}-{op}-1,{op},{wires}{repo},ok")
            wires = "H100-SXM5-80GB,16,2,NVLink4+NVSwitch,450,400,infiniband,,"
            rows.append(f"{repo}-{op}-2,{op},{wires}{repo},ok")
    return "\n".join([*rows, ""]).encode()


@cache
def points() -> bytes:
    """Their points."""
    names = [line.partition(",")[0] for line in curves().decode().split()[1:]]
    rows = [
        f"{name},{size},{20 + size / 1e5 * (1 + at % 3)}"
        for at, name in enumerate(names)
        for size in (2048, 131_072, 8_388_608)
    ]
    return "\n".join(["curve_id,size_bytes,time_us", *rows, ""]).encode()


@cache
def machine_points() -> bytes:
    """Points of a machine, as `fit collectives --log` writes them."""
    import tempfile
    from pathlib import Path

    from perfmodel.cost.collectives.calibrated import parse, save_machine
    from perfmodel.cost.collectives.calls import fabric_of
    from perfmodel.hardware import node

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.json"
        save_machine(path, parse(LOG, "log"), fabric_of(node("dgx-a100-40gb")), {"machine": "m"})
        return path.read_bytes()


@cache
def memory_snapshots() -> tuple[bytes, ...]:
    """What PyTorch's allocator notes, as a pickle of two protocols and as JSON."""
    events = [
        {"action": action, "time_us": 10 * at, "addr": 4096, "size": 512, "stream": 0}
        for at, action in enumerate(("segment_alloc", "alloc", "free_completed"), 1)
    ]
    blocks = [{"state": "active_allocated", "size": 512, "requested_size": 500}]
    segments = [{"device": 0, "total_size": 1024, "blocks": blocks}]
    found = {"device_traces": [events], "segments": segments}
    return pickle.dumps(found, 2), pickle.dumps(found, 4), json.dumps(found).encode()


def prediction() -> bytes:
    """A saved prediction."""
    import perfmodel

    found = perfmodel.predict(perfmodel.read(PACKAGE / "demo" / "dlrm_cpu_kineto.json.gz"))
    document = found.to_dict()
    result = document["results"][0]
    result["critical_path"] = result["critical_path"][:5]
    return json.dumps(document).encode()


def placement(**more: Any) -> bytes:
    """A plan for `WORKLOAD`'s two tables on eight GPUs."""
    from perfmodel.explore.torchrec import SCHEMA

    tables = [
        {"rows": 100_000, "dim": 32, "sharding": "row_wise", "ranks": [0, 1, 2, 3], "tier": "hbm"},
        {"rows": 5_000, "dim": 32, "sharding": "table_wise", "ranks": [4], "dtype": "fp32"},
    ]
    return json.dumps({"schema": SCHEMA, "tables": tables, "caches": []} | more).encode()


@cache
def torchrec_plan() -> bytes:
    """The same layout as TorchRec writes it."""
    shards = {"sharding_type": "table_wise", "compute_kernel": "fused", "ranks": [0]}
    return json.dumps({"ebc": {"table_0": shards, "table_1": shards | {"ranks": [1]}}}).encode()


STREAM = b"1\n5\n1\n9\n2\n5\n1\n"

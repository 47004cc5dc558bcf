"""Low precision: bytes of stored rows, what lookups and models gain, more complex models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from perfmodel.cost.durations import durations_of
from perfmodel.designs import deployment_of
from perfmodel.designs.low_precision import LowPrecision
from perfmodel.embedding import Pipeline
from perfmodel.evaluate.published_designs import Figure, Lab, case
from perfmodel.ops.rows import Rows
from perfmodel.ops.storage import row_bytes
from perfmodel.prediction.deployment import predict_deployment
from perfmodel.workload import Workload, load_workload

from .low_precision_box import (
    ACCELERATORS,
    COMPLEX_ASSUMED,
    COMPLEX_BATCH,
    COMPLEX_WORKLOAD,
    DIGEST,
    GENERAL_PURPOSE,
    INT4_EVERY,
    LOOKUP,
    LOOKUP_ASSUMED,
    LOOKUP_DEVICE,
    LOOKUP_PAIRS,
    MIX_WORKLOAD,
    MORE_COMPLEX,
    OUTPUT_BYTES,
    SOURCE,
)

FBGEMM = "exact: pytorch/FBGEMM, src/split_embeddings_cache_cuda.cu: read"
STORED = {(32, "int8"): 48, (32, "int4"): 32, (64, "int8"): 80, (64, "int4"): 48} | {
    (128, "int8"): 144,
    (128, "int4"): 80,
}
"""Bytes of padded rows, by dim and type."""
INDEX_BYTES = 4.0
"""FBGEMM's quantised lookups take int32. Source: its benchmark nbit_device, read."""
MOST, STEPS = 64.0, 12
"""Times as complex at most, and halvings on the way to what fits the latency."""


@case("V10")
def stored(lab: Lab) -> Iterator[Figure]:
    """Row bytes on a GPU."""
    for (dim, dtype), target in STORED.items():
        found = float(row_bytes(dtype, dim))
        title = f"bytes of a stored row of {dim} elements, {dtype}"
        yield Figure(f"V10-{dtype}-{dim}", title, "bytes", target, found, 0.0, FBGEMM)


@case("V17")
def smaller(lab: Lab) -> Iterator[Figure]:
    """Lookups as much faster as rows are smaller; models of mixed rows."""
    device = lab.machine(LOOKUP_DEVICE).node.device
    lookups = LOOKUP["tables"] * LOOKUP["batch"] * LOOKUP["pooling"]
    common = {"op": "tbe", "tables": LOOKUP["tables"], "batch": LOOKUP["batch"]}
    common |= {"lookups": lookups, "hash_size": LOOKUP["rows"], "index_bytes": INDEX_BYTES}
    common |= {"output_bytes": OUTPUT_BYTES}
    for dim, wide, narrow in LOOKUP_PAIRS:
        sizes = {dtype: float(row_bytes(dtype, dim)) for dtype in (wide, narrow)}
        rows = [common | {"dim": dim, "dtype": t, "row_bytes": s} for t, s in sizes.items()]
        taken = durations_of(Rows.of(rows), device).duration_us
        yield Figure(
            f"V17-lookup-{wide}-{narrow}-{dim}",
            f"lookup of {dim} elements, {narrow} rows over {wide}: the ratio of their bytes",
            "times as fast",
            sizes[wide] / sizes[narrow],
            float(taken[0] / taken[1]),
            15.0,
            "derived from row bytes as if only memory bound them; no measurement is published",
            (f"uniform lookups on {LOOKUP_DEVICE}: {LOOKUP}", *LOOKUP_ASSUMED),
        )
    yield Figure(
        "V17-model-size",
        "model size saved by int8 and int4 rows over fp16",
        "%",
        (40.0, 50.0),
        _saved_pct(),
        0.0,
        f"exact for a given mix: {DIGEST}",
        (f"workload {MIX_WORKLOAD}; one table in {INT4_EVERY} of each dim int4, others int8",),
    )


def _saved_pct() -> float:
    """Of fp16 rows, padded as all are."""
    before = after = 0.0
    seen: dict[int, int] = {}
    for table in load_workload(MIX_WORKLOAD).tables:
        seen[table.dim] = seen.get(table.dim, 0) + 1
        dtype = "int4" if seen[table.dim] % INT4_EVERY == 0 else "int8"
        before += table.rows * float(row_bytes("fp16", table.dim))
        after += table.rows * float(row_bytes(dtype, table.dim))
    return (1 - after / before) * 100


@case("V18")
def complex_models(lab: Lab) -> Iterator[Figure]:
    """How many times as complex a model is that an accelerator serves in a CPU's latency."""
    found = {
        (cpu, card): times_as_complex(cpu, card, lab)
        for cpu in GENERAL_PURPOSE
        for card in ACCELERATORS
    }
    centre = found[GENERAL_PURPOSE[0], ACCELERATORS[0]]
    each = ", ".join(f"{card} for {cpu}: {times:.1f}" for (cpu, card), times in found.items())
    yield Figure(
        "V18-complexity",
        "complexity that a card serves at a CPU's latency, at most within the box",
        "times as complex",
        (MORE_COMPLEX, MOST),
        max(found.values()),
        0.0,
        SOURCE,
        (
            f"centre of the box, registered in 6a8a85e: {centre:.1f} times",
            f"{each} (looked for up to {MOST:g})",
            *COMPLEX_ASSUMED,
        ),
    )


def times_as_complex(cpu: str, card: str, lab: Lab) -> float:
    """The largest multiple that is served on `card` within what the model takes on `cpu`."""
    limit = _latency_us(load_workload(COMPLEX_WORKLOAD), cpu, lab, low=False)
    low, high = 0.0, MOST
    for _ in range(STEPS):
        middle = (low + high) / 2
        fits = _latency_us(more_complex(middle), card, lab, low=True) <= limit
        low, high = (middle, high) if fits else (low, middle)
    return low


def more_complex(times: float) -> Workload:
    """The workload with so many times the multiply-adds and lookups: wider hidden layers."""
    workload = load_workload(COMPLEX_WORKLOAD)
    wanted = times * _multiply_adds(workload)
    low, high = 1e-3, max(times, 1.0)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if _multiply_adds(_widened(workload, middle)) < wanted else (low, middle)
        )
    tables = tuple(replace(t, pooling=max(t.pooling * times, 1e-3)) for t in workload.tables)
    return replace(_widened(workload, low), tables=tables)


def _widened(workload: Workload, factor: float) -> Workload:
    def wider(widths: tuple[int, ...]) -> tuple[int, ...]:
        return (*(max(round(width * factor), 1) for width in widths[:-1]), widths[-1])

    model = workload.model
    model = replace(model, bottom_mlp=wider(model.bottom_mlp), top_mlp=wider(model.top_mlp))
    return replace(workload, model=model)


def _multiply_adds(workload: Workload) -> float:
    return float(
        sum(a * b for w in (workload.bottom_widths, workload.top_widths) for a, b in pairwise(w))
    )


def _latency_us(workload: Workload, name: str, lab: Lab, *, low: bool) -> float:
    """Of one batch alone; in low precision or as the workload is."""
    machine = lab.machine(name)
    found = deployment_of(workload, machine, COMPLEX_BATCH, train=False)
    found = found.with_(pipeline=Pipeline())
    if low:
        found = LowPrecision().apply(found)
    return predict_deployment(found).results[0].step_us

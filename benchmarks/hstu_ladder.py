"""NVIDIA's ladder of HSTU training on 16 H100: predicted gain of each step beside the measured one.

Settings and measured rates: NVIDIA/recsys-examples@43465aea, examples/hstu/training/benchmark,
E2E_BENCHMARK.md (BSD-3-Clause). Its lengths are known as "Zipf, up to 4,096" alone: a mean of 1,960
is what its work per step implies, the spread of 1,200 is assumed. Tables have the width of the
layers here, and lie in device memory: the steps that move rows to host memory are not predicted.

The second of each figure is for Triton's backward kernel with one program per sequence and head,
which some of its configurations have: the longest sequence then decides, on one multiprocessor.

    python benchmarks/hstu_ladder.py
"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

import perfmodel
from perfmodel.hardware import load
from perfmodel.prediction import predict
from perfmodel.workload import Table, Workload, load_workload
from perfmodel.workload.sequences import slowest_lengths

SAMPLES, NODES, RANKS, WIDTH = 512, 2, 16, 1024
WHOLE_SLOWER = 2.2
"""Per score, one program per sequence and head beside one per block of keys, heads of 256: 1.7 to
2.3 on an H200 (traces/h200/sequential.csv.gz, programs in turn on each multiprocessor)."""
STEPS = (
    ("Triton", {}, 75.6),
    ("balanced", {"balanced": True}, 115.8),
    ("CUTLASS", {"balanced": True, "kernels": "cutlass"}, 302.6),
)
"""Name, settings of `[sequence]`, measured TFLOP/s per GPU."""


def workload() -> Workload:
    """As the benchmark's settings have it, on the operators of the catalogue's."""
    start = load_workload("dlrm-v4-hstu")
    tables = [Table(50_000_000, WIDTH, 1957.0)]
    tables += [Table(rows, WIDTH) for rows in (50_000_000, 100, 50)]
    sequence = replace(
        start.sequence,
        layers=8,
        attention_dim=256,
        hidden_dim=256,
        content_hidden=WIDTH,
        length_std=1200.0,
        samples_per_user=1.0,
        unique_frac=(),
        index_dedup=False,
    )
    model = replace(start.model, bottom_mlp=(WIDTH, WIDTH), top_mlp=(512, 8, 1))
    return replace(start, tables=tuple(tables), sequence=sequence, model=model)


def more_by_sequence_us(changed: Workload) -> float:
    """What a step takes longer if a program goes over all blocks of a sequence and head: there are
    fewer of these than multiprocessors, so that one takes as long as the longest."""
    about = changed.sequence
    lengths = slowest_lengths(changed, SAMPLES // RANKS, RANKS)
    row = {
        "op": "jagged_attention",
        "dtype": "bf16",
        "direction": "bwd",
        "tokens": lengths.tokens,
        "pairs": lengths.pairs,
        "heads": about.heads,
        "head_dim": about.attention_dim,
        "value_dim": about.hidden_dim,
        "sequences": lengths.samples,
    }
    device = load("h100-sxm")
    blocks_us = float(perfmodel.durations(pd.DataFrame([row]), device)["duration_us"].iloc[0])
    per_pair_us = WHOLE_SLOWER * blocks_us * device.sm_count / (lengths.pairs * about.heads)
    return about.layers * (per_pair_us * about.max_length**2 / 2.0 - blocks_us)


def main() -> None:
    """A line per step."""
    before: tuple[float, float, float] | None = None
    print("step               ms   attention (ms)   predicted gain   measured gain")
    for name, settings, rate in STEPS:
        changed = workload().with_(**{f"sequence__{key}": value for key, value in settings.items()})
        found = predict(changed, hardware="dgx-h100", nodes=NODES, batch=SAMPLES).results[0]
        attention = sum(each["time_us"] for each in found.families if each["family"] == "attention")
        step_us, whole_us = found.step_us, found.step_us
        if changed.sequence.kernels == "triton":
            whole_us += more_by_sequence_us(changed)
        gains = ""
        if before:
            gains = (
                f"{before[0] / step_us:10.2f} {before[1] / whole_us:6.2f}{rate / before[2]:16.2f}"
            )
        print(f"{name:9}{step_us / 1e3:6.1f} {whole_us / 1e3:6.1f}{attention / 1e3:15.1f}  {gains}")
        before = (step_us, whole_us, rate)


if __name__ == "__main__":
    main()

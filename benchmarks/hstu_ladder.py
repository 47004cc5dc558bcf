"""NVIDIA's ladder of HSTU training on 16 H100: predicted gain of each step beside the measured one.

Settings and measured rates: NVIDIA/recsys-examples@43465aea, examples/hstu/training/benchmark,
E2E_BENCHMARK.md (BSD-3-Clause). Its lengths are known as "Zipf, up to 4,096" alone: a mean of 1,960
is what its work per step implies, the spread of 1,200 is assumed. Tables have the width of the
layers here, and lie in device memory: the steps that move rows to host memory are not predicted.

    python benchmarks/hstu_ladder.py
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.prediction import predict
from perfmodel.workload import Table, Workload, load_workload

SAMPLES, NODES, WIDTH = 512, 2, 1024
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


def main() -> None:
    """A line per step."""
    before_us = before_rate = None
    print("step          ms   attention (ms)   predicted gain   measured gain")
    for name, settings, rate in STEPS:
        changed = workload().with_(**{f"sequence__{key}": value for key, value in settings.items()})
        found = predict(changed, hardware="dgx-h100", nodes=NODES, batch=SAMPLES).results[0]
        attention = sum(
            each["time_us"] for each in found.families if each["family"] == "jagged_attention"
        )
        gains = ""
        if before_us and before_rate:
            gains = f"{before_us / found.step_us:17.2f}{rate / before_rate:16.2f}"
        print(f"{name:9}{found.step_us / 1e3:7.1f}{attention / 1e3:17.1f}{gains}")
        before_us, before_rate = found.step_us, rate


if __name__ == "__main__":
    main()

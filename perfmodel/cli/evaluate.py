"""`perfmodel evaluate`: predicted against measured; one file per thing that is evaluated."""

from __future__ import annotations

from perfmodel.cli import (
    evaluate_collectives,
    evaluate_designs,
    evaluate_kernels,
    evaluate_ops,
    evaluate_pairs,
    evaluate_published,
    evaluate_steps,
    evaluate_traces,
)
from perfmodel.cli.nouns import verb_of

HELP = """How far predictions are from what was measured.

\b
Examples:
  perfmodel evaluate traces                   the project's traces and the demo
  perfmodel evaluate traces my-traces/ one.json.gz
  perfmodel evaluate kernels --data test.parquet
  perfmodel evaluate ops my-trace.json.gz
  perfmodel evaluate pairs one_h100.json.gz one_mi300x.json.gz
  perfmodel evaluate steps --truth truth.csv --hardware my-machine.toml
  perfmodel evaluate collectives --curves curves.csv --data points.csv.gz
  perfmodel evaluate published --mlperf mlperf_dlrm.csv
  perfmodel evaluate designs                  what papers published about co-designs
  perfmodel evaluate NOUN --help              more, with examples
"""
evaluate = verb_of(
    HELP,
    evaluate_collectives.collectives,
    evaluate_traces.traces,
    evaluate_kernels.kernels,
    evaluate_ops.ops,
    evaluate_pairs.pairs,
    evaluate_steps.steps,
    evaluate_published.published,
    evaluate_designs.designs,
)

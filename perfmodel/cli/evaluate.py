"""`perfmodel evaluate`: predicted against measured; one file per thing that is evaluated."""

from __future__ import annotations

import typer

from perfmodel.cli import evaluate_collectives, evaluate_kernels, evaluate_steps, evaluate_traces

HELP = """How far predictions are from what was measured.

\b
Examples:
  perfmodel evaluate traces                   the project's traces and the demo
  perfmodel evaluate traces my-traces/ one.json.gz
  perfmodel evaluate kernels --data test.parquet
  perfmodel evaluate steps --truth truth.csv --hardware my-machine.toml
  perfmodel evaluate collectives --curves curves.csv --data points.csv.gz
  perfmodel evaluate NOUN --help              more, with examples
"""
evaluate = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=HELP)
for noun in (
    evaluate_collectives.collectives,
    evaluate_traces.traces,
    evaluate_kernels.kernels,
    evaluate_steps.steps,
):
    evaluate.command()(noun)

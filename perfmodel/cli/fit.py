"""`perfmodel fit`: one file per thing that can be fitted."""

from __future__ import annotations

from perfmodel.cli import fit_collectives, fit_device, fit_kernels, fit_overheads
from perfmodel.cli.nouns import verb_of

HELP = """Fit kernels, collectives, devices or overheads to measurements.

\b
Examples:
  perfmodel fit collectives --log all_reduce.log --hardware dgx-h100 -o mine.json
  perfmodel fit device --data kernels.csv -o my-machine.toml
  perfmodel fit kernels --data kernels.parquet -o my-models
  perfmodel fit overheads trace.json.gz -o mine.json
  perfmodel fit NOUN --help                   more, with examples
"""
fit = verb_of(
    HELP,
    fit_collectives.collectives,
    fit_device.device,
    fit_kernels.kernels,
    fit_overheads.overheads,
)

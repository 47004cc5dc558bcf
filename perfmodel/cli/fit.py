"""`perfmodel fit`: one file per thing that can be fitted."""

from __future__ import annotations

import typer

from perfmodel.cli import fit_device, fit_overheads

fit = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Fit kernel models, a device or overhead profiles to measurements.",
)
for noun in (fit_device.device, fit_overheads.overheads):
    fit.command()(noun)

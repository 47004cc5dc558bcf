"""`perfmodel collect`: the collector, which also runs uninstalled as a module."""

from __future__ import annotations

import typer

COLLECTOR = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def collect(context: typer.Context) -> None:
    """Measure this machine and capture traces; needs PyTorch.

    \b
    Examples:
      perfmodel collect --help                      what can be measured
      perfmodel collect kernels --device cpu --minutes 5
      perfmodel collect ops --device cpu --minutes 5
    """
    from perfmodel.collect.cli import main

    try:
        status = main(context.args)
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 0
    if status:
        raise typer.Exit(status)

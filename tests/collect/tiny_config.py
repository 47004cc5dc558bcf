"""A recommendation model small enough to train in a test, and a run that measures it."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from perfmodel.collect.backend import Backend
from perfmodel.collect.runs import Run

TINY: dict[str, Any] = {
    "name": "tiny",
    "tables": 3,
    "rows": 50,
    "dim": 4,
    "pooling": 2,
    "batch": 8,
    "bottom": [4, 8, 4],
    "top": [8, 1],
}


def a_run(verb: str, backend: Backend, folder: Path) -> Run:
    """A run of five minutes at most."""
    return Run(verb, Namespace(minutes=5.0, output=folder, name=verb), backend)

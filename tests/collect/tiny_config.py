"""A recommendation model small enough to train in a test, and a run that measures it."""

from argparse import Namespace
from pathlib import Path

from perfmodel.collect.backend import Backend
from perfmodel.collect.models.dlrm import DlrmConfig
from perfmodel.collect.runs import Run

TINY = DlrmConfig((4, 8, 4), (8, 1), (50,) * 3, dim=4, pooling=2, batch=8, name="tiny")


def a_run(verb: str, backend: Backend, folder: Path) -> Run:
    """A run of five minutes at most."""
    return Run(verb, Namespace(minutes=5.0, output=folder, name=verb), backend)

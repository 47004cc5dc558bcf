"""A small trace, and sweeps of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cli.samples import document, write

from perfmodel.explore.spec import Spec, load_spec

AXES = """
device.hbm_gb_per_s = { low = 600, high = 2400, steps = 5 }
host.single_thread_ratio = [0.5, 1.0, 2.0]
"""
MakeSpec = Callable[..., Spec]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three steps on one GPU."""
    return write(tmp_path / "trace.json.gz", document())


@pytest.fixture
def spec(tmp_path: Path, trace: Path) -> MakeSpec:
    """`spec(text, axes=…)`: a sweep of the trace; `text` comes first."""

    def make(text: str = "", axes: str = AXES, name: str = "spec.toml") -> Spec:
        path = tmp_path / name
        path.write_text(f'trace = "{trace.name}"\nhardware = "dgx-1"\n{text}\n[axes]\n{axes}')
        return load_spec(path)

    return make

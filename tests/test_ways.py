"""What `tests/ways.py` counts as entered."""

from __future__ import annotations

import runpy

from ways import PACKAGE, calls_of

from perfmodel.hardware.catalogue import nearest_known


def test_what_runs_while_a_module_is_imported_does_not_count() -> None:
    """This one registers generations as it is imported."""
    assert calls_of(lambda: runpy.run_path(str(PACKAGE / "hardware" / "catalogue.py"))) == []


def test_what_the_program_runs_counts() -> None:
    used = calls_of(lambda: nearest_known("cdna4", ["cdna2"]))
    assert used == [("", "hardware/catalogue.py"), ("hardware/catalogue.py", "base/registry.py")]

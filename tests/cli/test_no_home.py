"""A home that nothing can be written to, and no folder for caches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_figures_without_a_home_say_nothing_of_it(tmp_path: Path) -> None:
    """Not even root can make folders below a file."""
    home = tmp_path / "home"
    home.write_text("")
    own = {key: value for key, value in os.environ.items() if not key.startswith(("XDG", "MPL"))}
    page = tmp_path / "page.html"
    done = subprocess.run(
        [sys.executable, "-m", "perfmodel", "report", "-o", str(page)],
        env=own | {"HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == f"perfmodel: wrote {page}: one page; open it in a browser, or send it\n"

"""A limit for a step in somebody's tests, and what the failure says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import perfmodel
from perfmodel.testing import assert_step_within

ROOT = Path(__file__).parents[2]
ASKED = {"hardware": "dgx-a100-40gb", "batch": 4096}


def test_what_stays_within_gives_its_prediction() -> None:
    found = assert_step_within("criteo-kaggle", ms=1e6, **ASKED)
    same = perfmodel.predict("criteo-kaggle", **ASKED)
    assert found.results[0].step_us == same.results[0].step_us
    with pytest.raises(perfmodel.PerfmodelError, match="unknown workload"):
        assert_step_within("criteo", hardware="t4", ms=1)
    for ms in (0.0, -1.0, float("nan")):
        with pytest.raises(perfmodel.PerfmodelError, match=r"expected a limit above 0$"):
            assert_step_within("criteo-kaggle", ms=ms, **ASKED)
    with pytest.raises(perfmodel.PerfmodelError, match=r"^hardware: 2 of them, expected one$"):
        assert_step_within("criteo-kaggle", hardware=["dgx-h100", "dgx-a100-40gb"], ms=1.0)


def test_the_failure_says_why_and_what_changed() -> None:
    before = perfmodel.predict("criteo-kaggle", **ASKED)
    larger = ASKED | {"batch": 65536}
    with pytest.raises(AssertionError) as failed:
        assert_step_within("criteo-kaggle", ms=0.001, before=before, **larger)
    first, *rest = str(failed.value).split("\n  ")
    assert first.startswith("a step of criteo-kaggle takes ")
    assert first.endswith(" % above the limit of 0.001 ms")
    assert sum(line.startswith("because of ") for line in rest) == 3
    since = next(at for at, line in enumerate(rest) if line.startswith("since it passed: "))
    assert "slower: step" in rest[since]
    assert all(" to " in line for line in rest[since + 1 :])
    assert rest[since + 1 :]


@pytest.mark.slow
def test_the_fixture_of_pytest_remembers_what_passed(tmp_path: Path) -> None:
    def ran(batch: int, ms: float) -> str:
        (tmp_path / "test_mine.py").write_text(
            "def test_mine(step_within):\n    step_within("
            f"'criteo-kaggle', hardware='dgx-a100-40gb', batch={batch}, ms={ms})\n"
        )
        (tmp_path / "conftest.py").write_text(  # what pytest does with an installed plug-in
            "import pytest\npytest.register_assert_rewrite('perfmodel')\n"
            "pytest_plugins = ['perfmodel.testing.fixture']\n"
        )
        # An installed one would be there twice.
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:perfmodel"]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [*words, "--rootdir", str(tmp_path), str(tmp_path)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path, "PYTEST_ADDOPTS": ""},
            check=False,
        )
        return done.stdout

    assert "1 passed" in ran(4096, 1e6)
    out = ran(65536, 0.001)
    assert "1 failed" in out
    assert "since it passed: " in out
    assert "slower: step" in out
    assert "fixture.py" not in out.partition("short test summary")[0]  # the user's line is shown

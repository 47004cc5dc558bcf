"""What every test may use: the reference data, and an option that makes a skip a failure."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

# Workers share the processors; threads of one that wait for one another by spinning take them away.
os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))  # behind what is installed: only `benchmarks` is found there
gc.set_threshold(100_000, 50, 100)  # as the command line has it, and for the same reason
NOT_FOUND = "reference data not found (PERFMODEL_REFERENCE)"


# The same examples in every run, so that a red test is due to the change. To look for new, and
# more: `pytest --hypothesis-profile=default`. No deadline: machines that run tests are shared.
settings.register_profile("perfmodel", derandomize=True, deadline=None, max_examples=25)
settings.load_profile("perfmodel")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fail-on-skip",
        action="append",
        default=[],
        metavar="TEXT",
        help="a skip whose reason contains TEXT is a failure; may be given more than once",
    )


def pytest_collection_finish() -> None:
    """What was collected stays: to search it for cycles takes half a second each time."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(item.config, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(collector.config, report)
    return report


def _refuse_skip(config: pytest.Config, report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.outcome != "skipped" or getattr(report, "wasxfail", None) is not None:
        return
    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    if any(text in reason for text in config.getoption("--fail-on-skip")):
        report.outcome = "failed"
        report.longrepr = f"skipped, and --fail-on-skip forbids it: {reason}"


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """What is compressed goes by its argument's name: its bytes say when it was made."""
    return argname if isinstance(val, bytes) and val.startswith(b"\x1f\x8b") else None


@pytest.fixture(scope="session")
def reference() -> Path:
    """Folder of the reference data; the test is skipped where there is none."""
    found = Path(os.environ.get("PERFMODEL_REFERENCE") or ROOT.parent / "shared" / "data")
    if not found.is_dir():
        pytest.skip(NOT_FOUND)
    return found

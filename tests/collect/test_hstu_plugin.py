"""The plug-in of the collector in `benchmarks/hstu_collector`, found by its metadata."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "hstu_collector"
pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="it is in a checkout only")


def python(*arguments: str, found: bool = True) -> str:
    """What a fresh Python prints, by which the folder is found or not."""
    places = [str(FOLDER)] * found + [os.environ.get("PYTHONPATH", "")]
    set_here = {"PYTHONPATH": os.pathsep.join(places), "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | set_here,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("found", [True, False])
def test_it_registers_a_family_and_a_model(found: bool) -> None:
    code = """
from perfmodel.collect.families import FAMILIES
from perfmodel.collect.models import MODELS
names = FAMILIES.get("hstu"), MODELS.get("hstu")
print(*(each is not None for each in names))
"""
    assert python("-c", code, found=found).split() == [str(found)] * 2


@pytest.mark.slow
@pytest.mark.skipif(
    not (find_spec("torch") and find_spec("triton")),
    reason="needs PyTorch and Triton: pip install torch triton",
)
def test_its_own_tests_pass() -> None:
    python("-m", "pytest", str(FOLDER), "-n", "0", "-p", "no:cacheprovider")

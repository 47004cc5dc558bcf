"""The plug-ins of the collector in `benchmarks`, found by their metadata."""

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
    plugins = [str(FOLDER), str(FOLDER.with_name("reference_models"))]
    places = plugins * found + [os.environ.get("PYTHONPATH", "")]
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
def test_they_register_a_family_and_models(found: bool) -> None:
    code = """
from perfmodel.collect.families import FAMILIES
from perfmodel.collect.models import MODELS
names = FAMILIES.get("hstu"), *map(MODELS.get, ("hstu", "resnet", "transformer"))
print(*(each is not None for each in names))
"""
    assert python("-c", code, found=found).split() == [str(found)] * 4


@pytest.mark.skipif(not find_spec("torch"), reason="needs PyTorch: the CPU build is enough")
def test_models_of_theirs_train() -> None:
    code = """
from perfmodel.collect.backend import open_backend
from perfmodel.collect.models import MODELS, Options
for model in ("resnet", "transformer"):
    training = MODELS[model](open_backend("cpu"), Options(preset="tiny", batch=2))
    training.step(0)
    print(training.description["preset"])
"""
    assert python("-c", code).split() == ["tiny"] * 2


@pytest.mark.slow
@pytest.mark.skipif(
    not (find_spec("torch") and find_spec("triton")),
    reason="needs PyTorch and Triton: pip install torch triton",
)
def test_its_own_tests_pass() -> None:
    python("-m", "pytest", str(FOLDER), "-n", "0", "-p", "no:cacheprovider")

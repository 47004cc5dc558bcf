"""Cases of sequential recommenders; their kernels, interpreted in a process of its own."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from perfmodel.collect.families import FAMILIES, Scope
from perfmodel.collect.families.sequential import lengths_of

GPU = Scope("cuda", ("bf16", "fp32"), max_bytes=8e9, max_flop=4e12)


@pytest.mark.slow
@pytest.mark.skipif(
    not (find_spec("torch") and find_spec("triton")),
    reason="needs PyTorch and Triton: pip install torch triton",
)
def test_kernels_compute_what_they_say() -> None:
    tests = Path(__file__).with_name("interpreted_kernels.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(tests), "-n", "0", "-p", "no:cacheprovider"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_cases_say_how_much_work_there_is() -> None:
    cases = list(FAMILIES["hstu"].cases(GPU))
    equal = next(case for case in cases if case.op == "jagged_attention")
    assert (equal.dim("tokens"), equal.dim("pairs")) == (128 * 1024, 128 * 1024 * 1025 // 2)
    lengths = lengths_of(1000, 100, "spread")
    assert lengths.mean() == pytest.approx(40, rel=0.05)
    assert (lengths == lengths_of(1000, 100, "spread")).all()


def test_there_is_nothing_to_time_without_a_gpu() -> None:
    assert not list(FAMILIES["hstu"].cases(Scope("cpu", ("fp32", "bf16"))))

"""Constants of GPU generations of which nothing was measured."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.validate.calibrate.collectives import fill_unseen_architectures, initial_constants


def constants(**values: float) -> dict[str, float]:
    given = {name.replace("__", "."): value for name, value in values.items()}
    return initial_constants() | given


def test_an_unseen_generation_has_the_mean_of_its_makers_others() -> None:
    """Of 1 and 4 the geometric mean is 2; AMD's say nothing of NVIDIA's, nor do fills."""
    given = constants(ampere__hop_factor=1.0, hopper__hop_factor=4.0, hopper__fill_factor=0.5)
    found = fill_unseen_architectures(given, np.array(["ampere", "hopper", "cdna3"]))
    assert found["blackwell.hop_factor"] == pytest.approx(2.0)
    assert found["hopper.hop_factor"] == 4.0
    assert found["blackwell.fill_factor"] == given["blackwell.fill_factor"]
    assert found["cdna.hop_factor"] == given["cdna.hop_factor"]


def test_what_was_measured_stays() -> None:
    given = constants(ampere__base_factor=1.5)
    every = np.array(["ampere", "hopper", "blackwell", "cdna3"])
    assert fill_unseen_architectures(given, every) == given

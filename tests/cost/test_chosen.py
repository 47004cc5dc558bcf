"""Heuristic or learned, per family, for everything that is timed within."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import perfmodel
from perfmodel import explore
from perfmodel.base.answers import made_by
from perfmodel.cost.durations import kernels_in_use, not_learned, using_kernels
from perfmodel.errors import UsageError

OPS = pd.DataFrame(
    {"op": ["mm", "softmax"], "m": 4096, "n": 4096, "k": 4096, "rows": 8192, "cols": 4096}
)
CASE = {"hardware": "a100-sxm-80gb", "batch": 65536, "train": False}


def models() -> list[str]:
    return perfmodel.durations(OPS, "a100-sxm-80gb")["model"].tolist()


def test_each_family_by_its_own_name() -> None:
    assert models() == ["gpu/matmul/learned", "gpu/vector/learned"]
    with using_kernels("matmul=heuristic"):
        assert models() == ["gpu/matmul/heuristic", "gpu/vector/learned"]
        with using_kernels({"vector": "heuristic", "matmul": "learned"}):
            assert models() == ["gpu/matmul/learned", "gpu/vector/heuristic"]
        assert made_by()["own_models"] == "matmul=heuristic"
    assert kernels_in_use() == ()
    assert "own_models" not in made_by()


def test_a_cpu_and_a_family_without_trees_have_physics() -> None:
    """`learned` is trees where there are some; a note says where there are none."""
    before = perfmodel.durations(OPS, "cpu-epyc")
    with using_kernels("matmul=learned,sort=learned"):
        pd.testing.assert_frame_equal(before, perfmodel.durations(OPS, "cpu-epyc"))
        (note,) = not_learned()
    assert note.startswith("--kernels sort=learned")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("matmul", "'matmul': expected FAMILY=NAME"),
        ("matmul=heuristic,", "'': expected FAMILY=NAME"),
        ("matmull=heuristic", "unknown family 'matmull'; nearest: matmul"),
        ("matmul=mine", "matmul=mine: matmul has heuristic, learned"),
        ("collective=heuristic", "unknown family 'collective'"),
    ],
)
def test_unknown_words(given: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"^kernels.*{said}") as error, using_kernels(given):
        pass
    assert "\n" not in str(error.value)
    assert kernels_in_use() == ()


def test_a_whole_step_its_explanation_and_what_is_kept_of_it() -> None:
    """Asked again under other models, a known step is timed again."""
    asked = [None, {"matmul": "heuristic"}, None]
    found = [perfmodel.predict("criteo-kaggle", kernels=each, **CASE) for each in asked]
    steps = [each.results[0].step_us for each in found]
    assert steps[0] == steps[2] != steps[1]
    why = found[1].results[0].explain("aten::addmm").reason
    assert why.terms["model"] == "gpu/matmul/heuristic"
    assert found[1].to_dict()["made_by"]["own_models"] == "matmul=heuristic"
    compared = perfmodel.compare(
        "criteo-kaggle",
        "a100-sxm-80gb",
        "default",
        batch=65536,
        train=False,
        kernels="matmul=heuristic",
    )
    row = next(each for each in compared.rows if each.design == "own")
    assert row.result is not None
    assert row.result.step_us == steps[1]
    assert compared.to_dict()["made_by"]["own_models"] == "matmul=heuristic"


def test_a_sweeps_file(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    text = """
workload = "criteo-kaggle"
hardware = "a100-sxm-80gb"
training = false
kernels = {matmul = "NAME"}
axes = {batch = [65536]}
"""
    found = {}
    for name in ("heuristic", "learned"):
        path.write_text(text.replace("NAME", name))
        found[name] = explore.sweep(explore.load_spec(path)).frame["step_us"].to_numpy()
    expected = perfmodel.predict("criteo-kaggle", kernels="matmul=heuristic", **CASE)
    assert found["heuristic"] == expected.results[0].step_us
    assert not np.allclose(found["heuristic"], found["learned"])
    path.write_text(text.replace("NAME", "mine"))
    with pytest.raises(UsageError, match=r"sweep.toml: kernels matmul=mine"):
        explore.load_spec(path)


def test_what_was_measured_has_no_model() -> None:
    with pytest.raises(UsageError, match="kernels cannot be combined with mode replay"):
        perfmodel.predict("traces/cpu_dlrm_2rank", kernels="matmul=heuristic")

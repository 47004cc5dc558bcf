"""Parts of the mutator; `python tests/mutants`, which `.ci/run` calls too, makes mutants."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from mutants.answer import Answer
from mutants.laws import broken, broken_more
from mutants.parts import KINDS
from mutants.run import Verdict
from mutants.said import is_named
from mutants.seeds import Seed, seeds


def small() -> tuple[Seed, ...]:
    """The bundled demo, and two of the smallest recordings of GPUs where they are there."""
    names = ("demo/dlrm_cpu_kineto", "inference/h100_bert-small", "dlrm_v100x8/kineto_rank0")
    return tuple(seed for seed in seeds() if seed.name in names)


def test_undamaged_traces_say_nothing_new() -> None:
    for seed in small():
        events = json.loads(seed.content)["traceEvents"]
        assert broken_more(events, broken(events)) == []
        assert sum(broken(events).values()) < 0.01 * len(events), seed.name


def test_a_warning_names_what_was_damaged() -> None:
    clock = "a.json: the device's clock is 1000.000 ms late against the host's: ..."
    assert is_named("device clock off", [clock])
    assert not is_named("operators missing", [clock])
    assert not is_named("streams", ["rank 0: 17.4 % of step 5 is unexplained"])


@pytest.mark.parametrize("kind", ["the end cut off", "device clock off", "all in another unit"])
def test_the_same_seed_gives_the_same_mutant(kind: str) -> None:
    def mutant() -> object:
        document = json.loads(small()[-1].content)
        return KINDS[kind](document["traceEvents"], random.Random(5))

    assert mutant() == mutant()


def test_what_counts_as_a_fault(tmp_path: Path) -> None:
    one = Answer({"step": 100.0, "gpu active": 50.0}, ("a.json: 3 kernels",))
    assert one.difference(Answer({"step": 101.5, "gpu active": 50.0})) == pytest.approx(0.015)
    assert one.difference(one) == 0
    assert one.new_warnings(Answer({}, ("b.json: 4 kernels", "b.json: lost"))) == ["b.json: lost"]
    assert Verdict("", "", 0, "differs", ("a law",), "").is_fault
    assert not Verdict("", "", 0, "differs", (), "").is_fault
    assert Verdict("", "", 0, "crashed", (), "").is_fault
    assert not Verdict("", "", 0, "warned", ("a law",), "").is_fault

"""Parts of the fuzzer; `python tests/fuzz`, which `.ci/run` calls too, damages files."""

from __future__ import annotations

import pytest
from fuzz.damage import Damaged
from fuzz.guided import Corpus
from fuzz.kinds import KINDS
from fuzz.outcome import VALUE, Outcome, outcome_of
from fuzz.readers import Kind
from fuzz.run import TRACES, fuzz

SEED = 7


@pytest.mark.parametrize("kind", [TRACES, *KINDS], ids=lambda kind: kind.name)
def test_sound_files_are_read(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("sound") / f"file{kind.suffix}"
    for content in kind.seeds():
        path.write_bytes(content)
        outcome = outcome_of(kind.read, path)
        assert outcome.how in ("clean", "warned"), outcome


def test_what_reaches_something_new_is_damaged_further() -> None:
    corpus = Corpus()
    assert not fuzz((TRACES,), 60, SEED, corpus=corpus).faults
    assert corpus.kept[TRACES.name]
    assert len(corpus.reached[TRACES.name]) > 200
    count = len(corpus.kept[TRACES.name])
    places = {next(iter(corpus.reached[TRACES.name]))}
    corpus.learn(TRACES, Damaged(VALUE, "again", b"{}"), Outcome("clean"), places)
    assert len(corpus.kept[TRACES.name]) == count, "nothing new was reached"


@pytest.mark.slow
def test_damaged_files_on_the_command_line() -> None:
    kinds = (TRACES, *(kind for kind in KINDS if kind.name in ("hardware", "nccl-tests log")))
    assert not fuzz(kinds, 6, SEED, commands=True).faults


@pytest.mark.parametrize(
    ("how", "damage", "is_fault"),
    [
        ("traceback", "value", True),
        ("hang", "value", True),
        ("clean", "value", False),
        ("clean", "type", True),
        ("warned", "reference", False),
        ("refused", "syntax", False),
    ],
)
def test_what_counts_as_a_fault(how: str, damage: str, is_fault: bool) -> None:
    assert Outcome(how).is_fault(damage) is is_fault

"""A few kills of each verb that writes; `python tests/fuzz/kills.py` makes many."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.kills import OLD, WRITING, Writing, content, inputs, strike, strike_all

FAST = tuple(each for each in WRITING if each.name in ("predict", "check --update"))


@pytest.mark.slow
def test_nothing_is_damaged_or_lost() -> None:
    hits, problems = strike_all(FAST, 4, seed=3)
    assert hits == 4
    assert not problems


def test_a_writer_in_place_would_be_caught(tmp_path: Path) -> None:
    """The killer sees a file that was written in two parts."""
    program = "import sys,time;f=open(sys.argv[1],'w');f.write('a');f.flush();time.sleep(60)"
    naive = Writing("naive", ("-c", program, "{out}"))
    from fuzz import kills

    def command(writing: Writing, given: Path, out: Path) -> list[str]:
        return [kills.sys.executable, *(word.replace("{out}", str(out)) for word in writing.words)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kills, "command", command)
        whole = kills.Undisturbed({"": b"ab"}, 60.0)
        was_killed, problem = strike(naive, inputs(tmp_path), whole, 2.0)
    assert was_killed
    assert "neither old nor new" in problem


def test_hidden_leftovers_are_not_counted(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(OLD)
    (tmp_path / ".part.x.tmp").write_bytes(OLD)
    assert content(tmp_path) == {"part": OLD}

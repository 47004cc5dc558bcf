"""Every command and every piece of Python in the documentation does what the page says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from docs.pages import NOT_RUN, PAGES, ROOT, Block, Session, blocks, commands, compare
from slow import slow_but

RUN = ("console", "python", "pycon")
KNOWN = (*RUN, "sh", "bash", "toml", "text", "json", "yaml", "mermaid", "")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def run(page: Path, chosen: list[Block], folder: Path) -> None:
    session = Session(folder)
    for block in chosen:
        wrong = ""
        try:
            session.run(block)
        except Exception as error:
            wrong = f"{name_of(page)}:{block.line}: {error}"
        if wrong:
            pytest.fail(
                f"{wrong}\n(python tests/docs/pages.py updates what is shown)", pytrace=False
            )


PAGES_THAT_RUN = [page for page in PAGES if any(block.language in RUN for block in blocks(page))]


@pytest.mark.parametrize("page", slow_but(1, PAGES_THAT_RUN), ids=name_of)
def test_page(page: Path, tmp_path: Path) -> None:
    run(page, [block for block in blocks(page) if not block.needs_torch], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(b.needs_torch for b in blocks(p))], ids=name_of
)
def test_page_with_pytorch(page: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs PyTorch: pip install torch (the CPU build is enough)")
    run(page, [block for block in blocks(page) if block.needs_torch], tmp_path)


def test_no_command_stands_where_it_is_not_run() -> None:
    for page in PAGES:
        for block in blocks(page):
            where = f"{name_of(page)}:{block.line}"
            assert block.language in KNOWN, f"{where}: unknown fence {block.language!r}"
            if block.language in ("sh", "bash"):
                excused = name_of(page) in NOT_RUN or block.is_excused
                assert excused, f"{where}: make it `console`, or say why it is not run"
            elif block.language not in (*RUN, *(["yaml"] * (name_of(page) in NOT_RUN))):
                lines = [line.strip().removeprefix("$ ") for line in block.text.splitlines()]
                hidden = [
                    line for line in lines if line.startswith(("perfmodel ", "python -m perfmodel"))
                ]
                assert not hidden, f"{where}: a command outside a `console` block is never run"


def test_readme_begins_with_the_two_commands_of_the_quick_start() -> None:
    first, second = [b for b in blocks(ROOT / "README.md") if b.language][:2]
    for block, word in ((first, "perfmodel"), (second, "pytest")):
        assert block.language == "sh"
        assert len(block.text.splitlines()) == 1
        assert block.text.startswith("pip install ")
        assert word in block.text.partition("&&")[2]


def test_comparison_forgives_small_differences_of_numbers_only() -> None:
    assert compare(["step  16.31 ms"], ["step 16.30 ms"]) is None
    assert compare(["a", "...", "z 1"], ["a", "b", "c", "z 1"]) is None
    assert compare(["step 16.31 ms"], ["step 18.31 ms"])
    assert compare(["step 16.31 ms"], ["stop 16.31 ms"])
    assert compare(["a"], ["a", "b"])
    assert compare(["a", "b"], ["a"])


def test_commands_are_split_from_what_they_print() -> None:
    block = Block("console", "$ one \\\n    --two\nout\n$ three\n", "", 1)
    assert list(commands(block)) == [("one --two", ["out"]), ("three", [])]

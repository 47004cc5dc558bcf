"""`perfmodel report`: a page, or one line that says why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.cli import main
from perfmodel.reporting.page import answer_html


def test_the_demo_makes_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["report", "-o", str(page)]) == 0
    assert page.read_text().startswith("<!doctype html>")


def test_steps_have_the_title_that_breakdown_gives_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert main(["report", "demo:2rank", "--steps", "2:4", "-o", str(page)]) == 0
    capsys.readouterr()
    assert main(["breakdown", "demo:2rank", "--steps", "2:4"]) == 0
    verdict = capsys.readouterr().out.splitlines()[1]
    assert f"<h1>{verdict.partition(';')[0]}" in page.read_text()


def test_a_workload_makes_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    asked = ["report", "--workload", "lin-dlrm-ddp", "--hardware", "v100-sxm2-16gb"]
    assert main([*asked, "-o", str(page)]) == 0
    assert "v100-sxm2-16gb" in page.read_text()


def test_a_what_if_makes_a_page_that_says_what_it_gains(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    asked = ["report", "--scale", "host=0.5", "-o", str(page)]
    assert main(asked) == 0
    text = page.read_text()
    for words in ("Largest gains", "without the what-if", ">gain<", ">without<"):
        assert words in text
    assert "perfmodel predict --scale operators/main=0.5" in text
    assert text.index('id="summary"') < text.index('id="gains"') < text.index('id="measured"')


def test_from_shapes_what_would_help_has_no_command(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["report", "--hardware", "a100-sxm-80gb", "-o", str(page)]) == 0
    text = page.read_text()
    assert "no synchronising calls: -" in text
    assert "perfmodel predict" not in text


def test_a_stored_comparison_makes_a_page_with_its_bars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["--workload", "lin-dlrm-ddp", "--hardware", "v100-sxm2-16gb"]
    assert main(["compare", *asked, "--designs", "default", "-o", "compared.json"]) == 0
    assert main(["report", "compared.json", "-o", "page.html"]) == 0
    text = Path("page.html").read_text()
    for words in ('id="answer"', "samples per s", "Critical path by what bounds it"):
        assert words in text


def test_each_step_of_a_stored_ladder_has_its_row() -> None:
    """As had 73 machines a column; and rates had an exponent."""
    steps = ("today", "fp16_rows", "cache")
    rows = [
        {"design": "neo", "step": step, "samples_per_s": 14641408.4, "bound_by": {"hbm": 9.0}}
        for step in steps
    ]
    text = answer_html({"schema": "perfmodel.compare/1", "designs": rows}, "compared.json")
    for step in steps:
        assert f">neo</td><td>{step}</td>" in text
    assert "14,641,408</td>" in text
    assert ">hbm</button>" in text


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["-o", "page.pdf"], "a page is written as .html"),
        (["-o", "nowhere/page.html"], "there is no folder nowhere"),
        (["--workload", "lin-dlrm-ddp"], "name the machine"),
        (["trace.json", "--workload", "lin-dlrm-ddp"], "cannot be combined with a trace"),
        (["--batch", "8"], "say where to predict it: --hardware"),
        (["--scale", "gpu"], "expected SCOPE"),
        (["--scale", "gpu=half"], "FACTOR a number >= 0"),
        (["--remove", "memcpy"], "'memcpy' matches nothing in this trace"),
        (["--mode", "replay", "--hardware", "h100-sxm"], "--hardware cannot be combined with"),
        (
            ["--workload", "lin-dlrm-ddp", "--scale", "gpu=1"],
            "--scale cannot be combined with --workload",
        ),
        (
            ["--workload", "lin-dlrm-ddp", "--mode", "replay"],
            "--mode replay cannot be combined with",
        ),
        (["--hardware", "h1000"], "unknown hardware 'h1000'"),
        (["no-such-file.json"], "no-such-file.json"),
    ],
)
def test_bad_input_is_one_line_and_no_page(
    given: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", *given]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())

"""Where answers go: links, modes, packed files, forms by their suffix, odd standard outputs."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from cli.conftest import Run
from slow import slow_but

LIST = ("hardware", "list", "--kind", "device")


def shell(folder: Path, line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line of a shell in which `$PM` is the command."""
    command = f"{sys.executable} -m perfmodel"
    return subprocess.run(
        ["bash", "-c", line.replace("$PM", command)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        capture_output=True,
        text=True,
        errors="replace",
    )


def test_links_and_modes_are_kept(run: Run, tmp_path: Path) -> None:
    real, link, other = (tmp_path / name for name in ("real.json", "link.json", "other.json"))
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to("real.json")
    other.hardlink_to(real)
    assert run(*LIST, "-o", link).status == 0
    assert link.is_symlink()
    assert real.samefile(other)
    assert json.loads(other.read_text())["schema"] == "perfmodel.hardware/1"
    assert real.stat().st_mode & 0o777 == 0o640


def test_links_that_lead_nowhere(run: Run, tmp_path: Path) -> None:
    (tmp_path / "dangling.json").symlink_to("made.json")
    assert run(*LIST, "-o", tmp_path / "dangling.json").status == 0
    assert (tmp_path / "made.json").is_file()
    assert (tmp_path / "dangling.json").is_symlink()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "lost").symlink_to("no_folder/file")
    for name in ("loop", "lost"):
        ran = run(*LIST, "-o", tmp_path / name)
        assert ran.status == 2
        assert name in ran.err
        assert (tmp_path / name).is_symlink()


@pytest.mark.parametrize("target", slow_but(2, ["/dev/stdout", "-", "so", "got.txt"]))
def test_standard_output_by_any_name(tmp_path: Path, target: str) -> None:
    done = shell(tmp_path, f"ln -s /proc/self/fd/1 so; $PM hardware list -o {target} > got.txt")
    assert done.returncode == 0, done.stderr
    assert "h100-sxm" in (tmp_path / "got.txt").read_text()
    assert (tmp_path / "so").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["got.txt", "so"]


def test_a_link_to_a_full_disk_is_one_line(tmp_path: Path) -> None:
    for words in ("--help", "--version", "hardware list", "hardware -f json", "kernel -o -"):
        done = shell(tmp_path, f"$PM {words} > /dev/full")
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1, words
        assert "standard output" in done.stderr


@pytest.mark.parametrize("words", slow_but(2, ["hardware list", "kernel", "breakdown", "predict"]))
def test_a_terminal_of_ascii_alone(tmp_path: Path, words: str) -> None:
    done = shell(tmp_path, f"$PM {words}", PYTHONIOENCODING="ascii", MPLBACKEND="x")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert not done.stderr


@pytest.mark.slow
def test_a_figure_needs_no_backend(tmp_path: Path) -> None:
    done = shell(tmp_path, "$PM predict --figure f.png", MPLBACKEND="x")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "f.png").exists()


def test_the_suffix_decides_the_form(run: Run, tmp_path: Path) -> None:
    for name in ("a.json", "a.json.gz", "a.csv", "a.csv.gz", "a.md", "a.parquet", "a.txt.gz"):
        assert run(*LIST, "-o", tmp_path / name).status == 0
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == (
        (tmp_path / "a.json").read_bytes()
    )
    rows = pd.read_csv(tmp_path / "a.csv")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "a.csv.gz"), rows)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "a.parquet"), rows)
    lines = (tmp_path / "a.md").read_text().splitlines()
    assert len(lines) == len(rows) + 2
    assert lines[0].startswith("| ")
    assert set(lines[1]) == set("| -")
    assert b"h100-sxm" in gzip.decompress((tmp_path / "a.txt.gz").read_bytes())


def test_cells_of_markdown_and_parquet_are_the_names(tmp_path: Path) -> None:
    from perfmodel.cli.options import Format
    from perfmodel.cli.output import _FORMS

    rows = [{"name": "=a|b<c>", "us": 1.5}, {"name": "NA", "us": None}]
    assert _FORMS[Format.MARKDOWN](rows).decode().splitlines()[2:] == [
        "| =a\\|b\\<c> | 1.5 |",
        "| NA |  |",
    ]
    path = tmp_path / "x.parquet"
    path.write_bytes(_FORMS[Format.PARQUET](rows))
    assert pd.read_parquet(path)["name"].tolist() == ["=a|b<c>", "NA"]


def test_what_cannot_be_written_is_said_before_any_work(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    for name, said in (("a.xlsx", "openpyxl"), ("a.html", ".parquet"), ("a.PNG", ".md")):
        ran = run("predict", "missing.json", "-o", tmp_path / name)
        assert ran.status == 2
        assert said in ran.err
    assert not list(tmp_path.iterdir())

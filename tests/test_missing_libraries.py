"""What an install without the larger libraries says, and still answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.file_seeds import step_rows

import perfmodel
from perfmodel.base.registry import library
from perfmodel.errors import LibraryError

HIDDEN = ("matplotlib", "pyarrow", "numba", "sklearn", "xgboost", "joblib")


def without(*commands: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    """A process without these libraries, in which commands run one after the other."""
    hide = f"import sys; sys.modules.update(dict.fromkeys({HIDDEN!r}))\n"
    run = f"sys.exit(max(main([*words]) for words in {commands!r}))"
    code = f"{hide}from perfmodel.cli import main; {run}"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("breakdown", "demo:", "--figure", "a.png"), "matplotlib"),
        (("breakdown", "demo:", "-o", "a.parquet"), "pyarrow"),
        (("fit", "kernels", "--data", "a.csv", "-o", "models"), "scikit-learn"),
        (("sweep", "a.toml"), "numba"),
    ],
)
def test_what_needs_one_says_in_a_line_how_to_install_it(
    words: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    trace = Path(perfmodel.__file__).parent / "demo" / "gpu"
    (tmp_path / "a.toml").write_text(f'trace = "{trace}"\n[axes]\nhardware = ["h100-sxm"]\n')
    ran = without(words, folder=tmp_path)
    assert ran.returncode == 2
    assert ran.stderr.strip().endswith(f"is not installed: `pip install {named}`")
    assert ran.stderr.count("\n") == 1
    assert [each.name for each in tmp_path.iterdir()] == ["a.toml"]


def test_ordinary_answers_need_none(tmp_path: Path) -> None:
    predicted = ("predict", "--workload", "dlrm-dcnv2", "--hardware", "dgx-h100")
    paged = ("report", "demo:2rank", "-o", "a.html")
    (tmp_path / "cpu.csv").write_bytes(step_rows())
    fitted = ("fit", "device", "--data", "cpu.csv", "--hardware", "epyc-7742", "-o", "mine.toml")
    ran = without(("breakdown", "demo:2rank"), predicted, paged, fitted, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_a_library_that_is_there_is_the_module() -> None:
    assert library("json") is __import__("json")
    with pytest.raises(LibraryError, match="no_such is not installed: `pip install no_such`"):
        library("no_such.part")

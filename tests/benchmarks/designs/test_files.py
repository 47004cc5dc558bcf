"""Files of published figures: what is read, and what is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

import perfmodel
from benchmarks.published.designs import evaluate_designs, read_studies
from perfmodel.errors import PerfmodelError

ROW = """
[[figures]]
id = "{id}"
title = "a row of FBGEMM"
unit = "bytes"
target = 48
provenance = "nowhere"
evidence = "exact"
quantity = "{quantity}"
settings = {{ {settings} }}
"""
INT8 = 'dtype = "int8", dim = 32'


def row(id: str = "paper-table", quantity: str = "row_bytes", settings: str = INT8) -> str:
    return ROW.format(id=id, quantity=quantity, settings=settings)


def refused(folder: Path, text: str, match: str) -> None:
    path = folder / "paper.toml"
    path.write_text(text)
    with pytest.raises(PerfmodelError, match=match) as error:
        evaluate_designs(folder=folder)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("before", "after", "match"),
    [
        ("48", '"48"', r"figures\[1\]: target: expected a number or a pair, got '48'"),
        ("48", "nan", r"figures\[1\]: target: expected a number or a pair, got nan"),
        ("48", "[1, inf]", r"figures\[1\]: target: expected a number or a pair, got \[1, inf\]"),
        ("48", "[3, 2]", r"figures\[1\]: target: expected a number, or a band"),
        ("target = 48", "", r"figures\[1\]: target is missing"),
        (
            "target = 48",
            "target = 48\ntarget_ms = 3",
            r"figures\[1\]: unknown key target_ms; expected: target",
        ),
        ('"exact"', '"certain"', r"figures\[1\]: evidence: expected one of .*got 'certain'"),
        ('"exact"', '"seen"', r"figures\[1\]: evidence 'seen' needs `known`"),
        ("paper-table", "A figure", r"figures\[1\]: id: expected a-z, .*got 'A figure'"),
        ("[[figures]]", "[[figures", "not valid TOML"),
        ("48", "9" * 5000, "not valid TOML"),
        ("[[figures]]", "[figures]", r"figures: expected a list of one or more values, got {"),
        ("row_bytes", "row_byte", "paper-table: unknown quantity 'row_byte'; nearest: row_bytes"),
        ("dim = 32", 'dim = "a"', "paper-table: dim: expected a whole number .*, got 'a'"),
        ("dim = 32", "dim = 0", "paper-table: dim: expected a whole number from 1 to .*, got 0"),
        ("dim = 32", "dims = 32", "paper-table: unknown setting 'dims'; nearest: dim"),
        (", dim = 32", "", "paper-table: settings: dim is missing"),
        ("row_bytes", "none.py:f", "paper-table: quantity 'none.py:f': no file"),
        ("row_bytes", "../none.py:f", "paper-table: quantity '../none.py:f': no file"),
    ],
)
def test_what_a_file_cannot_say_is_named(
    tmp_path: Path, before: str, after: str, match: str
) -> None:
    refused(tmp_path, row().replace(before, after, 1), match)


STEPS = """
[steps.one]
workload = "criteo-kaggle"
machine = "a100-sxm-80gb"

[variants.other]
design = "hybrid"
settings = { nothing = 1 }
"""


@pytest.mark.parametrize(
    ("before", "after", "match"),
    [
        ('step = "one"', 'step = "two"', "paper-table: unknown step 'two'; nearest: one"),
        ('step = "one"', 'step = "one", variant = "x"', "unknown variant 'x'; nearest: other"),
        ('step = "one"', 'step = "one", variant = "other"', "hybrid: unknown key nothing"),
        ("criteo-kaggle", "nowhere", "paper-table: unknown workload 'nowhere'"),
        ("criteo-kaggle", "mine.toml", r"paper-table: .*mine\.toml"),
        ("a100-sxm-80gb", "nowhere", "paper-table: unknown"),
        (
            "machine =",
            "nodes = 0\nmachine =",
            r"steps\.one: nodes: expected a whole number from 1 to",
        ),
    ],
)
def test_steps_are_refused_by_name(tmp_path: Path, before: str, after: str, match: str) -> None:
    text = row(quantity="step_ms", settings='step = "one"') + STEPS
    refused(tmp_path, text.replace(before, after, 1), match)


def test_workloads_and_machines_may_lie_below(tmp_path: Path) -> None:
    below = tmp_path / "below"
    below.mkdir()
    catalogue = Path(perfmodel.__file__).parent / "workload" / "catalogue" / "criteo-kaggle.toml"
    (below / "mine.toml").write_text(catalogue.read_text())
    (below / "machine.toml").write_text('extends = "a100-sxm-80gb"\nname = "mine"\n')
    text = row(quantity="step_ms", settings='step = "one"') + STEPS
    (tmp_path / "paper.toml").write_text(text)
    (usual,) = evaluate_designs(folder=tmp_path).figures
    text = text.replace("criteo-kaggle", "below/mine.toml").replace(
        "a100-sxm-80gb", "below/machine.toml"
    )
    (tmp_path / "paper.toml").write_text(text)
    (found,) = evaluate_designs(folder=tmp_path).figures
    assert found.predicted == pytest.approx(usual.predicted)


DEFAULTS = """
[notes]
found = "in its README"

[defaults.figure]
title = "another title"
provenance = "found"
assumed = ["found", "of all"]
settings = { dtype = "int4", dim = 64 }
"""


def test_figures_share_defaults_and_notes(tmp_path: Path) -> None:
    text = row(settings="dim = 32").replace('provenance = "nowhere"', 'assumed = ["its own"]')
    (tmp_path / "paper.toml").write_text(DEFAULTS + text)
    (found,) = evaluate_designs(folder=tmp_path).figures
    assert found.row.title == "a row of FBGEMM"
    assert found.row.provenance == "in its README"
    assert found.row.assumed == ("its own", "in its README", "of all")
    assert found.predicted == 32


CODE = """
from perfmodel.errors import PerfmodelError

def found(study, factor: float):
    return 24 * factor, "by hand"

def wrong(study):
    raise PerfmodelError("it cannot be")

def broken(study):
    return {}["key"]

def endless(study):
    return float("inf")
"""


def test_a_file_may_bring_a_quantity(tmp_path: Path) -> None:
    (tmp_path / "paper.py").write_text(CODE)
    (tmp_path / "paper.toml").write_text(row(quantity="paper.py:found", settings="factor = 2"))
    (found,) = evaluate_designs(folder=tmp_path).figures
    assert (found.predicted, found.detail, found.holds) == (48, "by hand", True)


@pytest.mark.parametrize(
    ("function", "match"),
    [
        ("wrong", "paper-table: it cannot be"),
        ("broken", "paper-table: paper.py:broken: KeyError: 'key'"),
        ("endless", "paper-table: paper.py:endless is inf, not a number"),
        ("absent", "paper-table: quantity 'paper.py:absent': no function 'absent'"),
    ],
)
def test_a_quantity_that_fails_is_named(tmp_path: Path, function: str, match: str) -> None:
    (tmp_path / "paper.py").write_text(CODE)
    refused(tmp_path, row(quantity=f"paper.py:{function}", settings=""), match)


def test_a_module_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    refused(tmp_path, row(quantity="broken.py:f", settings=""), r"broken\.py: ModuleNotFoundError")


def test_ids_come_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text(row())
    with pytest.raises(PerfmodelError, match=r"b\.toml: paper-table: it is in .*a\.toml already"):
        read_studies(tmp_path)


def test_only_names_figures_files_and_beginnings(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(row("paper-a") + row("paper-b") + row("papers"))
    (tmp_path / "two.toml").write_text(row("other"))

    def ids(*only: str) -> list[str]:
        return [each.row.id for each in evaluate_designs(only=only, folder=tmp_path).figures]

    assert ids("paper") == ["paper-a", "paper-b"]
    assert ids("paper-b", "two") == ["paper-b", "other"]
    assert ids() == ["paper-a", "paper-b", "papers", "other"]
    with pytest.raises(PerfmodelError, match="unknown published figure 'others'; nearest: other"):
        ids("others")


@pytest.mark.parametrize("folder", ["absent", "."])
def test_a_folder_without_files_is_refused(tmp_path: Path, folder: str) -> None:
    with pytest.raises(PerfmodelError, match=r"no such folder|no published figures"):
        evaluate_designs(folder=tmp_path / folder)

"""The collector's command line, its records and its models' options; none of it needs PyTorch."""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from perfmodel.collect import backend
from perfmodel.collect.__main__ import build_parser, main
from perfmodel.collect.families import FAMILIES, Scope
from perfmodel.collect.models import Options
from perfmodel.collect.models.dlrm import (
    CRITEO_TB_ROWS,
    dlrm_config,
    require_room,
    zipf_indices,
)
from perfmodel.collect.runs import count, listed, positive, restore_command, stem_of
from perfmodel.collect.timing import robust_us, summarize
from perfmodel.errors import PerfmodelError, UsageError

PACKAGE = Path(backend.__file__).parents[1]
FLOOR = ("__init__.py", "errors.py", "base/__init__.py")
FLOOR += tuple(f"base/{name}.py" for name in ("files", "registry", "units"))


def test_every_verb_parses_its_defaults() -> None:
    parser = build_parser()
    assert parser.parse_args(["kernels"]).minutes == 10.0
    assert parser.parse_args(["trace", "--steps", "2"]).steps == 2
    assert parser.parse_args(["steps", "--device", "cpu"]).device == "cpu"


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5"])
def test_a_count_is_a_positive_integer(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        count(text)


@pytest.mark.parametrize("text", ["0", "-1", "x", "nan", "inf"])
def test_minutes_are_positive_and_finite(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        positive(float)(text)


def test_families_are_chosen_by_name() -> None:
    assert listed("--families", "matmul, copies", list(FAMILIES)) == ["matmul", "copies"]
    assert set(listed("--families", "", list(FAMILIES))) > {"matmul", "embedding", "optimizers"}
    with pytest.raises(PerfmodelError, match="nearest: matmul"):
        listed("--families", "matmull", list(FAMILIES))


@pytest.mark.parametrize("verb", ["kernels", "steps", "trace"])
def test_a_missing_torch_is_one_line_and_exit_2(
    verb: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main([verb, "-o", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("perfmodel: PyTorch cannot be imported here")
    assert error.count("\n") == 1


def test_an_unknown_model_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "--model", "dlmr"]) == 2
    assert "unknown model 'dlmr'; nearest: dlrm" in capsys.readouterr().err


def test_an_output_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be created"):
        stem_of(tmp_path / "file" / "folder", "x")


def test_the_recorded_command_leaves_the_output_folder_out() -> None:
    arguments = build_parser().parse_args(["trace", "--preset", "ddp", "-o", "/somewhere/else"])
    command = restore_command("trace", arguments)
    assert command.startswith("python -m perfmodel.collect trace --active 6")
    assert "--preset ddp" in command
    assert "somewhere" not in command
    assert build_parser().parse_args(command.split()[3:]).preset == "ddp"


def test_a_copied_folder_runs_with_the_ground_floor_only(tmp_path: Path) -> None:
    copied = tmp_path / "perfmodel"
    shutil.copytree(PACKAGE / "collect", copied / "collect")
    (copied / "base").mkdir()
    for name in FLOOR:
        shutil.copy(PACKAGE / name, copied / name)
    done = subprocess.run(
        [sys.executable, "-m", "perfmodel.collect", "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(verb in done.stdout for verb in ("kernels", "steps", "trace"))


def test_help_loads_neither_torch_nor_pandas() -> None:
    script = (
        "import sys; from perfmodel.collect.__main__ import build_parser; build_parser();"
        "print([m for m in ('torch', 'pandas', 'scipy', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_the_published_configurations() -> None:
    default, mlperf = dlrm_config(Options(preset="default")), dlrm_config(Options(preset="mlperf"))
    assert (default.dim, default.pooling, len(default.rows)) == (64, 100, 8)
    assert sum(CRITEO_TB_ROWS) == 204_184_588
    assert len(mlperf.rows) == 26
    capped = dlrm_config(Options(preset="mlperf", max_rows=1000, pooling=3))
    assert max(capped.rows) == 1000
    assert min(capped.rows) == 3
    assert capped.pooling == 3
    with pytest.raises(UsageError, match="there are ddp, default"):
        dlrm_config(Options(preset="nix"))


def test_tables_that_do_not_fit_are_refused_before_anything_is_allocated() -> None:
    table_bytes = dlrm_config(Options(preset="mlperf")).table_bytes
    with pytest.raises(UsageError, match=r"need 104\.5 GB, and 24\.0 GB are free"):
        require_room(table_bytes, 24_000_000_000)
    require_room(table_bytes, 240_000_000_000)


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0, 1.3])
def test_drawn_rows_follow_their_skew(alpha: float) -> None:
    rows, lookups = 1000, 50_000
    drawn = zipf_indices(np.random.default_rng(1), rows, lookups, alpha)
    assert drawn.min() >= 0
    assert drawn.max() < rows
    counts = np.sort(np.bincount(drawn, minlength=rows))[::-1]
    weights = np.arange(1, rows + 1) ** -alpha
    expected = weights[10:200].sum() / weights.sum()
    assert counts[10:200].sum() / lookups == pytest.approx(expected, rel=0.25)


def test_dtypes_are_those_of_the_machine() -> None:
    scope = Scope("cpu", ("fp32", "bf16"))
    assert listed("--dtypes", "bf16, fp32", scope.dtypes) == ["bf16", "fp32"]
    with pytest.raises(UsageError, match="'fp8'; nearest: fp32"):
        listed("--dtypes", "fp8", scope.dtypes)


def test_the_estimator_is_the_tenth_percentile() -> None:
    samples = [10.0] * 3 + [11.0] * 5 + [400.0] * 2
    assert robust_us(samples) == 10.0
    assert summarize(samples)["median_us"] == 11.0
    assert summarize([0.0])["spread_frac"] == 0.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["kernels", "--device", "tpu"], "perfmodel: argument --device: invalid choice: 'tpu'"),
        (["nix"], "perfmodel: argument VERB: invalid choice: 'nix'"),
        ([], "perfmodel: the following arguments are required: VERB"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    err = capsys.readouterr().err
    assert stop.value.code == 2
    assert err.startswith(said)
    assert err.count("\n") == 1
    assert " --help" in err

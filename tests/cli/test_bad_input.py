"""Whatever is wrong: one line that names the file and the place, exit status 2, nothing written."""

from __future__ import annotations

import errno
import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from cli.conftest import Ran, Run
from cli.samples import document, event, write

from perfmodel.__main__ import run as start
from perfmodel.errors import UsageError
from perfmodel.ops.read.module import Call
from perfmodel.timeline.graph.types import ExecutionGraph

VERBS = ("breakdown", "predict", "export")
OUT = "answer.json"


def refused(ran: Ran, *texts: str) -> None:
    """One line on standard error with all `texts`, and nothing else."""
    assert ran.status == 2
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("perfmodel: ")
    assert "internal error" not in ran.err
    for text in texts:
        assert text in ran.err


@pytest.fixture
def fails(run: Run, tmp_path: Path) -> Callable[..., None]:
    """`fails(path, texts...)`: every verb refuses the input, and leaves no file behind."""

    def check(path: Path | str, *texts: str, options: tuple[object, ...] = ()) -> None:
        folder = tmp_path / "written"
        folder.mkdir()
        for verb in VERBS:
            refused(run(verb, path, *options, "-o", folder / OUT), *texts)
            assert not list(folder.iterdir())

    return check


Fails = Callable[..., None]


def test_words_beyond_what_a_path_or_a_number_may_have(run: Run, trace: Path) -> None:
    refused(run("predict", trace, "--explain", "9" * 5000), "longer than 4000 characters")
    refused(run("breakdown", trace, "-o", "n" * 300), "nnn", "ile name too long")


def test_truncated_json(fails: Fails, tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(document())[:-200])
    fails(path, "cut.json")


def test_truncated_gzip(fails: Fails, tmp_path: Path) -> None:
    path = tmp_path / "cut.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document()).encode())[:-30])
    fails(path, "cut.json.gz", "gzip ends early")


def test_html_page(fails: Fails, tmp_path: Path) -> None:
    path = tmp_path / "page.json"
    path.write_text("<!DOCTYPE html>\n<html><body>404</body></html>")
    fails(path, "page.json", "web page")


@pytest.mark.parametrize("content", [b"", b"  \n", gzip.compress(b"", mtime=0)])
def test_empty_file(fails: Fails, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "empty.json"
    path.write_bytes(content)
    fails(path, "empty.json", "empty")


def test_json_that_is_no_trace(fails: Fails, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"a": 1}')
    fails(path, "other.json", "not a trace")


def test_a_program_names_its_class_and_what_it_does(fails: Fails, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text("class Net: ...")
    fails(path, "net.py:CLASS")
    with pytest.raises(UsageError, match="optimizer SGD: steps in training alone: train"):
        Call(optimizer="SGD")


@pytest.mark.parametrize(
    "events",
    [
        [],
        [event("somewhere_else", "marker", 0, 1)],
        [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}],
    ],
)
def test_trace_without_events(fails: Fails, tmp_path: Path, events: list[Any]) -> None:
    fails(write(tmp_path / "hollow.json", {"traceEvents": events}), "hollow.json")


def test_trace_of_kernels_alone_is_no_internal_error(run: Run, tmp_path: Path) -> None:
    content = document()
    kernels = [e for e in content["traceEvents"] if e["cat"] == "kernel"]
    path = write(tmp_path / "kernels.json", content | {"traceEvents": kernels})
    for verb in ("breakdown", "predict"):
        assert "internal error" not in run(verb, path).err


def test_no_such_file(fails: Fails, tmp_path: Path) -> None:
    fails(tmp_path / "missing.json", "missing.json", "No such file")


def test_unreadable_file(fails: Fails) -> None:
    memory = Path("/proc/self/mem")
    if not memory.exists():
        pytest.skip("no file here that opens but cannot be read")
    fails(memory, str(memory), "cannot be read")


def test_folder_without_traces(fails: Fails, tmp_path: Path) -> None:
    fails(tmp_path, str(tmp_path), "no trace")


def test_same_rank_twice(fails: Fails, tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    for name in ("a.json", "b.json"):
        write(ranks / name, document(rank=1, world_size=2))
    fails(ranks, "a.json", "b.json", "rank 1")


def test_ranks_of_different_jobs(fails: Fails, tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    write(ranks / "a.json", document(rank=0, world_size=2))
    write(ranks / "b.json", document(rank=1, world_size=4))
    fails(ranks, "b.json", "4", "2")


def test_ranks_with_different_steps(fails: Fails, tmp_path: Path) -> None:
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    write(ranks / "a.json", document(rank=0, world_size=2))
    write(ranks / "b.json", document(steps=2, rank=1, world_size=2))
    fails(ranks, "ranks", "step")


def damaged(kind: str) -> dict[str, Any]:
    content = document()
    kernels = [e for e in content["traceEvents"] if e["cat"] == "kernel"]
    if kind == "negative durations":
        kernels[0]["dur"] = -5
    else:
        kernels[1]["args"]["correlation"] = kernels[0]["args"]["correlation"]
        calls = [e for e in content["traceEvents"] if e["cat"] == "cuda_runtime"]
        calls[1]["args"]["correlation"] = calls[0]["args"]["correlation"]
    return content


@pytest.mark.parametrize("kind", ["negative durations", "duplicated correlations"])
def test_damage_is_counted_and_strict_refuses_it(
    run: Run, fails: Fails, tmp_path: Path, kind: str
) -> None:
    path = write(tmp_path / "damaged.json", damaged(kind))
    for verb in ("breakdown", "predict"):
        ran = run(verb, path, "--format", "json")
        if ran.status == 0:
            assert any("damaged.json" in text for text in json.loads(ran.out)["warnings"])
        else:
            refused(ran, "damaged.json")
    fails(path, "damaged.json", options=("--strict",))


def test_cycle_is_named(run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from perfmodel.prediction import run as prediction
    from perfmodel.timeline.graph import build_graph

    def with_cycle(*arguments: Any, **options: Any) -> ExecutionGraph:
        graph = build_graph(*arguments, **options)
        edges = graph.edges_
        back = replace(
            edges,
            source=np.concatenate([edges.source, edges.target[:1]]),
            target=np.concatenate([edges.target, edges.source[:1]]),
            kind=np.concatenate([edges.kind, edges.kind[:1]]),
            overlap_frac=np.concatenate([edges.overlap_frac, [0.0]]),
            lag_us=np.concatenate([edges.lag_us, [0.0]]),
        )
        return replace(graph, edges_=back)

    monkeypatch.setattr(prediction, "build_graph", with_cycle)
    for verb in ("predict", "export"):
        refused(run(verb, trace), "cycle", "aten::mm")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--hardware", "h900"), "h900"),
        (("--hardware", "missing.toml"), "missing.toml"),
        (("--hardware", "epyc-7742"), "epyc-7742"),
        (("--scale", "gpu:no_such_kernel=0.5"), "matches nothing"),
        (("--scale", "compute@5=0.5"), "matches nothing"),
        (("--scale", "gpu=-1"), "gpu=-1"),
        (("--scale", "gpu:(=0.5"), "regular expression"),
        (("--remove", "disk"), "disk"),
    ],
)
def test_what_ifs_that_make_no_sense(
    run: Run, trace: Path, tmp_path: Path, options: tuple[str, ...], text: str
) -> None:
    for verb in ("predict", "export"):
        refused(run(verb, trace, *options, "-o", tmp_path / OUT), text)
        assert not (tmp_path / OUT).exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--overheads", "nobody"),
        ("--mode", "model"),
        ("--mode", "transfer"),
        ("--mode", "guess"),
        ("--format", "xml"),
        ("--figure", "picture.gif"),
        ("--max-memory", "0"),
        ("--max-memory", "1e-7"),
        ("--max-memory", "1e300"),
        ("--max-memory", "lots"),
        ("--et", "missing.json"),
        ("--nonsense",),
    ],
)
def test_options_that_make_no_sense(
    run: Run, trace: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    refused(run("predict", trace, *options, "-o", tmp_path / OUT))
    assert [file.name for file in tmp_path.iterdir()] == [trace.name]


def test_places_that_cannot_be_written(run: Run, trace: Path, tmp_path: Path) -> None:
    before = trace.read_bytes()
    for verb in VERBS:
        refused(run(verb, trace, "-o", tmp_path / "nowhere" / OUT), "nowhere")
        refused(run(verb, trace, "-o", tmp_path), "folder")
        refused(run(verb, trace, "-o", trace), "is the input")
        refused(run(verb, trace, "-o", "/dev/null"), "no regular file")
    assert trace.read_bytes() == before


@pytest.mark.parametrize(
    "words",
    [
        ("diff", "FILE", "other.json"),
        ("diff", "other.json", "FILE"),
        ("evaluate", "traces", "FILE"),
        ("evaluate", "kernels", "--data", "FILE"),
        ("evaluate", "steps", "--truth", "FILE", "--hardware", "epyc-7742"),
        ("evaluate", "steps", "--truth", "other.csv", "--hardware", "FILE"),
        ("evaluate", "collectives", "--curves", "FILE", "--data", "other.csv"),
        ("evaluate", "collectives", "--curves", "other.csv", "--data", "FILE"),
        ("fit", "device", "--data", "FILE"),
        ("fit", "overheads", "FILE"),
        ("fit", "collectives", "--log", "FILE", "--hardware", "dgx-h100"),
        ("fit", "kernels", "--data", "FILE"),
        ("hardware", "show", "FILE"),
        ("kernel", "add", "rows=1", "cols=1", "--hardware", "FILE"),
        ("predict", "FILE:Net", "--hardware", "l4"),
        ("predict", "--plan=FILE", "--workload", "neo-a", "--hardware", "l4"),
        ("plan", "--workload", "neo-a", "--hardware", "dgx-1", "--torchrec", "FILE"),
        ("compare", "--workload", "neo-a", "--hardware", "FILE"),
        ("evaluate", "modules", "FILE", "--programs", "."),
    ],
)
def test_no_verb_writes_over_what_it_reads(
    run: Run, tmp_path: Path, words: tuple[str, ...]
) -> None:
    path = tmp_path / ("mine.py" if "FILE:Net" in words else "mine.toml")
    path.write_text("precious")
    given = [word.replace("FILE", str(path)) for word in words]
    refused(run(*given, "-o", path), str(path))
    assert path.read_text() == "precious"


def test_kernels_of_a_trace_without_a_gpu(run: Run) -> None:
    ran = run("predict", "--hardware", "h100-sxm", "--mode", "transfer")
    refused(ran, "demo:", "h100-sxm", "use mode model")


def test_unknown_verb_and_missing_argument(run: Run) -> None:
    refused(run("forecast"), "forecast")
    refused(run("export"), "TRACE", "--help")


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ZeroDivisionError("a bug"), 2, "internal error: ZeroDivisionError: a bug"),
        (RecursionError("too deep"), 2, "internal error"),
        (MemoryError(), 2, "not enough memory"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(errno.EPIPE, "gone"), 0, ""),
        (SystemExit(0), 2, "test_bad_input.py"),
        (OSError(errno.ENOSPC, "full"), 2, "standard output: cannot be written"),
    ],
)
def test_never_a_traceback(
    trace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    text: str,
) -> None:
    import perfmodel.cli
    import perfmodel.trace

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("perfmodel.base.registry.IN_USE", [])
    monkeypatch.setattr("perfmodel.trace.read", fail)
    monkeypatch.setattr("perfmodel.cli._forget_stdout", lambda: None)
    assert perfmodel.cli.main(["breakdown", str(trace)]) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert text in shown.err
    assert shown.err.count("\n") == bool(text)
    assert perfmodel.cli.main(["--debug", "breakdown", str(trace)]) == status
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_while_modules_load_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loading(ModuleType):
        def __getattr__(self, name: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "perfmodel.cli", Loading("perfmodel.cli"))
    assert start() == 130


def test_a_reader_that_goes_away_is_no_error(trace: Path) -> None:
    command = [sys.executable, "-m", "perfmodel", "export", str(trace)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0

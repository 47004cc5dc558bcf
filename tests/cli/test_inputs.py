"""What a command reads stays as it is, and is a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cli.conftest import Run
from cli.test_bad_input import OUT, VERBS, refused

PROGRAM = """
import torch
class Net(torch.nn.Linear):
    pass
def get_init_inputs():
    return [8, 8]
def get_inputs():
    return [torch.ones(4, 8)]
"""
CALLS = """\
program,class,mode,training,device,duration_us,median_us,host_us,device_us
net,Net,eager,0,NVIDIA H200,10,10,8,2
"""


def test_no_verb_writes_over_what_it_reads_in_a_folder(
    run: Run, trace: Path, tmp_path: Path
) -> None:
    for verb in VERBS:
        refused(run(verb, tmp_path, "-o", trace), "is an input")
    pytest.importorskip("torch")
    program, table = tmp_path / "net.py", tmp_path / "calls.csv"
    program.write_text(PROGRAM)
    table.write_text(CALLS)
    words = ("evaluate", "modules", table, "--programs", tmp_path, "-o")
    refused(run(*words, program), "net.py: is an input")
    assert program.read_text() == PROGRAM
    assert run(*words, tmp_path / OUT).status == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize(
    "words",
    [
        ("breakdown", "FILE"),
        ("breakdown", "FILE", "--steps", "1:2"),
        ("diff", "FILE", "FILE"),
        ("predict", "--overheads", "FILE"),
        ("fit", "device", "--data", "FILE", "-o", "mine.toml"),
        ("kernel", "add", "rows=1", "cols=1", "--hardware", "FILE"),
    ],
)
def test_a_pipe_is_not_waited_for(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "pipe.toml"
    os.mkfifo(path)
    ran = run(*(word.replace("FILE", str(path)) for word in words))
    refused(ran, "pipe.toml: no regular file")

"""What a command reads stays as it is, and is a file."""

from __future__ import annotations

import os
import subprocess
import sys
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


def test_no_program_is_written_over(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: the CPU build is enough")
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


def test_a_device_that_is_not_known_is_said_of_its_table(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("op,device,dtype,b,m,n,k,duration_us\nbmm,NVIDIA H9,fp32,1,8,8,8,20\n")
    refused(run("evaluate", "kernels", "--data", path), f"{path}: unknown hardware 'NVIDIA H9'")


def test_ops_that_are_not_known_are_said_of_their_table(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    ops = [*"edcbaf", "bmm"]
    rows = [f"{op},Tesla T4,fp32,1,8,8,8,20\n" for op in ops]
    path.write_text("op,device,dtype,b,m,n,k,duration_us\n" + "".join(rows))
    words = f"{path}: unknown ops 'a', 'b', 'c', 'd', 'e' and 1 more; `perfmodel kernel` lists"
    refused(run("evaluate", "kernels", "--data", path), words)


def test_streams_that_are_closed(tmp_path: Path) -> None:
    """Nobody reads what would be said; the file is written all the same."""
    path = tmp_path / OUT
    closed = ("import os, sys", "[os.close(number) for number in range(3)]")
    start = f"sys.argv[1:] = ['predict', '-o', {str(path)!r}]; sys.stdin = sys.stdout = None"
    words = "; ".join(
        [*closed, start, "sys.stderr = None; from perfmodel.__main__ import run; run()"]
    )
    assert subprocess.run([sys.executable, "-c", words], check=False).returncode == 0
    assert path.stat().st_size


def test_who_is_told_to_end_leaves_nothing_half_written(tmp_path: Path) -> None:
    program = f"""
import os, signal
import perfmodel.cli
from perfmodel.__main__ import run
from perfmodel.base.files import atomic_write
def main():
    with atomic_write({str(tmp_path / OUT)!r}):
        os.kill(os.getpid(), signal.SIGTERM)
perfmodel.cli.main = main
run()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert ended.returncode != 0
    assert not list(tmp_path.iterdir())

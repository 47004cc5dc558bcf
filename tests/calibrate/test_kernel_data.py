"""Measurement tables as they are read: what cannot be used is named, with file and row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perfmodel.calibrate.kernel_data import read_table
from perfmodel.errors import ModelError

HEAD = "op,device,dtype,timing,m,n,k,duration_us"
ROW = "linear,NVIDIA L4,fp16,cuda_graph_replay,64,32,16,3.5"


def table(folder: Path, *lines: str) -> Path:
    path = folder / "t.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_table_and_where_it_came_from(tmp_path: Path) -> None:
    found = read_table(table(tmp_path, HEAD, ROW, ROW.replace("linear", "some_other_op")))
    assert found.frame["op"].tolist() == ["linear", "some_other_op"]
    assert len(found.sha256) == 64


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((HEAD,), "the table has no rows"),
        (("a,b", "1,2"), "no column 'op'; not a measurement table"),
        ((HEAD, ROW, ROW.replace("linear", "")), "row 1: op is missing"),
        ((HEAD, ROW.replace("NVIDIA L4", "")), "row 0: device is missing"),
        ((HEAD, ROW, ROW.replace(",64,", ",many,")), "row 1: m is 'many'; expected a number"),
        ((HEAD, ROW.replace("3.5", "fast")), "row 0: duration_us is 'fast'; expected a number"),
        ((HEAD, ROW.replace("3.5", "-1")), "row 0: duration_us is -1; expected above 0"),
        ((HEAD, ROW.replace("3.5", "inf")), "row 0: duration_us is inf; expected above 0"),
        ((HEAD, ROW, ROW.replace(",64,", ",,")), "linear (row 1): m is missing"),
        ((HEAD, ROW.replace(",64,", ",0,")), "linear (row 0): m is 0; expected at least 1"),
        ((HEAD, ROW.replace(",64,", ",1e99,")), "m is 1e+99; expected at most 1e+15"),
        ((HEAD, ROW.replace("fp16", "fp3")), "unknown dtype 'fp3'"),
        ((HEAD, ROW.replace("cuda_graph_replay", "guess")), "unknown timing 'guess'"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(ModelError, match=rf"t\.csv: .*{re.escape(message)}"):
        read_table(table(tmp_path, *lines))


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n\0\0", b"PAR1 cut"])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_what_is_no_table_is_named(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=rf"t\{suffix}: "):
        read_table(path)

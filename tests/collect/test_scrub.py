"""What identifies a person or a machine leaves a trace; nothing else changes."""

import gzip
import json
from pathlib import Path

import pytest

from perfmodel.collect.capture import names_of_this_machine, scrub_file, scrub_text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("/home/ada/runs/trace.json", "trace.json"),
        ("C:/Users/ada/model.py(12)", "model.py(12)"),
        (r"\/home\/ada\/x.py", "x.py"),
        ("at /opt/venv/lib/site.py: forward", "at site.py: forward"),
        ("node-17", "host"),
        ("node-17.cluster", "host.cluster"),
        ("ada@node-17", "user@host"),
        ("10.1.22.3:29500", "0.0.0.0:29500"),
    ],
)
def test_paths_names_and_addresses_go(before: str, after: str) -> None:
    text = scrub_text(f'{{"a": "{before}"}}', hosts={"node-17"}, users={"ada"})
    assert text == f'{{"a": "{after}"}}'


@pytest.mark.parametrize(
    "kept",
    [
        "aten::add",
        "ms/step",
        "a/b",
        "Adagrad",
        "127.0.0.1",
        "1.1.1-chakra.0.0.4",
        "root",
        "[a]_[b/c]",
    ],
)
def test_ordinary_words_stay(kept: str) -> None:
    text = json.dumps({"name": kept})
    assert scrub_text(text, hosts={"host"}, users={"root", "ada"}) == text


def test_numbers_keep_every_digit() -> None:
    text = '{"ts": 4312374198310.426, "dur": 0.10, "rank": 17}'
    assert scrub_text(text, hosts={"17"}, users=()) == text


def test_a_file_is_scrubbed_and_packed_the_same_each_time(tmp_path: Path) -> None:
    host = max(names_of_this_machine()[0], key=len)
    source = tmp_path / "raw.json"
    source.write_text(json.dumps({"traceName": str(tmp_path / "x" / "raw.json"), "host": host}))
    first, second = tmp_path / "a.gz", tmp_path / "b.gz"
    assert scrub_file(source, first) == first.stat().st_size
    scrub_file(source, second)
    assert first.read_bytes() == second.read_bytes()
    assert json.loads(gzip.decompress(first.read_bytes()))["traceName"] == "raw.json"
    assert str(tmp_path).encode() not in gzip.decompress(first.read_bytes())

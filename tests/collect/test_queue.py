"""The commands of docs/gpu-queue.md are ones that the collector takes, within limits."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from perfmodel.collect.__main__ import build_parser

PAGE = Path(__file__).parents[2] / "docs" / "gpu-queue.md"
LIMIT_S = 540
STUBS = """
timeout() { echo "timeout $1" >> "$OUT/limits"; shift; "$@"; }
python() { printf '%s\\n' "$*" >> "$OUT/commands"; }
tar() { :; }
"""


def entries() -> list[str]:
    """The blocks of bash that stand below a numbered heading."""
    if not PAGE.exists():
        return []
    parts = re.split(r"^## (?=\d+\.)", PAGE.read_text(), flags=re.M)[1:]
    return [
        found.group(1) for part in parts if (found := re.search(r"```bash\n(.*?)```", part, re.S))
    ]


@pytest.mark.parametrize("entry", entries())
@pytest.mark.parametrize("settings", [{}, {"DEVICE": "cpu", "MINUTES": "0.2", "GRAPH": ""}])
def test_an_entry_is_understood(entry: str, settings: dict[str, str], tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "OUT": str(tmp_path), **settings}
    subprocess.run(["bash", "-c", STUBS + entry], cwd=tmp_path, env=environment, check=True)
    commands = (tmp_path / "commands").read_text().splitlines()
    for command in commands:
        module, *words = shlex.split(command)[1:]
        assert module == "perfmodel.collect"
        parsed = build_parser().parse_args(words)
        assert parsed.device == settings.get("DEVICE", "cuda")
        assert getattr(parsed, "minutes", 0) * 60 < LIMIT_S
    limits = [float(line.split()[1]) for line in (tmp_path / "limits").read_text().splitlines()]
    assert len(limits) == len(commands)
    assert all(limit <= LIMIT_S for limit in limits)


def test_there_are_entries() -> None:
    if not PAGE.exists():
        pytest.skip("docs/ is in a checkout only, and this is none")
    assert len(entries()) == 11

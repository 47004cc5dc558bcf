"""Folders of many ranks and long documents: time, memory, what two workers gain, what is refused.

    python benchmarks/load.py [--ranks 4 16 64] [--events 100000] [--mb 1500] [--folder DIR]

Each rank's file repeats the steps of a real trace of two ranks, and says that it is one of so many;
collectives meet over all of them. Every measurement is a process of its own. Other processes share
the machine, so processor seconds count; wall seconds only say what workers gain beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a file

from benchmarks.long_traces import DEMO, MB, repeated

SOURCE = DEMO.parents[2] / "traces" / "cpu_dlrm_2rank" / "dlrm_rank0_kineto.json.gz"
TITLES = ("input", "GB", "million events", "what", "CPU s", "CPU s per GB", "wall s", "peak GB")
FEW_MB = 10.0
LIMIT_S = 300
_READ = "from perfmodel.trace import read; read({path!r}, workers={workers})"
_KB_PER_GB = 1e6 if sys.platform != "darwin" else 1e9


@dataclass(frozen=True)
class Run:
    """One process: what it took, with its children; `peak_gb` is that of the largest of them."""

    cpu_s: float
    wall_s: float
    peak_gb: float
    errors: str


def run(words: Sequence[str], limit_s: float = LIMIT_S) -> Run:
    """A process to its end; one that takes longer than the limit is ended and says so."""
    began_s = time.monotonic()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            ["timeout", str(limit_s), *words], stdout=subprocess.DEVNULL, stderr=errors
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
    told = f"exit {process.returncode}: {lines[-1] if lines else ''}" if process.returncode else ""
    cpu_s, peak_gb = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / _KB_PER_GB
    return Run(cpu_s, time.monotonic() - began_s, peak_gb, told)


def ranks_folder(folder: Path, ranks: int, events: int) -> int:
    """A file for each of so many ranks, with about so many events: how many they are in all."""
    one = folder / "one.json"
    few, _ = repeated(SOURCE, FEW_MB, one)
    count, _ = repeated(SOURCE, events / few * FEW_MB, one)
    text = one.read_text()
    one.unlink()
    head, _, rest = text.partition('"traceEvents"')
    about = json.loads(head.rstrip().rstrip(",") + "}")
    for rank in range(ranks):
        info = {"backend": "gloo", "rank": rank, "world_size": ranks}
        own = json.dumps(about | {"distributedInfo": info})[:-1]
        (folder / f"rank{rank}.json").write_text(f'{own}, "traceEvents"{rest}')
    return count * ranks


def verb(*words: str) -> list[str]:
    return [sys.executable, "-m", "perfmodel", *words]


def read_with(path: Path, workers: int) -> list[str]:
    return [sys.executable, "-c", _READ.format(path=str(path), workers=workers)]


def folder_rows(folder: Path, ranks: int, events: int) -> Iterator[tuple[object, ...]]:
    count = ranks_folder(folder, ranks, events)
    size = sum(path.stat().st_size for path in folder.iterdir())
    for name, words in (
        ("read, 1 worker", read_with(folder, 1)),
        ("read, 2 workers", read_with(folder, 2)),
        ("breakdown", verb("breakdown", str(folder), "--format", "csv")),
    ):
        yield (f"{ranks} ranks", size, count, name, run(words))


def document_rows(folder: Path, mb: float) -> Iterator[tuple[object, ...]]:
    path = folder / "long.json"
    count, _ = repeated(DEMO, mb, path)
    size = path.stat().st_size
    limit = str(size / 1e9 / 2)
    for name, words in (
        ("breakdown", verb("breakdown", str(path), "--format", "csv")),
        ("breakdown --steps 3:8", verb("breakdown", str(path), "--steps", "3:8")),
        ("breakdown --max-memory of half", verb("breakdown", str(path), "--max-memory", limit)),
    ):
        yield ("one document", size, count, name, run(words))


def shown(row: tuple[object, ...]) -> str:
    """A line of the table."""
    name, size, count, what, found = row
    assert isinstance(size, int)
    assert isinstance(count, int)
    assert isinstance(found, Run)
    cells = (
        *(name, f"{size / 1e9:.2f}", f"{count / 1e6:.2f}", what, f"{found.cpu_s:.1f}"),
        *(f"{found.cpu_s / size * 1e9:.1f}", f"{found.wall_s:.1f}", f"{found.peak_gb:.2f}"),
    )
    return f"| {' | '.join(map(str, cells))} |" + (f" {found.errors}" if found.errors else "")


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--ranks", type=int, nargs="*", default=[4, 16, 64])
    options.add_argument("--events", type=int, default=100_000, help="of each rank")
    options.add_argument("--mb", type=float, nargs="*", default=[1500])
    options.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    given = options.parse_args()
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} as this began\n")
    print(f"| {' | '.join(TITLES)} |\n|{'---|' * len(TITLES)}", flush=True)
    makers = [(folder_rows, (ranks, given.events)) for ranks in given.ranks]
    for make, settings in [*makers, *((document_rows, (mb,)) for mb in given.mb)]:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            for row in make(Path(folder), *settings):
                print(shown(row), flush=True)
    print(f"\nload {os.getloadavg()[0]:.1f} at the end; a MB is {MB} bytes")


if __name__ == "__main__":
    main()

"""SIGKILL at random points of the verbs that write: old files stay, new ones are whole.

Long runs: `python tests/fuzz/kills.py --kills 100`.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.file_seeds import LOG, SWEEP, step_rows
from fuzz.seeds import DEMO, ROOT

OLD = b"what stood here before\n"
TRACE = str(DEMO / "dlrm_cpu_kineto.json.gz")
RANKS = str(ROOT / "traces" / "cpu_dlrm_2rank")
Files = dict[str, bytes]


DESIGNS = ("--designs", "cpu_only,gpu_only", "-o", "{out}", "--format", "json")


@dataclass(frozen=True)
class Writing:
    """A verb that writes `{out}`: a file that stood there before, or a folder that did not."""

    name: str
    words: tuple[str, ...]
    is_folder: bool = False


WRITING = (
    Writing("predict", ("predict", TRACE, "-o", "{out}", "--format", "json")),
    Writing("predict --figure", ("predict", TRACE, "--figure", "{out}.svg")),
    Writing("breakdown", ("breakdown", TRACE, "-o", "{out}", "--format", "csv")),
    Writing("export", ("export", TRACE, "-o", "{out}.json")),
    Writing("report", ("report", TRACE, "-o", "{out}.html")),
    Writing("check --update", ("check", "--baseline", "{out}", "--update", RANKS)),
    Writing("fit overheads", ("fit", "overheads", RANKS, "-o", "{out}")),
    Writing(
        "fit device",
        ("fit", "device", "--data", "{in}/cpu.csv", "--hardware", "epyc-7742", "-o", "{out}"),
    ),
    Writing(
        "fit collectives",
        ("fit", "collectives", "--log", "{in}/log", "--hardware", "dgx-a100-40gb", "-o", "{out}"),
    ),
    Writing(
        "fit kernels",
        ("fit", "kernels", "--data", "{in}/kernels.csv", "-o", "{out}"),
        is_folder=True,
    ),
    Writing("sweep", ("sweep", "{in}/sweep.toml", "-o", "{out}.csv")),
    Writing(
        "compare",
        ("compare", "--workload", "criteo-kaggle", "--hardware", "dgx-a100-40gb", *DESIGNS),
    ),
)


def inputs(folder: Path) -> Path:
    """What the verbs read beside the traces."""
    (folder / "cpu.csv").write_bytes(step_rows())
    (folder / "log").write_text(LOG)
    (folder / "sweep.toml").write_text(SWEEP)
    (folder / "kernels.csv").write_bytes(_kernel_table())
    return folder


def _kernel_table() -> bytes:
    """Enough kernels for a fit of trees to take a while; the times are made up."""
    at = random.Random(3)
    lines = ["op,device,dtype,direction,timing,b,m,n,k,duration_us"]
    for name in ("Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-40GB"):
        for _ in range(200):
            m, n, k = (1 << at.randrange(6, 12) for _ in range(3))
            us = 5 + m * n * k / 5e6 * at.uniform(0.9, 1.1)
            lines.append(f"linear,{name},fp32,fwd,event_single_call,1,{m},{n},{k},{us:.2f}")
    return "\n".join(lines).encode()


def command(writing: Writing, given: Path, out: Path) -> list[str]:
    """The command line."""
    words = [w.replace("{out}", str(out)).replace("{in}", str(given)) for w in writing.words]
    return [sys.executable, "-m", "perfmodel", *words]


def target(writing: Writing, out: Path) -> Path:
    """What the command writes."""
    word = next(word for word in writing.words if word.startswith("{out}"))
    return Path(word.replace("{out}", str(out)))


def content(path: Path) -> Files:
    """The files at `path` by name; those that a killed writer left unfinished are hidden."""
    if path.is_file():
        return {"": path.read_bytes()}
    files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else []
    return {
        str(each.relative_to(path)): each.read_bytes()
        for each in files
        if not any(part.startswith(".") for part in each.relative_to(path).parts)
    }


@dataclass(frozen=True)
class Undisturbed:
    """What a verb writes when nobody kills it, and how long that takes."""

    files: Files
    wall_s: float


def undisturbed(writing: Writing, given: Path) -> Undisturbed:
    """Raises `CalledProcessError` where the verb fails."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        began = time.monotonic()
        subprocess.run(command(writing, given, out), check=True, capture_output=True, cwd=ROOT)
        return Undisturbed(content(target(writing, out)), time.monotonic() - began)


def strike(writing: Writing, given: Path, whole: Undisturbed, after_s: float) -> tuple[bool, str]:
    """Kill the verb after a while: (was it killed, what was damaged or lost)."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        path = target(writing, out)
        old: Files = {}
        if not writing.is_folder:
            before = whole.files[""] if writing.name == "check --update" else OLD
            path.write_bytes(before)
            old = {"": before}
        neighbour = Path(folder) / "neighbour"
        neighbour.write_bytes(OLD)
        words = command(writing, given, out)
        with subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT
        ) as process:
            try:
                process.wait(after_s)
                was_killed = False
            except subprocess.TimeoutExpired:
                process.kill()
                was_killed = True
        found = content(path)
        problem = _problem(found, old, whole.files)
        if neighbour.read_bytes() != OLD:
            problem = "a file beside the output was changed"
        shutil.rmtree(out, ignore_errors=True)
        return was_killed, problem


def _problem(found: Files, old: Files, new: Files) -> str:
    if found in (old, new):
        return ""
    return f"neither old nor new: { {name: len(value) for name, value in found.items()} }"


def strike_all(writings: Sequence[Writing], kills: int, seed: int) -> tuple[int, list[str]]:
    """`kills` at random points, of each verb in turn: (how many hit, what was damaged)."""
    at = random.Random(seed)
    hits, problems = 0, []
    with tempfile.TemporaryDirectory() as folder:
        given = inputs(Path(folder))
        whole = {each.name: undisturbed(each, given) for each in writings}
        number = 0
        while hits < kills:
            writing = writings[number % len(writings)]
            number += 1
            known = whole[writing.name]
            hit, problem = strike(writing, given, known, known.wall_s * at.uniform(0.2, 1.05))
            hits += hit
            if problem:
                problems.append(f"{writing.name}: {problem}")
    return hits, problems


def main() -> int:
    """Exit status 1 where a file was damaged or lost."""
    options = argparse.ArgumentParser(prog="tests/fuzz/kills.py", description=__doc__)
    options.add_argument("--kills", type=int, default=100)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    began = time.monotonic()
    hits, problems = strike_all(WRITING, given.kills, given.seed)
    wall_s = time.monotonic() - began
    print(
        f"{hits} kills of {len(WRITING)} verbs in {wall_s:.0f} s: {len(problems)} damaged or lost"
    )
    print("\n".join(problems))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())

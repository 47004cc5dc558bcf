"""Damage files one after the other, read each, and count how that ended."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.damage import Damaged
from fuzz.guided import Corpus, Place, watched
from fuzz.kineto import kineto_damage
from fuzz.outcome import PROCESS_HANG_S, Outcome, outcome_of
from fuzz.readers import Kind, read_trace
from fuzz.seeds import ROOT, trace_seeds

TRACES = Kind(
    "trace",
    ".json",
    trace_seeds,
    (kineto_damage,),
    read_trace,
    (("breakdown", "{}"), ("predict", "{}"), ("report", "{}", "-o", "{out}/page.html")),
)


@dataclass
class Tally:
    """Executions by (class of damage, how they ended), the slowest one, and what was a fault."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    wall_s: float = 0.0

    def add(self, kind: str, damaged: Damaged, outcome: Outcome, keep: Path | None) -> None:
        """Count one; a fault's file is kept in the folder `keep`."""
        self.counts[damaged.damage, outcome.how] += 1
        self.slowest_s = max(self.slowest_s, outcome.wall_s)
        if outcome.is_fault(damaged.damage):
            told = f"{kind}: {damaged.damage} ({damaged.how[:80]}): {outcome.how} {outcome.detail}"
            self.faults.append(told)
            if keep is not None:
                (keep / f"{len(self.faults):04d}-{kind.replace(' ', '-')}").write_bytes(
                    damaged.content
                )

    def lines(self) -> list[str]:
        """What to print."""
        total = sum(self.counts.values())
        rows = [f"  {damage:10} {how:10} {n:6}" for (damage, how), n in sorted(self.counts.items())]
        return [
            f"{total} executions in {self.wall_s:.0f} s, slowest {self.slowest_s:.2f} s, "
            f"{len(self.faults)} faults",
            *rows,
            *(f"  FAULT {fault[:300]}" for fault in self.faults[:50]),
        ]


def fuzz(
    kinds: tuple[Kind, ...],
    runs: int,
    seed: int,
    *,
    commands: bool = False,
    keep: Path | None = None,
    corpus: Corpus | None = None,
) -> Tally:
    """`runs` damaged files, of each kind in turn, read in process or through the command line.

    With a `corpus`, files in process that reach something new are damaged further.
    """
    tally = Tally()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(runs):
            kind = kinds[number % len(kinds)]
            at = random.Random(f"{seed}/{kind.name}/{number}")
            damaged = corpus.damaged(kind, at) if corpus else kind.damaged(at)
            path = Path(folder) / f"damaged{kind.suffix}"
            path.write_bytes(damaged.content)
            if commands:
                outcome = _command(at.choice(kind.commands), path, Path(folder))
            elif corpus is None:
                outcome = outcome_of(kind.read, path)
            else:
                places: set[Place] = set()
                with watched(places):
                    outcome = outcome_of(kind.read, path)
                corpus.learn(kind, damaged, outcome, places)
            tally.add(kind.name, damaged, outcome, keep)
    tally.wall_s = time.monotonic() - began
    return tally


def _command(words: tuple[str, ...], path: Path, folder: Path) -> Outcome:
    """One command line on the file: refused is exit status 2 and one line on standard error.

    Whatever it writes goes below a folder of its own; a new file elsewhere is a fault.
    """
    out = Path(tempfile.mkdtemp(dir=folder))
    before = set(folder.iterdir())
    words = tuple(word.replace("{}", str(path)).replace("{out}", str(out)) for word in words)
    began = time.monotonic()
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "perfmodel", *words],
            capture_output=True,
            text=True,
            timeout=PROCESS_HANG_S,
            cwd=ROOT,
        )
    except subprocess.TimeoutExpired:
        return Outcome("hang", " ".join(words), PROCESS_HANG_S)
    wall_s = time.monotonic() - began
    told = ran.stderr.strip()
    how = {0: "clean", 1: "refused", 2: "refused"}.get(ran.returncode, "traceback")
    if "Traceback" in ran.stdout + told or "internal error" in told:
        how = "traceback"
    elif set(folder.iterdir()) != before:
        how, told = "traceback", "wrote beside its output"
    elif ran.returncode == 2 and (told.count("\n") or not told):
        how = "multiline"
    elif how == "clean" and "warning" in (ran.stdout + told).lower():
        how = "warned"
    elif how == "clean" and words[0] == "report":
        how = "clean" if "no warnings" in (out / "page.html").read_text() else "warned"
    return Outcome(how, f"{' '.join(words[:2])}: {told[-300:]}", wall_s)

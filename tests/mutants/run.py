"""Mutants of real traces, each answer held against that of the undamaged one."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import msgspec
import mutants.clocks
import mutants.presence
import mutants.values  # noqa: F401
from mutants.answer import TOLERANCE, Answer, answer
from mutants.laws import broken, broken_more
from mutants.parts import KINDS
from mutants.said import is_named
from mutants.seeds import Seed, seeds

VERDICTS = ("equal", "warned", "warned otherwise", "refused", "differs", "crashed")
BYTES = "bytes cut off"
_TRIES = 50


@dataclass(frozen=True)
class Verdict:
    """How one mutant ended."""

    kind: str
    seed: str
    number: int
    how: str
    laws: tuple[str, ...]
    """Those that it breaks; without any, it may be another recording."""
    detail: str

    @property
    def is_fault(self) -> bool:
        """A crash; or another answer, without a word, to what no sound profiler writes."""
        return self.how == "crashed" or (self.how == "differs" and bool(self.laws))

    @property
    def is_other(self) -> bool:
        """Another answer, to what may be another recording."""
        return self.how == "differs" and not self.laws


@dataclass
class Tally:
    """Verdicts of one run."""

    verdicts: list[Verdict] = field(default_factory=list)

    def faults(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.is_fault]

    def table(self, *, lawful: bool) -> list[str]:
        """A line per kind in Markdown: how many ended how."""
        counted = Counter((v.kind, v.how) for v in self.verdicts if bool(v.laws) is not lawful)
        kinds = sorted({kind for kind, _ in counted})
        last = "another answer" if lawful else "**silently different**"
        lines = [
            f"| kind | mutants | equal | warned | of something else | refused | {last} | crashed |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for kind in kinds:
            counts = [counted[kind, how] for how in VERDICTS]
            lines.append(f"| {kind} | {sum(counts)} | {' | '.join(map(str, counts))} |")
        sums = [sum(counted[kind, how] for kind in kinds) for how in VERDICTS]
        lines.append(f"| all | {sum(sums)} | {' | '.join(map(str, sums))} |")
        return lines


@cache
def _undamaged(seed: Seed) -> tuple[Answer, Counter[str]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_bytes(seed.content)
        return answer(path), broken(msgspec.json.decode(seed.content)["traceEvents"])


def run(count: int, seed: int, among: tuple[Seed, ...] = (), keep: Path | None = None) -> Tally:
    """`count` mutants of each kind in turn, of traces chosen by `seed`; faults stay in `keep`."""
    names = [*sorted(KINDS), BYTES]
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        for number in range(count):
            name = names[number % len(names)]
            at = random.Random(f"{seed}/{name}/{number}")
            verdict = _one(name, number, at, path, among or seeds())
            tally.verdicts.append(verdict)
            if keep is not None and verdict.is_fault:
                target = keep / f"{number:05d}-{name.replace(' ', '-')}.json"
                target.write_bytes(path.read_bytes())
    return tally


def _one(name: str, number: int, at: random.Random, path: Path, among: tuple[Seed, ...]) -> Verdict:
    for _ in range(_TRIES):
        seed = at.choice(among)
        original, of_seed = _undamaged(seed)
        if name == BYTES:
            path.write_bytes(seed.content[: at.randrange(len(seed.content))])
            laws = ["JSON that ends"]
            break
        document = msgspec.json.decode(seed.content)
        events = KINDS[name](document["traceEvents"], at)
        if events is not None:
            laws = broken_more(events, of_seed)
            path.write_bytes(msgspec.json.encode(document | {"traceEvents": events}))
            break
    else:
        return Verdict(name, "", number, "equal", (), "no trace has what it changes")
    found = answer(path)
    how, detail = _how(name, original, found)
    return Verdict(name, seed.name, number, how, tuple(laws), detail)


def _how(kind: str, original: Answer, found: Answer) -> tuple[str, str]:
    if found.crashed:
        return "crashed", found.crashed
    if found.refused:
        return "refused", found.refused
    said = original.new_warnings(found)
    if said:
        return ("warned" if is_named(kind, said) else "warned otherwise"), " // ".join(said)
    change = original.difference(found)
    return ("equal" if change <= TOLERANCE else "differs"), f"{change:.1%} off"

"""Mutants of real traces: `python tests/mutants --traces 2000`.

Each is broken down, and its answer must be that of the undamaged trace within 1 %, or come with a
warning that the undamaged one does not have, or be refused in one line.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutants.run import run
from mutants.seeds import seeds


def main() -> int:
    """Exit status 1 where there was a fault, or where nothing was warned of or refused."""
    options = argparse.ArgumentParser(prog="tests/mutants", description=__doc__)
    options.add_argument("--traces", type=int, default=2000, help="mutants")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument(
        "--show",
        metavar="KIND",
        help="each mutant of this kind or end; `legal`: all with another, legal answer",
    )
    options.add_argument("--keep", type=Path, help="folder for the mutants that were faults")
    given = options.parse_args()
    if given.keep:
        given.keep.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    tally = run(given.traces, given.seed, keep=given.keep)
    taken_s = time.monotonic() - began
    print(f"{given.traces} mutants of {len(seeds())} traces, seed {given.seed}, {taken_s:.0f} s\n")
    print("Damaged: no sound profiler writes these\n")
    print("\n".join(tally.table(lawful=False)))
    print("\nLegal other recordings: any answer is right\n")
    print("\n".join(tally.table(lawful=True)))
    for verdict in tally.faults():
        print(f"FAULT {verdict.number} {verdict.kind} ({verdict.seed}): {verdict.detail[:200]}")
        print("   ", "; ".join(verdict.laws))
    for verdict in tally.verdicts:
        if given.show in (verdict.kind, verdict.how, "legal" if verdict.is_other else ""):
            print(verdict.number, verdict.kind, verdict.seed, verdict.how, verdict.detail[:400])
    noticed = {"equal", "warned", "refused"} <= {verdict.how for verdict in tally.verdicts}
    if not noticed:
        print("none was equal, none warned of or none refused: more --traces tell")
    return int(bool(tally.faults()) or not noticed)


sys.exit(main())

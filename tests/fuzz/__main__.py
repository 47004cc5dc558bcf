"""Long runs: `python tests/fuzz --traces 10000 --files 2000 --commands 500`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[2]))  # `benchmarks` is there

from fuzz.guided import Corpus
from fuzz.kinds import KINDS
from fuzz.run import TRACES, fuzz


def main() -> int:
    """Exit status 1 where there was a fault, or where nothing was refused."""
    options = argparse.ArgumentParser(prog="tests/fuzz", description=__doc__)
    options.add_argument("--traces", type=int, default=1000, help="damaged traces, in process")
    options.add_argument("--files", type=int, default=500, help="other damaged files, in process")
    options.add_argument("--commands", type=int, default=0, help="through the command line")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument(
        "--guided", action="store_true", help="go on from files that reached something new"
    )
    options.add_argument("--keep", type=Path, help="folder for the files that were faults")
    given = options.parse_args()
    if given.keep:
        given.keep.mkdir(parents=True, exist_ok=True)
    with_commands = (*[TRACES] * 8, *(kind for kind in KINDS if kind.commands))
    faults = 0
    for name, kinds, runs, commands in (
        ("traces", (TRACES,), given.traces, False),
        ("other files", KINDS, given.files, False),
        ("command lines", with_commands, given.commands, True),
    ):
        if runs:
            corpus = Corpus() if given.guided and not commands else None
            found = fuzz(kinds, runs, given.seed, commands=commands, keep=given.keep, corpus=corpus)
            told = [*found.lines(), *(corpus.lines() if corpus else [])]
            print(f"{name}: seed {given.seed},", "\n".join(told), flush=True)
            faults += len(found.faults)
            if not any(how == "refused" and count for (_, how), count in found.counts.items()):
                print("none was refused: more runs tell")
                faults += 1
    return int(faults > 0)


sys.exit(main())

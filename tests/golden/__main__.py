"""Everything stored that a change of predictions changes: what differs, or written anew.

python tests/golden [KIND ...]            exit status 1 where something differs
python tests/golden --update [KIND ...]   writes it, then shows what changed
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from golden.answers import ANSWERS, ROOT, STORED, store

PYTHON = (sys.executable,)
CHECK = (*PYTHON, "-m", "perfmodel", "check", "--baseline", "traces/baseline.json")
DOCS = (*PYTHON, "-m", "pytest", "-q", "-m", "slow or not slow", "tests/docs")
HERE = str(Path(__file__).parent)
DIFF_LINES = 40


@dataclass(frozen=True)
class Kind:
    """What is stored, the command that compares it and the one that writes it."""

    files: tuple[str, ...]
    compare: tuple[str, ...]
    update: tuple[str, ...]


KINDS = {
    "answers": Kind(
        ("tests/golden/stored",),
        (*PYTHON, "-m", "pytest", "-q", "tests/golden"),
        (*PYTHON, HERE, "--store"),
    ),
    "baseline": Kind(("traces/baseline.json",), CHECK, (*CHECK, "--update")),
    "pages": Kind(("README.md", "docs"), DOCS, (*PYTHON, "tests/docs/pages.py")),
    "notebooks": Kind(
        ("notebooks",),
        (*PYTHON, "notebooks/execute.py", "--check"),
        (*PYTHON, "notebooks/execute.py"),
    ),
}


def changed(files: tuple[str, ...]) -> None:
    """Print what git sees changed: a summary, and the first lines."""
    for options in (["--stat"], ["--unified=0"]):
        diff = ["git", "--no-pager", "diff", *options, "--", *files]
        lines = subprocess.run(diff, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
        print("\n".join(lines[:DIFF_LINES]))
        if len(lines) > DIFF_LINES:
            print(f"... and {len(lines) - DIFF_LINES} lines")


def main() -> int:
    """Exit status 1 where something differs, or could not be written."""
    options = argparse.ArgumentParser(
        prog="tests/golden", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    options.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    options.add_argument("--update", action="store_true")
    options.add_argument("--store", action="store_true", help="write the answers of the verbs only")
    given = options.parse_args()
    if unknown := set(given.kinds) - set(KINDS):
        options.error(f"{', '.join(unknown)}: expected {', '.join(KINDS)}")
    if given.store:
        for name in ANSWERS:
            store(name)
        for path in STORED.glob("*.json"):
            if path.stem not in ANSWERS:
                path.unlink()
        return 0
    failed = []
    for name in given.kinds or KINDS:
        print(f"== {name}", flush=True)
        kind = KINDS[name]
        done = subprocess.run(kind.update if given.update else kind.compare, cwd=ROOT)
        if done.returncode:
            failed.append(name)
        if given.update:
            changed(kind.files)
    print(f"failed: {', '.join(failed)}" if failed else "done")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())

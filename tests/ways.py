"""Which files and rooms the program enters on its main ways: `python tests/ways.py`.

A call from one file of the package to another counts once; it enters a room where the caller stands
in another. A way that goes back and forth between rooms enters one room by many such calls. What
runs while a module is imported (decorators, registrations, comprehensions) does not count.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from inspect import CO_OPTIMIZED
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pandas as pd

import perfmodel

PACKAGE = Path(perfmodel.__file__).parent
DEMO = next((PACKAGE / "demo").glob("*.gz"))


def _duration() -> object:
    rows = pd.DataFrame([{"op": "linear", "dtype": "fp16", "m": 4096, "n": 1024, "k": 1024}])
    return perfmodel.durations(rows, "h100-sxm")


def _breakdown() -> object:
    return perfmodel.breakdown(perfmodel.read(DEMO))


def _step() -> object:
    return perfmodel.predict("dlrm-dcnv2", hardware="dgx-h100")


def _compare() -> object:
    return perfmodel.compare("dlrm-dcnv2", hardware="dgx-h100", designs=["default", "neo"])


WAYS: dict[str, Callable[[], object]] = {
    "shape -> duration": _duration,
    "trace -> breakdown": _breakdown,
    "configuration -> step": _step,
    "two designs": _compare,
}


def calls_of(way: Callable[[], object]) -> list[tuple[str, str]]:
    """Distinct calls (caller's file, called file) while `way` runs, in the order of the first."""
    names: dict[CodeType, str | None] = {}
    calls: dict[tuple[str, str], None] = {}

    importing = 0  # bodies of the package's modules on the stack

    def is_module(code: CodeType) -> bool:
        return code.co_name == "<module>" and Path(code.co_filename).is_relative_to(PACKAGE)

    def name_of(code: CodeType) -> str | None:
        if code not in names:
            path = Path(code.co_filename)
            is_function = bool(code.co_flags & CO_OPTIMIZED)  # bodies of classes are not
            inside = path.is_relative_to(PACKAGE) and is_function
            names[code] = str(path.relative_to(PACKAGE)) if inside else None
        return names[code]

    def seen(frame: FrameType, event: str, _: Any) -> None:
        nonlocal importing
        if event in ("call", "return") and is_module(frame.f_code):
            importing += 1 if event == "call" else -1
        if event == "call" and not importing and (called := name_of(frame.f_code)):
            caller = frame.f_back
            while caller and not name_of(caller.f_code):
                caller = caller.f_back
            by = name_of(caller.f_code) if caller else None
            if by != called:
                calls.setdefault((by or "", called))

    sys.setprofile(seen)
    try:
        way()
    finally:
        sys.setprofile(None)
    return list(calls)


def room_of(file: str) -> str:
    """The package that a file is in."""
    return file.split("/")[0].removesuffix(".py")


def entries(files: list[str]) -> Counter[str]:
    """How often each room is entered when files are visited in this order."""
    rooms = [room_of(file) for file in files]
    return Counter(room for before, room in pairwise(["", *rooms]) if room != before)


def main() -> None:
    if len(sys.argv) == 1:  # a process for each: what the first has cached the second does not call
        print(f"{'way':24} {'files':>5} {'calls':>5}  rooms, as files are first entered")
        for name in WAYS:
            subprocess.run([sys.executable, __file__, name], check=True)
        return
    name = sys.argv[1]
    calls = calls_of(WAYS[name])
    files = list(dict.fromkeys(to for _, to in calls))
    most = ", ".join(f"{room} {count}" for room, count in entries(files).most_common())
    print(f"{name:24} {len(files):5} {len(calls):5}  {most}")


if __name__ == "__main__":
    main()

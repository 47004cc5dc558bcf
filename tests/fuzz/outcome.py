"""What one reader made of one damaged file."""

from __future__ import annotations

import json
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alarm import Late, limit

from perfmodel.errors import PerfmodelError

HANG_S = 10.0
PROCESS_HANG_S = 60.0
"""Of a whole process, which on a busy machine takes ten times its processor seconds."""
BROKEN = ("syntax", "type", "reference", "invariant")
"""Classes of damage that no reader may answer without an error or a warning."""
VALUE = "value"
"""Damage that may leave a valid document with another value: any answer is fine."""
Reader = Callable[[Path], tuple[Any, list[str]]]
"""Reads a file and works with it: (answer, warnings)."""


@dataclass(frozen=True)
class Outcome:
    """`how`: refused, warned, clean, traceback, hang, not_json or multiline (an error message)."""

    how: str
    detail: str = ""
    wall_s: float = 0.0

    def is_fault(self, damage: str) -> bool:
        """Whether damage of this class may not end so."""
        if self.how in ("refused", "warned"):
            return False
        return self.how != "clean" or damage in BROKEN


def outcome_of(read: Reader, path: Path, limit_s: float = HANG_S) -> Outcome:
    """Read `path`; NumPy's and pandas' warnings count as tracebacks: a number went wrong."""
    began = time.monotonic()
    how, detail = "clean", ""
    try:
        with limit(limit_s), warnings.catch_warnings():
            warnings.simplefilter("error")
            answer, told = read(path)
        how, detail = ("warned", told[0]) if told else ("clean", "")
        json.dumps(answer, allow_nan=False)
    except PerfmodelError as error:
        how, detail = ("refused" if "\n" not in str(error) else "multiline"), str(error)
    except ValueError as error:
        how = "not_json" if "JSON compliant" in str(error) else "traceback"
        detail = _place(error)
    except Late:
        how = "hang"
    except Exception as error:
        how, detail = "traceback", _place(error)
    wall_s = time.monotonic() - began
    return Outcome("hang" if wall_s > limit_s else how, detail, wall_s)


def _place(error: BaseException) -> str:
    """Type, message and the last frames inside the package."""
    frames = [
        f"{Path(f.filename).name}:{f.lineno}"
        for f in traceback.extract_tb(error.__traceback__)
        if "perfmodel" in f.filename
    ]
    return f"{type(error).__name__}: {error} [{' '.join(frames[-4:])}]".replace("\n", " ")

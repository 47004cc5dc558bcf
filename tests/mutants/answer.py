"""What `perfmodel breakdown` answers to a trace, and how far two answers are apart."""

from __future__ import annotations

import re
import time
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from alarm import Late, limit

from perfmodel.errors import PerfmodelError
from perfmodel.prediction.breakdown.job import breakdown

LIMIT_S = 20.0
TOLERANCE = 0.01
_NUMBER = re.compile(r"'[^']*'|[-+]?\d[\d.]*(e[-+]?\d+)?|\(.*?\)|^.*?\.json: ")


@dataclass(frozen=True)
class Answer:
    """Figures by name in microseconds per step, or what was said instead of them."""

    figures_us: Mapping[str, float]
    warnings: tuple[str, ...] = ()
    refused: str = ""
    crashed: str = ""

    def difference(self, other: Answer) -> float:
        """The largest change of a figure, as a share of it; of idle causes, of the step."""
        names = {*self.figures_us, *other.figures_us}
        return max((_change(self.figures_us, other.figures_us, name) for name in names), default=0)

    def new_warnings(self, other: Answer) -> list[str]:
        """What `other` says that this one does not, whatever the numbers in it."""
        known = {_words(text) for text in self.warnings}
        return [text for text in other.warnings if _words(text) not in known]


def _words(text: str) -> str:
    return _NUMBER.sub("#", text)


def _change(one: Mapping[str, float], other: Mapping[str, float], name: str) -> float:
    a_us, b_us = one.get(name, 0.0), other.get(name, 0.0)
    whole_us = a_us if name in ("step", "gpu active") else one["step"]
    return abs(b_us - a_us) / max(abs(whole_us), 1e-3)


def answer(path: Path, limit_s: float = LIMIT_S) -> Answer:
    """Break the trace at `path` down; a warning of NumPy counts as a crash."""
    began = time.monotonic()
    try:
        with limit(limit_s), warnings.catch_warnings():
            warnings.simplefilter("error")
            found = breakdown(path)
            rank = found.ranks[0]
            figures_us = {"step": rank.summary.step_us, "gpu active": rank.summary.gpu_active_us}
            counted = [step for step in rank.steps if step.index in rank.hot.steps]
            for step in counted:
                for cause, us in step.idle_by_cause.items():
                    name = f"idle by {cause}"
                    figures_us[name] = figures_us.get(name, 0.0) + us / len(counted)
    except PerfmodelError as error:
        if "\n" in str(error):
            return Answer({}, crashed=f"several lines: {error}")
        return Answer({}, refused=str(error))
    except Late:
        return Answer({}, crashed=f"took more than {time.monotonic() - began:.0f} s")
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        told = f"{type(error).__name__}: {error} ({Path(at.filename).name}:{at.lineno})"
        return Answer({}, crashed=told)
    return Answer(figures_us, tuple(found.warnings))

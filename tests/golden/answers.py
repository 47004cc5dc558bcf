"""Stored answers of the verbs on inputs that are part of the project: what drifts, shows.

Kept small: of a list longer than four, its length, its first item and its last; floats to six
significant digits. Compared value by value with a relative tolerance, since libraries for other
processors round the last digits otherwise. That one machine gives the same bytes every time is
`tests/cli/test_determinism.py`; figures are left to that, since their bytes are matplotlib's.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from perfmodel.cli import main

ROOT = Path(__file__).parents[2]
STORED = Path(__file__).parent / "stored"
DEMO = str(ROOT / "perfmodel" / "demo" / "dlrm_cpu_kineto.json.gz")
RANKS = str(ROOT / "traces" / "cpu_dlrm_2rank")
LONGEST = 4
DIGITS = 6
TOLERANCE_FRAC = 1e-5
LAST_DIGIT = 1.01e-4
"""Answers have four decimals."""

ANSWERS: dict[str, tuple[str, ...]] = {
    "predict": ("predict",),
    "predict_ranks_what_if": ("predict", RANKS, "--scale", "host=0.5"),
    "predict_transfer": ("predict", "--hardware", "dgx-1"),
    "predict_workload": ("predict", "--workload", "criteo-kaggle", "--hardware", "dgx-a100-40gb"),
    "breakdown": ("breakdown", DEMO),
    "breakdown_ranks": ("breakdown", RANKS),
    "kernel_linear": (
        *("kernel", "linear", "m=4096", "n=1024", "k=479", "dtype=fp16"),
        *("--hardware", "h100-sxm", "--hardware", "v100-sxm2-16gb", "--hardware", "epyc-7742"),
    ),
    "kernel_lookup": (
        *("kernel", "tbe", "tables=8", "batch=2048", "lookups=20", "dim=128"),
        *("hash_size=1000000", "direction=bwd"),
        *("--hardware", "a100-sxm-80gb", "--hardware", "mi300x"),
    ),
    "plan": ("plan", "--workload", "torchrec-golden", "--hardware", "dgx-1"),
    "compare": (
        *("compare", "--workload", "criteo-kaggle", "--hardware", "dgx-a100-40gb"),
        *("--designs", "cpu_only,gpu_only"),
    ),
    "hardware": ("hardware", "show", "dgx-a100-80gb"),
    "evaluate": ("evaluate", "traces", RANKS),
}


def answer(name: str) -> Any:
    """What the verb prints as JSON, cut short."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        status = main([*ANSWERS[name], "--format", "json"])
    assert status == 0, f"perfmodel {' '.join(ANSWERS[name])}: exit status {status}"
    found = json.loads(printed.getvalue().replace(f"{ROOT}/", ""))
    found.pop("made_by", None)  # moves with every model, also where no answer does
    return short(found)


def short(value: Any) -> Any:
    """Lists cut and floats rounded."""
    if isinstance(value, dict):
        return {key: short(each) for key, each in value.items()}
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if not isinstance(value, list):
        return value
    if len(value) <= LONGEST:
        return [short(each) for each in value]
    return {"length": len(value), "items": short([value[0], value[-1]])}


def stored(name: str) -> Any:
    """The stored answer; None where there is none."""
    path = STORED / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def store(name: str) -> None:
    """Write the answer as it is."""
    text = json.dumps(answer(name), indent=1, ensure_ascii=False)
    (STORED / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def differences(was: Any, found: Any, where: str = "") -> Iterator[str]:
    """A line for every value that is not what it was."""
    if isinstance(was, dict) and isinstance(found, dict):
        for key in {**was, **found}:
            yield from differences(was.get(key), found.get(key), f"{where}.{key}".lstrip("."))
    elif isinstance(was, list) and isinstance(found, list) and len(was) == len(found):
        for at, (one, other) in enumerate(zip(was, found, strict=True)):
            yield from differences(one, other, f"{where}[{at}]")
    elif not _same(was, found):
        yield f"{where}: {json.dumps(was)} -> {json.dumps(found)}"


def _same(was: Any, found: Any) -> bool:
    if _is_number(was) and _is_number(found):
        return math.isclose(was, found, rel_tol=TOLERANCE_FRAC, abs_tol=LAST_DIGIT)
    return type(was) is type(found) and was == found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

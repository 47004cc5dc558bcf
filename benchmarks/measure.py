"""Run one process to its end and measure it: a tool on a trace, or `perfmodel --help`.

Whatever starts the processes stays small (standard library only): Linux counts the parent's memory
up to the child's exec into the child's peak, so a large parent would put a floor under every
figure.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.messages import last_line
from benchmarks.tools import OURS, Tool

REPO = Path(__file__).resolve().parent.parent
DRIVERS = Path(__file__).resolve().parent / "drivers"

HELP_S = 0.25
"""What `perfmodel --help` may take."""


def measure(
    command: list[str], *, cwd: Path, env: dict[str, str], timeout_s: float
) -> dict[str, Any]:
    """Run one command to its end: wall, CPU, peak memory, exit code, last line of its errors."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )
        timed_out = threading.Event()

        def stop() -> None:
            timed_out.set()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(timeout_s, stop)
        timer.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        finally:
            wall_s = time.perf_counter() - start
            timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        errors = err.read().decode("utf-8", "replace")
        failure = ""
        if timed_out.is_set():
            failure = f"stopped after {timeout_s:.0f} s"
        elif process.returncode != 0:
            failure = f"exit {process.returncode}: {last_line(errors)}"
        return {
            "wall_s": wall_s,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "rss_mib": usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 1024),
            "failure": failure,
            "stdout": out.read(),
        }


def child_environment() -> dict[str, str]:
    """The environment of every measured process: this tree on the path, Python's own defaults."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return env | {"PYTHONPATH": str(REPO)}


def measure_tool(
    tool: Tool, python: Path, trace: Path, *, steps: str, timeout_s: float, versions: bool = False
) -> dict[str, Any]:
    """One fresh interpreter of one tool on one trace, with what its driver wrote down."""
    env = child_environment()
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        run = measure(
            [
                str(python),
                "-P",
                str(DRIVERS / tool.driver),
                str(trace),
                str(report),
                steps,
                *(["versions"] if versions else []),
            ],
            cwd=Path(scratch),
            env=env,
            timeout_s=timeout_s,
        )
        stdout = run.pop("stdout")
        said = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
    stages = dict(said.get("stages", {}))
    run["import_s"] = stages.pop("import", 0.0)
    run["stages"] = stages
    run["work_s"] = sum(stages.values())
    run["errors"] = said.get("errors", {})
    run["result"] = said.get("result", {})
    run["versions"] = said.get("versions", {})
    if "import" in run["errors"]:
        run["failure"] = run["failure"] or f"import: {run['errors']['import']}"
    if tool is OURS and not run["failure"]:
        run["failure"] = judge_ours(run, stdout)
    elif not run["failure"] and "load" in run["errors"]:
        run["failure"] = f"load: {run['errors']['load']}"
    return run


def judge_ours(run: dict[str, Any], stdout: bytes) -> str:
    """Ours counts only if it said a whole breakdown: why it does not, or nothing."""
    if run["errors"]:
        return "; ".join(f"{stage}: {error}" for stage, error in run["errors"].items())
    try:
        answer = json.loads(stdout)
        steps = [step for rank in answer["ranks"] for step in rank["steps"]]
        if not str(answer["schema"]).startswith("perfmodel.breakdown/"):
            return f"unexpected schema {answer['schema']!r}"
        if not steps or not all(step["critical_path_by_kind"] for step in steps):
            return "a step without a critical path"
        if not all(step["idle_by_cause"] is not None for step in steps):
            return "a step without idle causes"
    except (ValueError, KeyError, TypeError) as error:
        return f"no breakdown in its output ({type(error).__name__}: {error})"
    run["result"] = {"steps": len(steps), "json_bytes": len(stdout)}
    return ""


def measure_help(python: Path, repeats: int) -> dict[str, Any]:
    """`perfmodel --help`, which must not load anything heavy."""
    env = child_environment()
    command = [str(python), "-P", "-m", "perfmodel", "--help"]
    with tempfile.TemporaryDirectory() as scratch:
        runs = [
            measure(command, cwd=Path(scratch), env=env, timeout_s=60) for _ in range(repeats + 2)
        ][1:]
    failure = next((run["failure"] for run in runs if run["failure"]), "")
    wall_s = statistics.median(run["wall_s"] for run in runs)
    return {
        "wall_s": None if failure else wall_s,
        "limit": f"< {HELP_S:g} s",
        "holds": not failure and wall_s < HELP_S,
        "note": failure,
    }

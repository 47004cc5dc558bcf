"""The tools that are measured, and the pinned virtual environment of each peer."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.messages import reason, say


@dataclass(frozen=True)
class Tool:
    """One thing to measure: a driver and, for a peer, what its environment holds."""

    name: str
    title: str
    driver: str
    requirements: tuple[str, ...] = ()  # empty: runs in our own interpreter
    recorded: str | None = None  # folder of golden records to stand in for it
    recorded_title: str = ""
    recorded_stages: dict[str, str] = field(default_factory=dict)  # ours -> the record's name


_HTA_STAGES = {
    stage: stage
    for stage in (
        "load",
        "temporal_breakdown",
        "idle_time_breakdown",
        "comm_comp_overlap",
        "gpu_kernel_breakdown",
        "critical_path",
    )
}
PEERS = {
    tool.name: tool
    for tool in (
        Tool(
            "hta",
            "HTA 0.5.0",
            "hta.py",
            (
                "HolisticTraceAnalysis==0.5.0",
                "pandas==2.2.3",
                "numpy==2.4.6",
                "networkx==3.6.1",
            ),
            "hta",
            "HTA 0.5.0",
            _HTA_STAGES,
        ),
        Tool(
            "traceinsight",
            "traceinsight 0.6.1",
            "hta.py",
            ("traceinsight==0.6.1", "pandas==2.2.3", "numpy==2.4.6", "networkx==3.6.1"),
            "hta",
            "its predecessor HTA 0.5.0",
            _HTA_STAGES,
        ),
        # Not on PyPI: `tracelens` there is another project. From its repository where reachable.
        Tool(
            "tracelens",
            "TraceLens 171dd747",
            "tracelens.py",
            (
                "TraceLens @ git+https://github.com/AMD-AGI/TraceLens.git@171dd747",
                "pandas==3.1.1",
                "numpy==2.4.6",
            ),
            "tl",
            "TraceLens 171dd747",
            {
                "load": "load",
                "gpu_timeline": "gpu_timeline",
                "unified_perf": "unified_perf_top15",
            },
        ),
    )
}
OURS = Tool("ours", "perfmodel", "ours.py")
FLOOR = Tool("floor", "floor (gunzip + decode)", "floor.py")


def cache_folder() -> Path:
    """The user's cache folder for the peers' environments."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "perfmodel-bench"


def environment(tool: Tool, envs: Path, requirements: tuple[str, ...]) -> tuple[Path | None, str]:
    """The interpreter of the tool's environment, made if missing; or None and why not."""
    digest = hashlib.sha256(
        "\n".join((sys.version, *requirements)).encode("utf-8"),
    ).hexdigest()[:12]
    folder = envs / f"{tool.name}-{digest}"
    python = folder / "bin" / "python"
    complete = folder / "complete"
    if complete.exists():
        return python, ""
    say(f"installing {tool.title} ...")
    shutil.rmtree(folder, ignore_errors=True)
    envs.mkdir(parents=True, exist_ok=True)
    git_env = os.environ | {"GIT_TERMINAL_PROMPT": "0"}
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "-q", "--no-input", *requirements],
    ):
        try:
            done = subprocess.run(
                command,
                check=False,
                env=git_env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=1800,
            )
            failure = "" if done.returncode == 0 else reason(done.stderr or done.stdout)
        except (OSError, subprocess.TimeoutExpired) as error:
            failure = str(error)
        if failure:
            shutil.rmtree(folder, ignore_errors=True)
            return None, f"cannot be installed: {failure}"
    complete.write_text("\n".join(requirements) + "\n", encoding="utf-8")
    return python, ""

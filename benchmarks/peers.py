"""This project against its peers on the same traces, in one run: time, memory, and the floor.

    python benchmarks/peers.py [--peer hta,traceinsight,tracelens] [--trace NAME ...]
                               [--repeats 3] [--ours PYTHON] [--envs DIR] [--in-process]
                               [--check] [--json]

Every measurement is one fresh interpreter: wall time from its start to its end, user + system CPU
and peak resident memory from `wait4`. Repeats are interleaved over traces and tools; the figure is
the median. Each peer lives in its own virtual environment, pinned, made on demand. See README.md
beside this file for what each tool does and for the rules.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# This program itself stays small (standard library only): Linux counts the parent's memory up to
# the child's exec into the child's peak, so a large parent would put a floor under every figure.

REPO = Path(__file__).resolve().parent.parent
DRIVERS = Path(__file__).resolve().parent / "drivers"
SCHEMA = "perfmodel.peers/1"
TRACES = (
    "dlrm_meta/a100x8_trace_diff_control",
    "inference/h100_timesformer",
    "train/v100x2_df_index_resolver_rank1",
)

# What has to hold (`--check`): ours is this many times faster than the peer, as a whole process
# and in-process, and takes at most this share of the memory of the peer that takes least.
SPEEDUP = {"hta": 10.0, "tracelens": 5.0}
MEMORY_SHARE = 0.6
HELP_S = 0.25


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


# -- environments ---------------------------------------------------------------------------------


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


def reason(text: str) -> str:
    """The one line of a tool's output that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for sign in ("fatal:", "ERROR:", "error:"):
        for line in lines:
            if line.startswith(sign):
                return line[:200]
    return (lines or ["no message"])[-1][:200]


# -- one measurement ------------------------------------------------------------------------------


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


def last_line(text: str) -> str:
    """The last line with something in it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines or ["no message"])[-1][:200]


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


# -- what was recorded elsewhere ------------------------------------------------------------------


def recorded(tool: Tool, reference: Path, name: str, steps: str) -> dict[str, Any] | None:
    """The golden record of a peer on a trace: its own times, on the machine that made it."""
    if tool.recorded is None:
        return None
    path = reference / "golden" / tool.recorded / (name.replace("/", "__") + ".json")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    stages = {
        ours: record["wall_s"][theirs]
        for ours, theirs in tool.recorded_stages.items()
        if theirs in record["wall_s"]
    }
    paths = record.get("critical_path") or {}
    if steps == "one" and paths:
        walls = [found["wall_s"] for found in paths.values() if "wall_s" in found]
        if walls:
            stages["critical_path"] = walls[min(1, len(walls) - 1)]
    work_s = sum(stages.values())
    import_s = record.get("import_s", 0.0)
    # The whole process as it was timed from outside, less what it did beyond our stages.
    beyond_s = record["total_wall_s"] - import_s - work_s
    return {
        "of": tool.recorded_title,
        "peer": record.get("peer", ""),
        "stages": stages,
        "work_s": work_s,
        "import_s": import_s,
        "wall_s": record["time_v"]["wall_s"] - beyond_s,
        "rss_mib": record["time_v"]["max_rss_kb"] / 1024,
        "errors": record.get("errors", {}),
    }


def machine_factor(runs: list[dict[str, Any]], record: dict[str, Any] | None) -> float | None:
    """This machine's time over the recording machine's, from HTA, which was measured on both.

    The recording machine was shared, so its wall times are about 2.2 times the CPU times; the
    factor takes that out as well. In-process times make it; wall times then test it.
    """
    good = [run for run in runs if not run["failure"]]
    if not good or record is None:
        return None
    shared = [stage for stage in record["stages"] if stage in good[0]["stages"]]
    here = statistics.median(sum(run["stages"].get(s, 0.0) for s in shared) for run in good)
    there = sum(record["stages"][stage] for stage in shared)
    return here / there if there else None


# -- the run --------------------------------------------------------------------------------------


def summarise(tool: Tool, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the repeats that worked; what failed is said, never left out."""
    good = [run for run in runs if not run["failure"]]
    if not good:
        return {
            "tool": tool.name,
            "title": tool.title,
            "kind": "failed",
            "note": (runs[0]["failure"] if runs else "not run"),
        }
    stage_names = list(dict.fromkeys(name for run in good for name in run["stages"]))
    notes = [f"{stage}: {error}" for stage, error in good[0]["errors"].items()]
    if len(good) < len(runs):
        failed = next(run["failure"] for run in runs if run["failure"])
        notes.append(f"{len(runs) - len(good)} of {len(runs)} runs failed ({failed})")
    figures: dict[str, Any] = {
        key: statistics.median(run[key] for run in good)
        for key in ("wall_s", "work_s", "import_s", "cpu_s", "rss_mib")
    }
    return {
        "tool": tool.name,
        "title": tool.title,
        "kind": "measured",
        **figures,
        "wall_min_s": min(run["wall_s"] for run in good),
        "wall_max_s": max(run["wall_s"] for run in good),
        "stages": {
            name: statistics.median(run["stages"].get(name, 0.0) for run in good)
            for name in stage_names
        },
        "result": good[0]["result"],
        "runs": len(good),
        "note": "; ".join(notes),
    }


def stand_in(
    tool: Tool, record: dict[str, Any], factor: float | None, why: str
) -> list[dict[str, Any]]:
    """Rows for a peer that was not measured here: as recorded, and scaled to this machine."""
    base = {
        "tool": tool.name,
        "import_s": record["import_s"],
        "cpu_s": None,
        "rss_mib": record["rss_mib"],
        "note": why,
    }
    errors = "; ".join(f"{stage}: {error}" for stage, error in record["errors"].items())
    rows = [
        {
            **base,
            "title": f"{record['of']} (recorded)",
            "kind": "recorded",
            "wall_s": record["wall_s"],
            "work_s": record["work_s"],
            "stages": record["stages"],
            "note": "; ".join(filter(None, (why, errors))),
        }
    ]
    if factor is not None:
        rows.append(
            {
                **base,
                "title": f"{record['of']} (recorded x {factor:.2f})",
                "kind": "scaled",
                "factor": factor,
                "wall_s": record["wall_s"] * factor,
                "work_s": record["work_s"] * factor,
                "import_s": record["import_s"] * factor,
                "stages": {stage: value * factor for stage, value in record["stages"].items()},
                "note": "scaled by HTA's in-process time here over its time as recorded",
            }
        )
    return rows


def ratio_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every row against ours and against the floor, both ways."""
    measured = {row["tool"]: row for row in rows if row["kind"] == "measured"}
    ours, floor = measured.get("ours"), measured.get("floor")

    def over(a: dict[str, Any] | None, b: dict[str, Any] | None, key: str) -> float | None:
        if a is None or b is None or not a.get(key) or not b.get(key):
            return None
        return float(a[key] / b[key])

    return [
        {
            "tool": row["tool"],
            "title": row["title"],
            "kind": row["kind"],
            **{
                f"{name}_{way}": over(above, below, key)
                for name, key in (
                    ("wall", "wall_s"),
                    ("work", "work_s"),
                    ("cpu", "cpu_s"),
                    ("memory", "rss_mib"),
                )
                for way, above, below in (
                    ("over_ours", row, ours),
                    ("ours_over", ours, row),
                    ("over_floor", row, floor),
                )
            },
        }
        for row in rows
        if row["kind"] != "failed"
    ]


def check(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """The promises, one by one, each also against the records that stand in for a peer."""
    found = []
    for row in trace["ratios"]:
        factor = SPEEDUP.get(row["tool"])
        if factor is None:
            continue
        for key, title in (("wall", "wall"), ("work", "in-process")):
            value = row[f"{key}_over_ours"]
            found.append(
                {
                    "what": f"{row['title']} / ours, {title}",
                    "value": value,
                    "limit": f">= {factor:g}",
                    "holds": value is not None and value >= factor,
                    "kind": row["kind"],
                }
            )
    peers = [row for row in trace["rows"] if row["tool"] in PEERS and row["kind"] != "failed"]
    ours = next(row for row in trace["rows"] if row["tool"] == "ours")
    if peers:
        least = min(peers, key=lambda row: float(row["rss_mib"]))
        value = ours["rss_mib"] / least["rss_mib"] if ours["kind"] == "measured" else None
        found.append(
            {
                "what": f"ours / {least['title']} (takes least), peak memory",
                "value": value,
                "limit": f"<= {MEMORY_SHARE:g}",
                "holds": value is not None and value <= MEMORY_SHARE,
                "kind": least["kind"],
            }
        )
    return found


def benchmark(options: argparse.Namespace, reference: Path) -> dict[str, Any]:
    """Make the environments, measure everything interleaved, and sum it up."""
    peers = [PEERS[name] for name in options.peer]
    pythons: dict[str, Path | None] = {"ours": options.ours, "floor": options.ours}
    why_not: dict[str, str] = {}
    for tool in peers:
        requirements = tool.requirements
        if tool.name == "tracelens" and options.tracelens:
            requirements = (options.tracelens, *requirements[1:])
        pythons[tool.name], why_not[tool.name] = environment(tool, options.envs, requirements)
    tools = [FLOOR, OURS, *peers]
    paths = {name: find_trace(name, reference) for name in options.trace}
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {
        (name, tool.name): [] for name in paths for tool in tools
    }
    load_before = os.getloadavg()[0]

    def one(tool: Tool, name: str, versions: bool = False) -> dict[str, Any]:
        python = pythons[tool.name]
        assert python is not None
        return measure_tool(
            tool,
            python,
            paths[name],
            steps=options.steps,
            timeout_s=options.timeout,
            versions=versions,
        )

    # One run of each that does not count: it compiles byte code and fills the page cache.
    alive = [tool for tool in tools if pythons[tool.name] is not None]
    smallest = min(paths, key=lambda name: paths[name].stat().st_size)
    versions: dict[str, dict[str, str]] = {}
    for tool in alive:
        say(f"warm-up: {tool.title}")
        versions[tool.name] = one(tool, smallest, versions=True)["versions"]
    for repeat in range(options.repeats):
        for name in paths:
            order = alive[repeat % len(alive) :] + alive[: repeat % len(alive)]
            for tool in order:
                say(f"{repeat + 1}/{options.repeats} {name}: {tool.title}")
                runs[name, tool.name].append(one(tool, name))

    answer: dict[str, Any] = {
        "schema": SCHEMA,
        "python": platform.python_version(),
        "machine": {
            "system": platform.system(),
            "architecture": platform.machine(),
            "cpus": os.cpu_count(),
            "load_before": load_before,
            "load_after": os.getloadavg()[0],
        },
        "repeats": options.repeats,
        "steps": options.steps,
        "versions": versions,
        "help": measure_help(options),
        "traces": [],
    }
    for name, path in paths.items():
        hta_record = recorded(PEERS["hta"], reference, name, options.steps)
        factor = machine_factor(runs.get((name, "hta"), []), hta_record)
        rows = []
        for tool in tools:
            row = summarise(tool, runs[name, tool.name])
            if row["kind"] == "failed":
                row["note"] = why_not.get(tool.name) or row["note"]
            rows.append(row)
            record = recorded(tool, reference, name, options.steps)
            if row["kind"] == "failed" and record is not None:
                rows += stand_in(tool, record, factor, "recorded elsewhere, not measured here")
        trace: dict[str, Any] = {"trace": name, "bytes": path.stat().st_size, "rows": rows}
        if factor is not None and hta_record is not None:
            measured_s = next(row["wall_s"] for row in rows if row["tool"] == "hta")
            trace["scaling"] = {
                "factor": factor,
                "hta_wall_scaled_s": hta_record["wall_s"] * factor,
                "hta_wall_measured_s": measured_s,
            }
        trace["ratios"] = ratio_rows(rows)
        trace["checks"] = check(trace)
        answer["traces"].append(trace)
    return answer


def measure_help(options: argparse.Namespace) -> dict[str, Any]:
    """`perfmodel --help`, which must not load anything heavy."""
    env = child_environment()
    command = [str(options.ours), "-P", "-m", "perfmodel", "--help"]
    with tempfile.TemporaryDirectory() as scratch:
        runs = [
            measure(command, cwd=Path(scratch), env=env, timeout_s=60)
            for _ in range(options.repeats + 2)
        ][1:]
    failure = next((run["failure"] for run in runs if run["failure"]), "")
    wall_s = statistics.median(run["wall_s"] for run in runs)
    return {
        "wall_s": None if failure else wall_s,
        "limit": f"< {HELP_S:g} s",
        "holds": not failure and wall_s < HELP_S,
        "note": failure,
    }


def find_trace(name: str, reference: Path) -> Path:
    """A file as given, or a name under the reference traces."""
    folder = reference / "traces"
    for path in (Path(name), folder / f"{name}.json.gz", folder / f"{name}.json", folder / name):
        if path.is_file():
            return path.resolve()
    raise SystemExit(
        f"peers.py: no trace {name!r}: give a file, or a name under "
        "$PERFMODEL_REFERENCE/traces (PERFMODEL_REFERENCE defaults to ../shared/data)"
    )


def say(text: str) -> None:
    """Progress, only for someone who watches."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


# -- output ---------------------------------------------------------------------------------------


def table(header: list[str], rows: list[list[str]]) -> str:
    """A plain table: first column left, the others right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, ["-" * width for width in widths], *rows]:
        cells = [
            row[0].ljust(widths[0]),
            *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def number(value: float | None, digits: int = 2) -> str:
    """A figure, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def show(answer: dict[str, Any], *, in_process: bool) -> str:
    """The whole run as text."""
    machine = answer["machine"]
    parts = [
        f"Python {answer['python']}, {machine['system']} {machine['architecture']}, "
        f"{machine['cpus']} CPUs, load {machine['load_before']:.1f} before and "
        f"{machine['load_after']:.1f} after; median of {answer['repeats']} interleaved runs; "
        f"critical path of {answer['steps']} profiler step{'s' * (answer['steps'] == 'all')} "
        "(peers), of all (ours)."
    ]
    for trace in answer["traces"]:
        parts.append(f"\n== {trace['trace']} ({trace['bytes'] / 1e6:.1f} MB on disk)\n")
        parts.append(
            table(
                ["tool", "wall s", "min..max", "in-process s", "import s", "CPU s", "peak MiB"],
                [
                    [
                        row["title"],
                        *(
                            ["failed", "-", "-", "-", "-", "-"]
                            if row["kind"] == "failed"
                            else [
                                number(row["wall_s"]),
                                f"{row['wall_min_s']:.2f}..{row['wall_max_s']:.2f}"
                                if "wall_min_s" in row
                                else "-",
                                number(row["work_s"]),
                                number(row["import_s"]),
                                number(row["cpu_s"]),
                                number(row["rss_mib"], 0),
                            ]
                        ),
                    ]
                    for row in trace["rows"]
                ],
            )
        )
        notes = [f"  {row['title']}: {row['note']}" for row in trace["rows"] if row["note"]]
        if notes:
            parts.append("\n".join(notes))
        if any(row["kind"] == "scaled" for row in trace["rows"]):
            scaling = trace["scaling"]
            parts.append(
                f"  The scaling puts HTA's own wall time at {scaling['hta_wall_scaled_s']:.2f} s; "
                f"measured {scaling['hta_wall_measured_s']:.2f} s."
            )
        ways = [("wall", "wall time")] + ([("work", "in-process time")] if in_process else [])
        for key, title in ways:
            parts.append(
                "\n"
                + table(
                    [
                        f"ratios, {title}",
                        "tool/ours",
                        "ours/tool",
                        "tool/floor",
                        "CPU tool/ours",
                        "memory tool/ours",
                        "memory ours/tool",
                        "memory tool/floor",
                    ],
                    [
                        [
                            row["title"],
                            number(row[f"{key}_over_ours"]),
                            number(row[f"{key}_ours_over"], 3),
                            number(row[f"{key}_over_floor"], 1),
                            number(row["cpu_over_ours"]),
                            number(row["memory_over_ours"]),
                            number(row["memory_ours_over"]),
                            number(row["memory_over_floor"]),
                        ]
                        for row in trace["ratios"]
                    ],
                )
            )
        if in_process:
            parts.append("\nstages, in-process seconds")
            for row in trace["rows"]:
                if row.get("stages"):
                    split = ", ".join(f"{k} {v:.3f}" for k, v in row["stages"].items())
                    parts.append(f"  {row['title']}: {split}")
        if trace["checks"]:
            parts.append("")
        for found in trace["checks"]:
            parts.append(
                f"  {'holds ' if found['holds'] else 'FAILS '} {found['what']}: "
                f"{number(found['value'])} (wanted {found['limit']}, {found['kind']})"
            )
    shown = answer["help"]
    parts.append(
        f"\n{'holds ' if shown['holds'] else 'FAILS '} perfmodel --help: "
        f"{number(shown['wall_s'], 3)} s (wanted {shown['limit']}) {shown['note']}".rstrip()
    )
    return "\n".join(parts)


def names(text: str) -> list[str]:
    """`hta,tracelens` or `none`."""
    chosen = [] if text == "none" else [name.strip() for name in text.split(",") if name.strip()]
    for name in chosen:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(PEERS)}, none")
    return chosen


def main() -> int:
    """Read the options, run, print."""
    parser = argparse.ArgumentParser(
        prog="peers.py", description="Time and memory of perfmodel and its peers, in one run."
    )
    parser.add_argument(
        "--peer", type=names, default=list(PEERS), help="comma-separated peers, or none"
    )
    parser.add_argument("--trace", nargs="+", default=list(TRACES), metavar="NAME")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--ours", type=Path, default=Path(sys.executable), help="interpreter that has perfmodel"
    )
    parser.add_argument("--envs", type=Path, default=cache_folder(), help="the peers' environments")
    parser.add_argument(
        "--tracelens", metavar="SOURCE", help="a checkout or a pip URL of AMD's TraceLens"
    )
    parser.add_argument(
        "--steps",
        choices=["one", "all"],
        default="one",
        help="profiler steps whose critical path HTA finds (ours: always all)",
    )
    parser.add_argument(
        "--in-process", action="store_true", help="ratios without interpreter start and import, too"
    )
    parser.add_argument("--check", action="store_true", help="exit 1 if a promise does not hold")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds per run")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    reference = Path(os.environ.get("PERFMODEL_REFERENCE") or REPO / ".." / "shared" / "data")
    answer = benchmark(options, reference.resolve())
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    print(
        json.dumps(answer, indent=2)
        if options.json
        else show(answer, in_process=options.in_process)
    )
    holds = answer["help"]["holds"] and all(
        found["holds"] for trace in answer["traces"] for found in trace["checks"]
    )
    return 1 if options.check and not holds else 0


if __name__ == "__main__":
    raise SystemExit(main())

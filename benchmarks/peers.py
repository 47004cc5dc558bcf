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
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a file

from benchmarks.figures import check, ratio_rows, summarise
from benchmarks.measure import REPO, measure_help, measure_tool
from benchmarks.messages import say
from benchmarks.recorded import machine_factor, recorded, stand_in
from benchmarks.tables import show
from benchmarks.tools import FLOOR, OURS, PEERS, Tool, cache_folder, environment

SCHEMA = "perfmodel.peers/1"
TRACES = (
    "dlrm_meta/a100x8_trace_diff_control",
    "inference/h100_timesformer",
    "train/v100x2_df_index_resolver_rank1",
)


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
        "help": measure_help(options.ours, options.repeats),
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

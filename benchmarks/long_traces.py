"""Long traces: processor time and memory of reading and breaking down 20 MB to 2 GB of JSON.

`python benchmarks/long_traces.py --mb 20 200 2000` makes each trace by repeating the steps of a
real one, runs the verbs in processes of their own, prints one row each and deletes the trace.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfmodel.base.files import read_bytes

DEMO = Path(__file__).parents[1] / "perfmodel" / "demo" / "dlrm_cpu_kineto.json.gz"
MB = 1_000_000
LEAN = ("External id", "correlation", "device", "stream", "Ev Idx")
IDS = ("External id", "Record function id", "Ev Idx", "Sequence number", "correlation")


def repeated(source: Path, mb: float, target: Path, *, lean: bool = False) -> tuple[int, int]:
    """Write about `mb` MB of the steps of `source` to `target`: (events, steps)."""
    document = json.loads(read_bytes(source))
    steps, events = _steps_of(document["traceEvents"])
    if lean:
        events = [_lean(event) for event in events]
    first, last = steps[0], steps[-1]
    begun, over = float(first["ts"]), float(last["ts"]) + float(last["dur"])
    inside = [e for e in events if begun <= float(e["ts"]) < over]
    others = [e for e in document["traceEvents"] if e.get("ph") == "M"]
    stride = 1 + max(int(e["args"].get(k, 0)) for e in inside for k in IDS if "args" in e)
    head = {key: value for key, value in document.items() if key != "traceEvents"}
    count = 0
    with target.open("w", buffering=MB) as file:
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        file.write(",\n".join(map(json.dumps, others)))
        repeats = 0
        while file.tell() < mb * MB:
            for event in _moved(inside, repeats, over - begun, stride, len(steps)):
                file.write(",\n" + event)
                count += 1
            repeats += 1
        file.write("\n]}\n")
    return count, repeats * len(steps)


def _lean(event: dict[str, Any]) -> dict[str, Any]:
    args = {key: event["args"][key] for key in LEAN if key in event.get("args", {})}
    return event | {"args": args}


def _steps_of(events: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    timed = [e for e in events if e.get("ph") == "X"]
    steps = [e for e in timed if e["name"].startswith("ProfilerStep#")]
    return sorted(steps, key=lambda e: float(e["ts"])), timed


def _moved(
    events: list[dict[str, Any]], repeat: int, period_us: float, stride: int, steps: int
) -> Iterator[str]:
    """The events as text, later in time and with ids of their own."""
    for event in events:
        moved = event | {"ts": round(float(event["ts"]) + repeat * period_us, 3)}
        if event["name"].startswith("ProfilerStep#"):
            number = int(event["name"].partition("#")[2]) + repeat * steps
            moved["name"] = f"ProfilerStep#{number}"
        if "args" in event:
            own = {k: v + repeat * stride for k, v in event["args"].items() if k in IDS}
            moved["args"] = event["args"] | own
        yield json.dumps(moved)


def measured(words: list[str]) -> tuple[float, float]:
    """(processor seconds, peak GB) of a command line in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-m", "perfmodel", *words], stdout=subprocess.DEVNULL
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)}: exit status {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e6


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--mb", type=float, nargs="+", default=[20, 200])
    options.add_argument("--source", type=Path, default=DEMO)
    options.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options.add_argument("--steps", default="3:8")
    options.add_argument("--lean", action="store_true", help="events as of a trace without shapes")
    given = options.parse_args()
    print("MB | events | steps | verb | CPU s | CPU s per GB | peak GB")
    for mb in given.mb:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            path = Path(folder) / "long.json"
            events, steps = repeated(given.source, mb, path, lean=given.lean)
            size = path.stat().st_size
            for name, words in (
                ("breakdown", ["breakdown", str(path), "--format", "csv"]),
                ("breakdown --steps", ["breakdown", str(path), "--steps", given.steps]),
                ("predict --steps", ["predict", str(path), "--steps", given.steps]),
            ):
                cpu_s, peak_gb = measured(words)
                print(
                    f"{size / MB:.0f} | {events} | {steps} | {name} | {cpu_s:.1f} | "
                    f"{cpu_s / size * 1e9:.1f} | {peak_gb:.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()

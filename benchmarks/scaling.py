"""How the time of each verb grows with what a trace or a model has many of.

    python benchmarks/scaling.py [--verb WORD] [--axis WORD] [--figure FILE] [--check]

Traces are made up: on every thread, operators that launch one kernel each. Workloads, programs,
clusters, tables of kernels and grids are too. One figure grows, the others stay. Processor time is
of this process, without imports; the exponent is of the two largest sizes: 1 is linear. With
`--check`, exit 1 where one is above 1.15. Programs take PyTorch.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import math
import resource
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a file

from benchmarks.rounds import on_one_thread
from perfmodel.plot.style import FURTHER_COLOURS, look

MAX_EXPONENT = 1.15
MIN_S = 0.5
"""Sizes whose run takes less say nothing of growth."""
OP_US, STEP_GAP_US = 20, 50
OF_TRACES = {
    "breakdown": [],
    "predict": [],
    "predict --hardware": ["--hardware", "h100-sxm"],
    "report": ["-o", "{folder}/page.html"],
    "diff": ["{made}"],
    "check": ["--baseline", "{folder}/baseline.json", "--update"],
    "export": ["-o", "{folder}/timeline.json"],
    "fit overheads": ["-o", "{folder}/overheads.json"],
}
"""What follows the verb and the trace."""
TRACE_AXES = {
    "events": (20_000, 60_000, 180_000),
    "steps": (500, 5_000, 50_000),
    "threads": (3_000, 10_000, 30_000),
    "streams": (3_000, 10_000, 30_000),
    "ranks": (8, 24, 72),
}
_ON = ("--workload", "{made}", "--hardware")
OF_OTHERS = (
    ("tables", "predict --workload", ("predict", *_ON, "dgx-1"), (270, 900, 2_700)),
    (
        "tables",
        "compare",
        ("compare", *_ON, "dgx-1", "--designs", "default,low_precision"),
        (270, 900, 2_700),
    ),
    ("tables", "plan", ("plan", *_ON, "dgx-1"), (90, 270, 810)),
    ("layers", "predict --workload", ("predict", *_ON, "l4"), (300, 1_000, 3_000)),
    (
        "operators",
        "predict FILE.py:Net",
        ("predict", "{made}:Net", "--hardware", "l4"),
        (1_000, 3_000, 9_000),
    ),
    (
        "nodes",
        "predict --workload",
        ("predict", "--workload", "dlrm-dcnv2", "--batch", "131072000", "--hardware", "{made}"),
        (1_000, 4_000, 16_000),
    ),
    (
        "rows",
        "evaluate kernels",
        ("evaluate", "kernels", "--data", "{made}"),
        (60_000, 180_000, 540_000),
    ),
    ("points", "sweep", ("sweep", "{made}", "-o", "{folder}/{size}"), (30, 90, 270)),
)
"""What grows, a verb, its words and the sizes."""


def document(
    *, events: int = 200, steps: int = 1, threads: int = 1, streams: int = 1, rank: int = 0
) -> dict[str, Any]:
    """A Kineto trace: `events` per step, a third each of operators, launches and kernels."""
    made: list[dict[str, Any]] = []
    ops = max(events // 3, 1)
    step_us = OP_US * ops + STEP_GAP_US
    for step in range(steps):
        begun = step * step_us
        made.append(_event("user_annotation", f"ProfilerStep#{step}", 1, begun, step_us - 10, {}))
        for n in range(ops):
            call, at = step * ops + n + 1, begun + 10 + n * OP_US
            thread, stream = 1 + call % threads, 7 + call % streams
            ids = {"External id": call, "correlation": call}
            made.append(
                _event("cpu_op", f"aten::op{n % 50}", thread, at, 12, {"External id": call})
            )
            made.append(_event("cuda_runtime", "cudaLaunchKernel", thread, at + 3, 5, ids))
            device = {"device": rank, "stream": stream, "grid": [64, 1, 1]}
            made.append(_event("kernel", f"kernel_{n % 50}", stream, at + 10, 6, {**ids, **device}))
    job = {"backend": "nccl", "rank": rank, "world_size": rank + 1}
    gpu = [{"name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85_899_345_920, "numSms": 108}]
    about = {"schemaVersion": 1, "distributedInfo": job, "deviceProperties": gpu}
    return {**about, "traceEvents": made}


def _event(
    category: str, name: str, thread: int, start_us: int, duration_us: int, args: dict[str, Any]
) -> dict[str, Any]:
    place = {"pid": int(category != "kernel"), "tid": thread, "ts": start_us, "dur": duration_us}
    return {"ph": "X", "cat": category, "name": name, **place, "args": args}


def trace_of(axis: str, size: int, folder: Path) -> Path:
    """A file, or a folder of ranks, with `size` of `axis`."""
    if axis == "ranks":
        target = folder / f"{size}_ranks"
        target.mkdir()
        for rank in range(size):
            made = document(events=600, steps=4, rank=rank)
            made["distributedInfo"]["world_size"] = size
            (target / f"rank{rank}.json").write_text(json.dumps(made), encoding="utf-8")
        return target
    path = folder / f"{size}_{axis}.json"
    sizes: dict[str, dict[str, int]] = {
        "events": {"events": size // 4, "steps": 4},
        "steps": {"events": 12, "steps": size},
        "threads": {"events": 3 * size, "threads": size},
        "streams": {"events": 3 * size, "streams": size},
    }
    path.write_text(json.dumps(document(**sizes[axis])), encoding="utf-8")
    return path


def made_of(axis: str, size: int, folder: Path, number: int) -> Path:
    """A file, no trace, with `size` of `axis`; another `size` or `number` shares no answer."""
    tables, layers = (size if axis == each else few for each, few in (("tables", 8), ("layers", 1)))
    mlp = f"[{'64, ' * layers}64]"
    rows = range(size) if axis == "rows" else ()
    texts = {
        "toml": f'schema = "perfmodel.workload/1"\nbatch = 64\n[model]\ndense_features = 13\n'
        f"bottom_mlp = {mlp}\ntop_mlp = [512, 1]\n"
        + f"[[tables]]\nrows = {10_000 + number}\ndim = 64\npooling = 1\n"
        * tables,
        "py": "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n"
        f"        for _ in range({size}):\n            x = x + 1\n        return x\n"
        "def get_inputs():\n    return [torch.rand(64, 64)]\n",
        "csv": "op,device,dtype,direction,timing,m,n,k,duration_us\n"
        + "".join(
            f"linear,NVIDIA L4,fp16,fwd,profiler_kernel,{64 + n},512,512,{5 + n % 7}\n"
            for n in rows
        ),
    }
    if axis == "nodes":
        texts["toml"] = f'kind = "cluster"\nname = "made"\nnode = "dgx-h100"\nnodes = {size}\n'
    if axis == "points":
        texts["toml"] = (
            'workload = "criteo-kaggle"\nhardware = "dgx-1"\nbatch = 4096\n[axes]\n'
            f"device.hbm_gb_per_s = {{ low = {600 + size}, high = {2400 + size}, "
            f"steps = {size // 10} }}\n"
            "host.single_thread_ratio = { low = 0.5, high = 1.5, steps = 10 }\n"
        )
    suffix = {"operators": "py", "rows": "csv"}.get(axis, "toml")
    path = folder / f"{number}_{size}_{axis}.{suffix}"
    path.write_text(texts[suffix], encoding="utf-8")
    return path


@dataclass(frozen=True)
class Growth:
    """One verb over one axis."""

    verb: str
    axis: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def exponent(self) -> float:
        """Slope of the logarithms of the two largest sizes; nan where the largest is too short."""
        (few, many), (before_s, after_s) = self.sizes[-2:], self.seconds[-2:]
        if after_s < MIN_S:
            return math.nan
        return math.log(after_s / before_s) / math.log(many / few)


def taken_s(words: list[str]) -> float:
    """Processor time of a command in this process; it must succeed."""
    from perfmodel.cli import main

    def used_s() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    gc.collect()
    gc.freeze()  # what was kept before is not walked again
    begun_s, errors = used_s(), io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(errors):
        status = main(words)
    if status:
        raise SystemExit(f"{' '.join(words)}: {errors.getvalue()}")
    return used_s() - begun_s


def growths(verb: str, axis: str) -> Iterator[Growth]:
    """Every verb whose name holds a word, over every axis whose name holds another."""
    (
        taken_s(["breakdown"]),
        taken_s(["predict", "--workload", "criteo-kaggle", "--hardware", "dgx-1"]),
    )  # imports
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def growth(grows: str, each: str, words: Iterable[str], made: dict[int, Path]) -> Growth:
            seconds = [
                taken_s([w.format(made=path, folder=folder, size=size) for w in words])
                for size, path in made.items()
            ]
            return Growth(each, grows, tuple(made), tuple(seconds))

        for grows, sizes in TRACE_AXES.items():
            wanted = {each: more for each, more in OF_TRACES.items() if verb in each}
            if axis in grows and wanted:
                made = {size: trace_of(grows, size, folder) for size in sizes}
                for each, more in wanted.items():
                    words = (*each.partition(" --")[0].split(), "{made}", *more)
                    yield growth(grows, each, words, made)
        for number, (grows, each, others, sizes) in enumerate(OF_OTHERS):
            if axis in grows and verb in each:
                if not find_spec("torch") and grows == "operators":
                    continue
                few = sizes[0] // 2
                growth(grows, each, others, {few: made_of(grows, few, folder, number)})  # imports
                made = {size: made_of(grows, size, folder, number) for size in sizes}
                yield growth(grows, each, others, made)


def draw(found: list[Growth], path: Path) -> None:
    """Seconds over sizes, both logarithmic, one panel per axis, with each verb's exponent."""
    from matplotlib.figure import Figure

    axes = list(dict.fromkeys(each.axis for each in found))
    verbs = list(dict.fromkeys(each.verb for each in found))
    columns = min(3, len(axes))
    lines = math.ceil(len(axes) / columns)
    with look():
        figure = Figure(figsize=(4.6 * columns, 3.0 * lines), layout="constrained")
        panels = figure.subplots(lines, columns, squeeze=False).flat
        for axis, panel in zip(axes, panels, strict=False):
            growths = [each for each in found if each.axis == axis]
            for each in sorted(growths, key=lambda each: -each.seconds[-1]):
                label = each.verb + ("" if math.isnan(each.exponent) else f" {each.exponent:.2f}")
                colour = FURTHER_COLOURS[verbs.index(each.verb) % len(FURTHER_COLOURS)]
                panel.plot(each.sizes, each.seconds, ".-", color=colour, label=label)
            panel.set(xscale="log", yscale="log", xlabel=axis, ylabel="processor time (s)")
            panel.set(ylim=(0.08, 400), yticks=(0.1, 1, 10, 100))
            panel.set_yticklabels(("0.1", "1", "10", "100"))
            ticks = growths[0].sizes
            panel.set_xticks(ticks, [f"{size:,}" for size in ticks])
            panel.minorticks_off()
            panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)
        for panel in figure.axes[len(axes) :]:
            panel.remove()
        figure.savefig(path, dpi=110)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, draw, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verb", default="", metavar="WORD")
    parser.add_argument("--axis", default="", metavar="WORD")
    parser.add_argument("--figure", type=Path, metavar="FILE")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args(arguments)
    on_one_thread()
    found = []
    for each in growths(given.verb, given.axis):
        found.append(each)
        seconds = ", ".join(f"{s:.2f}" for s in each.seconds)
        print(each.axis, each.verb, each.sizes, seconds, f"{each.exponent:.2f}", flush=True)
    if given.figure and found:
        draw(found, given.figure)
    late = [each for each in found if each.exponent > MAX_EXPONENT]
    return int(given.check and bool(late))


if __name__ == "__main__":
    sys.exit(main())

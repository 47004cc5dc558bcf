"""Whole PyTorch modules against KernelBench's timings, with each GPU left out of what was fitted.

    python benchmarks/modules.py [--mode eager|compiled] [--half even|odd] [--programs N]

Takes PyTorch and `$PERFMODEL_REFERENCE`. Every program is traced and predicted on the GPUs that
it was timed on. Per GPU and kind (level 1: one operator, 2: chains, 3: networks), the median error
of all passes and of those of 1 ms and more, of a plain roofline of the same kernels (8 us of host
per operator), and the share of the 90 % intervals that hold; below, what `PASS_SPREAD` is drawn
from. `left out` chooses the factor of the host's time and the widths of intervals on the other
GPUs' rows alone. `--half` takes problems by number; `--programs` the first N by the hash of their
names. About 2 minutes for all.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a file

from benchmarks.tables import markdown
from perfmodel.base.arrays import Floats
from perfmodel.cost.gpu.analysis import groups_of
from perfmodel.errors import PerfmodelError
from perfmodel.hardware import Device, device, from_driver_name
from perfmodel.ops.read.module import COMPILED, EAGER, Program, as_run, graph_of_program
from perfmodel.ops.rows import Rows
from perfmodel.prediction import predict
from perfmodel.prediction.explain import ModelExplainer

DATA = Path(os.environ.get("PERFMODEL_REFERENCE", "../shared/data")) / "kernelbench"
TIMED_AS = {EAGER: "eager", COMPILED: "compile_inductor_default"}
HALVES = {"even": 0, "odd": 1}
LONG_US = 1000.0
ROOFLINE_HOST_US = 8.0
HOST_FACTORS = np.geomspace(0.5, 2.0, 15)
COVERED = (0.05, 0.95)
SIXTEENTHS = (1 / 16, 15 / 16)
"""What `PASS_SPREAD` leaves below and above."""
DECIDED = (0.1, 0.6)
"""The host's share of a pass that the device decides, and of one that the host does."""


def measured(mode: str) -> pd.DataFrame:
    """A row per program and GPU: `program`, `gpu` (the driver's name), `problem`, `us`."""
    rows = pd.read_csv(DATA / "timings.csv.gz")
    kept = (rows["mode"] == TIMED_AS[mode]) & rows["problem"].str.match(r"level[123]/")
    rows = rows[kept]
    level, name = rows["problem"].str.split("/").str[0], rows["problem"].str.split("/").str[-1]
    rows = rows.assign(
        program=level + "/" + name.str.removesuffix(".py") + "." + rows["program"] + ".py",
        number=name.str.extract(r"^(\d+)", expand=False).astype(int),
        us=rows["mean_ms"] * 1e3,
    )
    return rows.groupby(["program", "gpu", "number"], as_index=False)["us"].median()


def chosen(rows: pd.DataFrame, half: str | None, count: int | None) -> pd.DataFrame:
    if half is not None:
        rows = rows[rows["number"] % 2 == HALVES[half]]
    names = sorted(set(rows["program"]), key=lambda p: hashlib.sha256(p.encode()).hexdigest())
    return rows[rows["program"].isin(names[:count])]


def roofline_us(kernels: Rows, device: Device, operators: int) -> float:
    """Each kernel at its peak or at the memory's rate, and a host of so much per operator."""
    peaks, total_us = {"fp32": device.fp32_tflop_per_s, "tf32": device.tf32_tflop_per_s}, 0.0
    for each in groups_of(kernels):
        peak = np.array([(peaks.get(d) or device.fp32_tflop_per_s) * 1e6 for d in each.dtypes])
        longest_us = np.maximum(each.flop / peak, each.moved_bytes / (device.hbm_gb_per_s * 1e3))
        total_us += float(longest_us.sum())
    return max(total_us, operators * ROOFLINE_HOST_US)


def predicted(rows: pd.DataFrame, mode: str, folder: Path) -> Iterator[dict[str, object]]:
    for program, timed in rows.groupby("program", sort=False):
        path = folder / str(program)
        if "rand_mix" in path.read_text():  # needs a helper that its harness adds to torch
            continue
        try:
            graph = as_run(graph_of_program(Program(path, "Model")), mode)
        except PerfmodelError as error:
            print(f"{program}: {error}", file=sys.stderr)
            continue
        hardware = [from_driver_name(name) for name in timed["gpu"]]
        results = predict(graph, hardware=hardware).results
        for us, result in zip(timed["us"], results, strict=True):
            operators = sum(1 for _ in graph.top_level())
            machine = device(result.hardware)
            assert isinstance(result.explainer, ModelExplainer)
            kernels = result.explainer.found.rows
            yield {
                "gpu": result.hardware,
                "kind": str(program)[:6],
                "us": us,
                "predicted_us": result.step_us,
                "device_us": min(float(result.rank.gpu_active_us), result.step_us),
                "low_us": result.low_us,
                "high_us": result.high_us,
                "roofline_us": roofline_us(kernels, machine, operators),
            }


def errors_pct(found: Floats, true: Floats) -> Floats:
    return np.abs(found / true - 1.0) * 100.0


def left_out(all_rows: pd.DataFrame, gpu: str) -> tuple[float, float]:
    """(median error, share held) on `gpu` with what the other GPUs' rows alone say."""
    own, others = all_rows[all_rows["gpu"] == gpu], all_rows[all_rows["gpu"] != gpu]

    def taken(rows: pd.DataFrame, factor: float) -> Floats:
        host = rows["predicted_us"] - rows["device_us"]
        return np.asarray(rows["device_us"] + factor * host)

    def median(factor: float) -> float:
        return float(np.median(errors_pct(taken(others, factor), others["us"].to_numpy())))

    best = min(HOST_FACTORS, key=median)
    low, high = np.quantile(others["us"] / taken(others, best), COVERED)
    ours, true = taken(own, best), own["us"].to_numpy()
    holds = (low * ours <= true) & (true <= high * ours)
    return float(np.median(errors_pct(ours, true))), float(holds.mean())


def spreads(rows: pd.DataFrame) -> tuple[Floats, Floats]:
    """Factors within which the device's and the host's times lie."""
    device_us, host_us = rows["device_us"], rows["predicted_us"] - rows["device_us"]
    host_frac = host_us / rows["predicted_us"]
    of_device = (rows["us"] / rows["predicted_us"])[host_frac < DECIDED[0]]
    of_host = ((rows["us"] - device_us) / host_us)[host_frac > DECIDED[1]]
    return of_device.quantile(SIXTEENTHS).to_numpy(), of_host.quantile(SIXTEENTHS).to_numpy()


def line(name: str, rows: pd.DataFrame, apart: tuple[float, float] | None) -> list[str]:
    true = rows["us"].to_numpy()
    error = errors_pct(rows["predicted_us"].to_numpy(), true)
    plain = errors_pct(rows["roofline_us"].to_numpy(), true)
    holds = (rows["low_us"] <= true) & (true <= rows["high_us"])

    def middle(values: Floats) -> str:
        return f"{np.median(values):.1f}" if len(values) else "-"

    is_long = true >= LONG_US
    cells = [middle(error), middle(error[is_long]), middle(error[~is_long]), middle(plain)]
    held = ["-", "-"] if apart is None else [f"{apart[0]:.1f}", f"{apart[1]:.2f}"]
    return [name, str(len(rows)), *cells, f"{holds.mean():.2f}", *held]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=TIMED_AS, default=EAGER)
    parser.add_argument("--half", choices=HALVES, help="problems of even or odd number alone")
    parser.add_argument("--programs", type=int, metavar="N", help="so many; default: all")
    options = parser.parse_args()
    if not DATA.is_dir():
        parser.error(f"no {DATA}: set PERFMODEL_REFERENCE")
    asked = chosen(measured(options.mode), options.half, options.programs)
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(DATA / "programs.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        found = pd.DataFrame(predicted(asked, options.mode, Path(folder)))
    if found.empty:
        parser.error("no program was predicted")
    lines = [
        *(line(str(gpu), rows, left_out(found, str(gpu))) for gpu, rows in found.groupby("gpu")),
        *(line(str(kind), rows, None) for kind, rows in found.groupby("kind")),
        line("all", found, None),
    ]
    head = ["", "pairs", "median %", ">= 1 ms", "< 1 ms", "roofline", "hold"]
    print(markdown([*head, "left out", "hold"], lines))
    print("spread of the device, of the host:", *spreads(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Whole steps of the collector's sequential recommender (`collect trace --model hstu`), predicted
and measured.

    python benchmarks/hstu_collector/hstu_steps.py --predict PREDICTED.csv --hardware h200-sxm
    python benchmarks/hstu_collector/hstu_steps.py --measured FOLDER --beside PREDICTED.csv

Parts are the kernels' time on the device, in microseconds: attention, products, copies from the
host, everything else.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import pandas as pd
from hstu_collector.model import PRESETS, workload_file

import perfmodel
from perfmodel.ops.families import family_of_kernel
from perfmodel.trace.columns import frame_of_rank

BATCHES = {
    "mlperf": 128,
    "equal": 256,
    "spread": 256,
    "long": 48,
    "short": 2048,
    "wide": 128,
    "narrow": 384,
}
"""Preset and batch, as docs/gpu-queue.md runs them."""
PARTS = {"attention": "attention", "matmul": "products", "memcpy_host": "copies"}


def predicted(hardware: str) -> pd.DataFrame:
    """A row per preset."""
    rows = []
    for preset, batch in BATCHES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"{preset}.toml")
            path.write_text(workload_file(preset, PRESETS[preset], batch))
            (found,) = perfmodel.predict(path, hardware=hardware).to_dict()["results"]
        parts = dict.fromkeys((*PARTS.values(), "others"), 0.0)
        for each in found["families"]:
            parts[PARTS.get(each["family"], "others")] += each["time_us"]
        shown = ("step_us", "low_us", "high_us", "gpu_active_us")
        row = {"preset": preset, "batch": batch, **{name: found[name] for name in shown}}
        rows.append(row | {f"{name}_us": time for name, time in parts.items()})
    return pd.DataFrame(rows).round(1)


def measured(folder: Path) -> pd.DataFrame:
    """A row per record in `folder`: its un-profiled step, and the parts of its profiled steps."""
    rows = []
    for path in sorted(folder.glob("hstu_*_b*.json")):
        record = json.loads(path.read_text())
        about, kineto = record["workload"], path.with_name(f"{path.stem}_kineto.json.gz")
        row = {"preset": about["preset"], "batch": about["batch_per_rank"]}
        row |= {"measured_us": record["unprofiled"]["p10_us"]}
        rows.append(row | _parts(kineto, len(record["profiled"]["step_us"])))
    return pd.DataFrame(rows)


def _parts(kineto: Path, steps: int) -> dict[str, float]:
    events = frame_of_rank(perfmodel.read(kineto).ranks[0])
    on_device = events[events["category"].isin(["kernel", "memcpy", "memset"])]
    parts = dict.fromkeys(("attention", "products", "copies", "others"), 0.0)
    for name, time in on_device.groupby("name")["duration_us"].sum().items():
        parts[_part_of(str(name))] += float(time) / steps
    return {f"measured_{name}_us": time for name, time in parts.items()}


def _part_of(name: str) -> str:
    if name.startswith("attention_"):
        return "attention"
    if "Memcpy HtoD" in name:
        return "copies"
    is_product = family_of_kernel(name) in ("matmul", "gemv") or "splitK" in name
    return "products" if is_product else "others"


def main() -> None:
    """Write predictions, or a line per preset and one of the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predict", type=Path)
    parser.add_argument("--hardware", default="h200-sxm")
    parser.add_argument("--measured", type=Path, help="folder of the collector's files")
    parser.add_argument("--beside", type=Path, help="stored predictions (default: today's)")
    chosen = parser.parse_args()
    if chosen.predict:
        predicted(chosen.hardware).to_csv(chosen.predict, index=False)
    if chosen.measured:
        known = pd.read_csv(chosen.beside) if chosen.beside else predicted(chosen.hardware)
        both = known.merge(measured(chosen.measured), on=["preset", "batch"])
        both["ratio"] = both["step_us"] / both["measured_us"]
        both["inside"] = both["measured_us"].between(both["low_us"], both["high_us"])
        print(both.round(2).to_string(index=False))
        errors = (both["ratio"] - 1.0).abs()
        print(f"{len(both)} steps: median error {100 * errors.median():.1f} %, ", end="")
        print(f"largest {100 * errors.max():.1f} %, inside {both['inside'].sum()}")


if __name__ == "__main__":
    main()

"""Kernels of sequential recommenders (`collect kernels --families hstu`), predicted and measured.

    python benchmarks/hstu_collector/hstu_kernels.py --predict PREDICTED.csv
    python benchmarks/hstu_collector/hstu_kernels.py --measured MEASURED.csv --beside PREDICTED.csv

Predictions are of every case of the family in the order in which it is measured, timed as single
calls on an H200. Errors: geometric mean of predicted over measured, and of the factor either way.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

import perfmodel
from perfmodel.collect.families import FAMILIES, Scope, informative_order
from perfmodel.ops.rows import KERNEL
from perfmodel.workload.implementations.hstu import NORM, NORM_BACKWARD

DEVICE = "h200-sxm"
SCOPE = Scope("cuda", ("bf16", "fp32"), max_bytes=8e9, max_flop=4e12)
TEXTS = ("op", "dtype", "direction", "variant", "layout", "lengths")
SHOWN = ("op", "dtype", "direction", "variant", "layout")


def predicted() -> pd.DataFrame:
    """A row per case: what tells it, and `predicted_us low_us high_us`."""
    family = FAMILIES["hstu"]
    cases = [case for _, case in informative_order({"hstu": list(family.cases(SCOPE))})]
    rows = pd.DataFrame(
        {
            "op": case.op,
            "dtype": case.dtype,
            "direction": case.direction,
            "variant": case.variant,
            **case.dims,
        }
        for case in cases
    )
    found = perfmodel.durations(_as_modelled(rows), DEVICE)
    found = found.rename(columns={"duration_us": "predicted_us"})
    return rows.join(found[["predicted_us", "low_us", "high_us"]].round(1))


def _as_modelled(rows: pd.DataFrame) -> pd.DataFrame:
    """What a workload says of its kernels and the table does not: how many sequences there are that
    end amid a block, calls of Philox, the work of a norm; and which rows only stream."""
    kinds, calls = rows["variant"], pd.Series(0.0, rows.index)
    calls[kinds.str.contains("norm_dropout|masks")] = 1 / 3
    calls[kinds == "dropout_triton"] = 1.0
    flop = rows["flop_per_element"].mask(calls > 0, 1.0)
    is_norm, is_backward = kinds.str.startswith("gated"), kinds.str.contains("backward")
    for chosen, norm in ((is_norm, NORM), (is_norm & is_backward, NORM_BACKWARD)):
        flop = flop.mask(chosen, float(norm["flop_per_element"]))
    ragged = rows["batch"].where(rows["lengths"].fillna("equal") != "equal", 0.0)
    about = {"sequences": ragged, "random": calls, "flop_per_element": flop}
    streamed = (rows["op"] == "index_select") | (kinds == "sorted")
    elements = rows["elements"].mask(streamed, rows["rows"] * rows["cols"])
    writes = rows["writes"].mask(streamed, (rows["hash_size"] / rows["rows"]).clip(upper=1.0))
    about |= {
        "op": rows["op"].mask(streamed, "elementwise"),
        "elements": elements,
        "reads": rows["reads"].mask(streamed, 1.0),
        "writes": writes.mask(rows["op"] == "index_select", 1.0),
        "flop_per_element": flop.mask(streamed, 1.0),
        "timing": rows["op"].eq("index_add").map({True: KERNEL, False: "event_single_call"}),
    }
    return rows.assign(**about)


def beside(measured: pd.DataFrame, known: pd.DataFrame) -> pd.DataFrame:
    """The rows that are in both, measured with caches emptied before."""
    keys = [name for name in known if name not in ("predicted_us", "low_us", "high_us")]
    both = [_as_text(frame, keys) for frame in (measured[measured["cache"] == "cold"], known)]
    return both[0].merge(both[1], on=keys, suffixes=("", "_known"))


def _as_text(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Keys as text, since an empty place and a number in a CSV are of several types."""
    texts = {
        key: frame[key].fillna("").astype(str)
        if key in TEXTS
        else frame[key].astype(float).map(lambda value: f"{value:.6g}")
        for key in keys
    }
    return frame.assign(**texts)


def main() -> None:
    """Write predictions, or a line per kernel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predict", type=Path)
    parser.add_argument("--measured", type=Path)
    parser.add_argument("--beside", type=Path, help="stored predictions (default: today's)")
    chosen = parser.parse_args()
    if chosen.predict:
        predicted().to_csv(chosen.predict, index=False)
    if chosen.measured:
        known = pd.read_csv(chosen.beside) if chosen.beside else predicted()
        rows = beside(pd.read_csv(chosen.measured), known)
        rows["ratio"] = np.log(rows["predicted_us"] / rows["duration_us"])
        inside = (rows["low_us"] <= rows["duration_us"]) & (rows["duration_us"] <= rows["high_us"])
        grouped = rows.assign(inside=inside, factor=rows["ratio"].abs()).groupby(list(SHOWN))
        print(f"{'kernel':66}  n  predicted/measured  factor  within")
        for name, group in grouped:
            label = " ".join(filter(None, name))
            ratio, factor = (float(np.exp(group[each].mean())) for each in ("ratio", "factor"))
            held = f"{int(group['inside'].sum())}"
            print(f"{label:66} {len(group):2}  {ratio:18.2f}  {factor:6.2f}  {held:>6}")


if __name__ == "__main__":
    main()

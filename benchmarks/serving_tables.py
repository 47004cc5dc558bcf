"""Tables of serving frameworks' kernels (ai-dynamo/aiconfigurator) in the measurement-table schema.

`python benchmarks/serving_tables.py -o FOLDER` writes what `perfmodel fit kernels --data` takes:
attention without a mask and of one query over a cache, batched products of latent attention,
rounding to fp8, layers of experts. Tables lie under PERFMODEL_REFERENCE, with their own columns.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

DATA = Path(os.environ.get("PERFMODEL_REFERENCE", "../shared/data")) / "kernels_lowprec"
FRAMEWORKS = {"SGLang": "sglang", "TRTLLM": "trtllm", "VLLM": "vllm"}
LATENT, HEAD = 512, 128
"""Sides of DeepSeek's batched products, which the table does not say."""


def encoder_attention(x: pd.DataFrame) -> pd.DataFrame:
    """No mask, as many heads of keys as of queries."""
    x = x[x["kernel_source"] != "triton"]  # doubled rows of another kernel on one board
    sizes = {"b": x["batch_size"], "s": x["isl"], "heads": x["num_heads"]}
    return x.assign(op="attention", dtype="bf16", kv_heads=x["num_heads"], causal=0, **sizes)


def decode_attention(x: pd.DataFrame) -> pd.DataFrame:
    """`dtype` is the cache's; the query's own key lies in it."""
    dtype = np.where(x["kv_cache_dtype"] == "fp8", "fp8", "bf16")
    heads = {"heads": x["num_heads"], "kv_heads": x["num_key_value_heads"]}
    window = x["window_size"].fillna(0.0)
    sizes = {"b": x["batch_size"], "s": 1, "s_kv": x["step"] + 1, "window_size": window}
    return x.assign(op="attention", dtype=dtype, causal=0, **heads, **sizes)


def mla_bmm(x: pd.DataFrame) -> pd.DataFrame:
    """Queries to the latent space, and back."""
    x = x[x["bmm_dtype"] == "bfloat16"]
    is_first = x["op_name"].str.endswith("pre")
    sides = np.where(is_first, HEAD, LATENT), np.where(is_first, LATENT, HEAD)
    sizes = {"b": x["num_heads"], "m": x["num_tokens"], "k": sides[0], "n": sides[1]}
    return x.assign(op="bmm", dtype="bf16", **sizes)


def quantise(x: pd.DataFrame) -> pd.DataFrame:
    """Rounding by a scale that is known."""
    x = x[(x["op_name"] == "scale_matrix") & (x["latency_us"] > 0.0)]
    return x.assign(op="quantise", dtype="fp8", rows=x["m"], cols=x["k"])


def moe(x: pd.DataFrame) -> pd.DataFrame:
    """On one device, in bf16, but for layers without a gate, which the op does not have."""
    is_own = (x["moe_dtype"] == "bfloat16") & (x["moe_ep_size"] == 1)
    x = x[is_own & ~x["kernel_source"].str.endswith("nongated")]
    skew = x["distribution"].str.extract(r"([\d.]+)$")[0].astype(float).fillna(0.0)
    sizes = {"tokens": x["num_tokens"], "hidden": x["hidden_size"], "experts": x["num_experts"]}
    return x.assign(
        op="moe", dtype="bf16", inter=x["inter_size"] / x["moe_tp_size"], skew=skew, **sizes
    )


TABLES: tuple[Callable[[pd.DataFrame], pd.DataFrame], ...] = (
    encoder_attention,
    decode_attention,
    mla_bmm,
    quantise,
    moe,
)


def converted(of: Callable[[pd.DataFrame], pd.DataFrame]) -> pd.DataFrame:
    """The table of that name as rows of the schema."""
    rows = pd.read_parquet(DATA / f"{of.__name__}.parquet")
    texts = rows.select_dtypes("category").columns
    rows = of(rows.astype(dict.fromkeys(texts, str)))
    rows = rows.assign(
        duration_us=rows["latency_us"],
        framework=rows["framework"].map(FRAMEWORKS),
        timing="cuda_graph_replay",
    )
    dims = "b s s_kv heads kv_heads head_dim causal window_size m n k rows cols"
    dims += " tokens hidden inter topk experts skew"
    kept = [each for each in dims.split() if each in rows]
    return rows[["op", "device", "dtype", "framework", "timing", *kept, "duration_us"]]


def write(folder: Path) -> tuple[Path, ...]:
    """Every table as a file of `folder`; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = tuple(folder / f"serving_{of.__name__}.parquet" for of in TABLES)
    for of, path in zip(TABLES, paths, strict=True):
        converted(of).reset_index(drop=True).to_parquet(path)
    return paths


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to write to")
    for written in write(parser.parse_args().output):
        print(written)

"""Settings of the software-cache figures (V5, V6), fixed before anything was predicted; `FILLED`
came after."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

REPOSITORY = "hpcaitech/CachedEmbedding, README.md: read in the repository"
MEMORY_GB = 3.75
"""Device memory allocated for the 91.1 GB of tables of Criteo Terabyte."""
CACHE_FRAC = 0.01
"""Of all rows, the most popular in steady state (its policy DATASET ranks rows by how often the
data has them). Source: its README; 70 % warmed up, full in steady state."""
DEVICE, HOST = "a100-sxm-80gb", "epyc-7543"
"""Source: its README: one A100 (80 GB) and an AMD 7543; that it is SXM, and one socket: assumed."""


@dataclass(frozen=True)
class Published:
    """One data set: iterations per second with the cache and without, values per sample."""

    workload: str
    cached_per_s: float
    plain_per_s: float
    values: int

    @property
    def slowdown(self) -> float:
        return self.plain_per_s / self.cached_per_s


PUBLISHED = {
    "terabyte": Published("cached-terabyte", 42, 45, 40),
    "kaggle": Published("cached-kaggle", 50, 81, 40),
    "avazu": Published("cached-avazu", 72, 111, 22),
}
FITTED = "kaggle"
"""TorchRec's rate on this data set gives what preparing one value of a batch takes on the host (no
worker processes: indexed and transposed in NumPy on the main thread, before each step). Avazu is
held out; of Kaggle the step with the cache is."""
STREAMED = "terabyte"
"""1.1 TB of samples on a host of 512 GB, 8 GB of them in use: read from a drive while the step
runs. TorchRec's rate is taken for the reader's; what the cached step takes beyond that is
predicted."""
CACHE_ASSUMED = (
    "skew: Zipf exponents that give the recalled concentration of accesses (1.08, Avazu 1.25)",
    "preparing a batch on the host: fitted to TorchRec's rate on Kaggle; the rate of the Terabyte "
    "reader: TorchRec's own; neither saw a rate with the cache",
    "kernels of unique, isin, topk and nonzero from their models; nothing fitted to these figures",
)

LADDER_S = {"hbm": 0.019, "caching": 0.06, "uvm": 0.62}
LADDER_SPREAD_S = {"caching": 0.37, "uvm": 5.34}
"""Seconds per epoch of ten batches, mean and standard deviation over all epochs: tables in device
memory (five largest reduced 128 times), in host memory behind a cache (reduced twice), in host
memory alone (full).

Source: pytorch/torchrec, benchmarks/README.md.
"""
LADDER_EPOCHS = 100
FILLED = {"caching": 1, "uvm": 2}
"""How often the first epoch waits for tables in host memory to be written by the device: kernels
that the module's constructor starts. FBGEMM fills them with zeros, TorchRec with random numbers;
with a cache, copies to the device wait in between, before the clock starts.

Source: FBGEMM, split_table_batched_embeddings_ops.py (`_apply_split`, `_apply_cache_state`),
TorchRec, fused_embedding_modules.py (`_init_parameters`) and ebc_benchmarks.py: read.
"""
LADDER_MACHINE = "v100-sxm2-16gb"
LADDER_BATCH, LADDER_BATCHES, LADDER_POOLING = 64, 10, 64
LADDER_LARGE_ROWS = 10_000_000
LADDER_CACHE_FRAC = 0.2
"""FBGEMM's default share of the rows in the cache."""
LADDER_REDUCED = {"hbm": 128, "caching": 2, "uvm": 1}
LADDER_FACTOR = 10**0.5
"""Order of magnitude: each within this factor."""
LADDER_ASSUMED = (
    "the random data set draws one batch and repeats it (torchrec.datasets.random, read), so a "
    "cache that holds it misses in the first step alone",
    "added after the figures were seen: the first epoch waits until the tables are filled, once or "
    "twice over the bus; that pages of host memory come to be meanwhile is left out",
)


def steady_s(rung: str) -> float:
    """Seconds of each epoch but the first, where that alone differs, by mean and spread.

    With one epoch that takes e more than the others, mean = s + e / n and spread = e sqrt(n - 1) /
    n. Two or more such epochs would leave the others less time than the rung before takes, or less
    than none.
    """
    return LADDER_S[rung] - LADDER_SPREAD_S[rung] / sqrt(LADDER_EPOCHS - 1)

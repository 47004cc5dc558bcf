"""Training of GPT on 2 to 8 A100 by `perfmodel.torch.predicting`, beside PyTorch's own estimator.

    python benchmarks/torch_estimators.py [--passes N] [--layers N]

Takes PyTorch and `$PERFMODEL_REFERENCE`. Each row of vTrain's iterations is run as a loop under
fake tensors, in a fake process group of its ranks: half precision, attention step by step with
dropout, gradients accumulated under `no_sync`, `DistributedDataParallel`, fused Adam; vocabulary
51,200. PyTorch's `RuntimeEstimator` (its roofline, with an A100's figures in place of this
machine's) runs the same pass and step; it knows no communication and no host. Nothing is fitted to
these rows. `--passes` and `--layers` leave out rows of more. Per size of a micro-batch: rows,
and of both the median error and the smallest and largest ratio to what was measured.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from unittest import mock

import pandas as pd
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # started as a file

import perfmodel.torch
from perfmodel.hardware import Device, device

ROWS = Path(os.environ.get("PERFMODEL_REFERENCE", "../shared/data")) / "parallel"
FILE = "vtrain_a100_hidden1024.csv"
MODEL = ("hidden", "heads", "layers", "seq", "micro_batch")
FIGURES = "torch.utils._runtime_estimation"
GPU, VOCABULARY, DROPOUT = "a100-sxm-80gb", 51_200, 0.1


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        split = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = (part.transpose(1, 2) for part in split.unbind(2))
        seen = F.dropout(F.softmax(q @ k.transpose(-1, -2), -1), DROPOUT)
        mixed = (seen @ v).transpose(1, 2).reshape(batch, length, hidden)
        x = x + F.dropout(self.out(mixed), DROPOUT)
        return x + F.dropout(self.down(F.gelu(self.up(self.between(x)))), DROPOUT)


class GPT(nn.Module):
    def __init__(self, hidden: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, hidden), nn.Embedding(length, hidden)
        self.blocks = nn.Sequential(*(Block(hidden, heads) for _ in range(layers)))
        self.after = nn.LayerNorm(hidden)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = F.dropout(self.words(words) + self.places.weight[: words.shape[1]], DROPOUT)
        scores = F.linear(self.after(self.blocks(x)), self.words.weight)
        return F.cross_entropy(scores.flatten(0, 1).float(), words.flatten())


def made(row: pd.Series) -> tuple[nn.Module, torch.Tensor]:
    torch.set_default_dtype(torch.half)
    try:
        model = GPT(row["hidden"], row["heads"], row["layers"], row["seq"])
    finally:
        torch.set_default_dtype(torch.float)
    return model, torch.zeros(row["micro_batch"], row["seq"], dtype=torch.int64)


def iterated(model: nn.Module, words: torch.Tensor, passes: int, optimizer: object) -> None:
    for number in range(passes):
        last = number == passes - 1
        with contextlib.nullcontext() if last else model.no_sync():
            model(words).backward()
    optimizer.step()
    optimizer.zero_grad()


@contextlib.contextmanager
def group(ranks: int) -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def ours_ms(row: pd.Series) -> float:
    passes = row["global_batch"] // (row["dp"] * row["micro_batch"])
    with group(row["dp"]), perfmodel.torch.predicting(GPU) as step:
        model, words = made(row)
        model = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        iterated(model, words, 1, optimizer)  # makes the optimizer's state
        iterated(model, words, passes, optimizer)
    return step.step_us / 1e3


@lru_cache
def torch_ms(*of_model: int) -> tuple[float, float]:
    """PyTorch's estimate of a pass of a model, and of its optimizer's step."""
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator

    row = pd.Series(dict(zip(MODEL, of_model, strict=True)))
    taken = []
    with FakeTensorMode(), mock.patch.multiple(FIGURES, **figures_of(device(GPU))):
        model, words = made(row)
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
        for run in (lambda: model(words).backward(), optimizer.step):
            estimator = RuntimeEstimator()
            with (
                contextlib.redirect_stdout(io.StringIO()),
                mock.patch("torch.cuda.is_available", return_value=True),
                estimator("operator-level-cost-model"),
            ):
                run()
            taken.append(estimator.total_runtime)
    return taken[0], taken[1]


def figures_of(gpu: Device) -> dict[str, object]:
    """What PyTorch asks of the machine's GPU."""
    words = {torch.half: "fp16", torch.bfloat16: "bf16"}
    return {
        "get_gpu_dram_gbps": lambda: gpu.hbm_gb_per_s,
        "get_device_tflops": lambda dtype: gpu.matrix_tflop_per_s(words.get(dtype)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=16)
    parser.add_argument("--layers", type=int, default=24)
    options = parser.parse_args()
    rows = pd.read_csv(ROWS / FILE)
    rows["passes"] = rows["global_batch"] // (rows["dp"] * rows["micro_batch"])
    rows = rows[(rows["passes"] <= options.passes) & (rows["layers"] <= options.layers)]
    found = []
    for _, row in rows.iterrows():
        one, step = torch_ms(*(int(row[name]) for name in MODEL))
        theirs = row["passes"] * one + step
        found.append(
            (row["micro_batch"], *(ms / row["iteration_ms"] for ms in (ours_ms(row), theirs)))
        )
        print(*row[[*MODEL, "dp", "iteration_ms"]], *found[-1], file=sys.stderr, flush=True)
    frame = pd.DataFrame(found, columns=["micro-batch", "perfmodel", "PyTorch"])
    print("| micro-batch | rows | perfmodel | PyTorch's |\n|---|---|---|---|")
    for size, group_ in frame.groupby("micro-batch"):
        told = [
            f"{(ratio - 1).abs().median():.1%} ({ratio.min():.2f} to {ratio.max():.2f})"
            for ratio in (group_["perfmodel"], group_["PyTorch"])
        ]
        print(f"| {size} | {len(group_)} | {told[0]} | {told[1]} |")


if __name__ == "__main__":
    main()

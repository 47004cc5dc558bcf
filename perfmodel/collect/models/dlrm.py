"""DLRM in plain PyTorch: `nn.EmbeddingBag`, dot interaction, SGD (Naumov et al. 2019).

Configurations are those that were published.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.base.units import BYTES_PER_GB
from perfmodel.collect.backend import Backend
from perfmodel.collect.models import MODELS, Options, Training, chosen
from perfmodel.errors import UsageError

FP32_BYTES, INT64_BYTES = 4, 8
DISTINCT_BATCHES = 8
"""Made beforehand and used in turns: a step does not find the rows of the one before in a cache."""

CRITEO_TB_ROWS = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956),
    *(405_282, 10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152),
    *(12_973, 108, 36),
)
"""Rows of the 26 Criteo Terabyte tables, capped at 40 million.

Source: MLPerf Training DLRM reference (facebookresearch/dlrm, torchrec_dlrm/README.MD).
"""


@dataclass(frozen=True)
class DlrmConfig:
    """A DLRM: MLP widths (the first of `bottom` is the number of dense features), rows of each
    table, dim, lookups per sample and table, samples per rank, skew of the indices (0: none)."""

    bottom: tuple[int, ...]
    top: tuple[int, ...]
    rows: tuple[int, ...]
    dim: int
    pooling: int
    batch: int = 512
    zipf_alpha: float = 0.0
    name: str = "small"

    @property
    def table_bytes(self) -> int:
        return sum(self.rows) * self.dim * FP32_BYTES

    @property
    def held_bytes(self) -> int:
        """About what the model holds between steps: tables, row gradients, indices of batches."""
        lookups = self.batch * self.pooling * len(self.rows)
        per_lookup = self.dim * FP32_BYTES + DISTINCT_BATCHES * INT64_BYTES
        return self.table_bytes + lookups * per_lookup


PRESETS = {
    # Source: Lin et al. 2022, owensgroup/ml_perf_model benchmark/dlrm_benchmark.sh.
    "default": DlrmConfig((512, 512, 64), (1024, 1024, 1024, 1), (1_000_000,) * 8, 64, 100),
    "mlperf": DlrmConfig((13, 512, 256, 128), (1024, 1024, 512, 256, 1), CRITEO_TB_ROWS, 128, 1),
    # The script of the DDP configuration sets no pooling: assumed 10, the reference code's limit.
    "ddp": DlrmConfig((128, 128, 128, 128), (512, 512, 512, 256, 1), (80_000,) * 8, 128, 10),
    # This project's own: realistic in kind, small enough for two CPU cores.
    "small": DlrmConfig((64, 256, 128, 64), (256, 128, 1), (100_000,) * 8, 64, 20),
    "tiny": DlrmConfig((4, 8, 4), (8, 1), (100,) * 3, 4, 2),
}


def dlrm_config(options: Options) -> DlrmConfig:
    """The preset that `options` name, with their overrides; `UsageError` when there is none."""
    name, config = chosen(PRESETS, options, "DLRM")
    return replace(
        config,
        rows=tuple(min(each, options.max_rows or each) for each in config.rows),
        pooling=options.pooling or config.pooling,
        batch=options.batch,
        zipf_alpha=options.zipf_alpha,
        name=name,
    )


def require_room(table_bytes: int, free_bytes: int) -> None:
    """Raise `UsageError` when the tables do not fit.

    Checked before anything is allocated: on a host, asking for too much ends the process.
    """
    if table_bytes > free_bytes:
        raise UsageError(
            f"the embedding tables need {table_bytes / BYTES_PER_GB:.1f} GB, and "
            f"{free_bytes / BYTES_PER_GB:.1f} GB are free: cap them with --max-rows"
        )


def zipf_indices(
    generator: np.random.Generator, rows: int, count: int, alpha: float
) -> NDArray[np.int64]:
    """`count` row numbers in `[0, rows)`, row of popularity rank r with weight `r ** -alpha`.

    `alpha` 0 is uniform. Drawn by inverting the continuous approximation of the distribution
    function, so that it costs no memory in `rows`; the popular rows are scattered over the table
    by a multiplicative permutation, as they are in a real one.
    """
    uniform = generator.random(count)
    if alpha == 0:
        ranks = uniform * rows
    elif alpha == 1:
        ranks = (rows + 1.0) ** uniform - 1
    else:
        power = 1 - alpha
        ranks = (1 + uniform * ((rows + 1.0) ** power - 1)) ** (1 / power) - 1
    integers = np.minimum(ranks.astype(np.int64), rows - 1)
    if alpha == 0:
        return integers
    permuting = max(1, int(rows * 0.6180339887))  # coprime to `rows`, near its golden ratio
    while np.gcd(permuting, rows) != 1:
        permuting += 1
    return integers * permuting % rows


LEARNING_RATE = 0.01


@MODELS.register("dlrm")
def build_dlrm(backend: Backend, options: Options) -> Training:
    """The DLRM of `options.preset` at `options.batch` samples."""
    return train_dlrm(backend, dlrm_config(options), options.seed)


def train_dlrm(backend: Backend, config: DlrmConfig, seed: int = 0) -> Training:
    described = {each.name: getattr(config, each.name) for each in fields(config)}
    described["preset"], described["batch_per_rank"] = described.pop("name"), described.pop("batch")
    description = {"model": "dlrm", "optimizer": f"SGD lr {LEARNING_RATE}", **described}
    return Training(_Dlrm(backend, config, seed).step, description)


class _Dlrm:
    """The parts of the model and its training step."""

    def __init__(self, backend: Backend, config: DlrmConfig, seed: int) -> None:
        torch, nn = backend.torch, backend.torch.nn
        torch.manual_seed(seed)
        self.backend, self.config = backend, config
        require_room(config.table_bytes, backend.free_bytes())
        pairs = len(config.rows) + 1
        top_in = config.dim + pairs * (pairs - 1) // 2
        self.bottom, self.top = (
            mlp(torch, widths, last=last).to(backend.device)
            for widths, last in ((config.bottom, "ReLU"), ((top_in, *config.top), "Sigmoid"))
        )
        self.tables = []
        for rows in config.rows:
            options_of = {"mode": "sum", "sparse": True, "device": backend.device}
            table = nn.utils.skip_init(nn.EmbeddingBag, rows, config.dim, **options_of)
            nn.init.uniform_(table.weight, -(rows**-0.5), rows**-0.5)
            self.tables.append(table)
        self.pairs = torch.tril_indices(pairs, pairs, -1, device=backend.device)
        self.loss = nn.BCELoss()
        dense = [*self.bottom.parameters(), *self.top.parameters()]
        weights = [table.weight for table in self.tables]
        self.optimizers = (
            torch.optim.SGD(dense, lr=LEARNING_RATE),
            torch.optim.SGD(weights, lr=LEARNING_RATE, foreach=False),
        )
        self.batches = self._make_batches(seed)
        self.current = [tensor.to(backend.device) for tensor in self.batches[0]]

    def _make_batches(self, seed: int) -> list[list[Any]]:
        """Per batch: dense features, labels, and one index tensor of all tables."""
        torch, config = self.backend.torch, self.config
        generator = np.random.default_rng(seed)
        lookups = config.batch * config.pooling
        batches = []
        for _ in range(DISTINCT_BATCHES):
            dense = generator.random((config.batch, config.bottom[0]), dtype=np.float32)
            labels = (generator.random((config.batch, 1)) < 0.3).astype(np.float32)
            indices = [
                zipf_indices(generator, rows, lookups, config.zipf_alpha) for rows in config.rows
            ]
            shape = (len(indices), -1, config.pooling)
            tensors = [torch.from_numpy(array) for array in (dense, labels, np.stack(indices))]
            tensors[2] = tensors[2].reshape(shape)
            batches.append([t.pin_memory() if self.backend.is_gpu else t for t in tensors])
        return batches

    def step(self, number: int) -> None:
        """One training step on batch `number`, copied into buffers that stay where they are."""
        batch = self.batches[number % len(self.batches)]
        for target, source in zip(self.current, batch, strict=True):
            target.copy_(source, non_blocking=True)
        dense, labels, indices = self.current
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        pooled = [table(indices[slot]) for slot, table in enumerate(self.tables)]
        self.loss(self._predict(dense, pooled), labels).backward()
        for optimizer in self.optimizers:
            optimizer.step()

    def _predict(self, dense: Any, pooled: list[Any]) -> Any:
        torch = self.backend.torch
        features = self.bottom(dense)
        sparse = torch.stack(pooled, dim=1)
        joined = torch.cat([features.unsqueeze(1), sparse], dim=1)
        products = torch.bmm(joined, joined.transpose(1, 2))
        flat = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([features, flat], dim=1))


def mlp(torch: Any, widths: tuple[int, ...], *, last: str) -> Any:
    """Linear layers of `widths` with ReLU between them and the activation named `last`."""
    nn = torch.nn
    layers: list[Any] = []
    for number in range(1, len(widths)):
        activation = last if number == len(widths) - 1 else "ReLU"
        layers += [nn.Linear(widths[number - 1], widths[number]), getattr(nn, activation)()]
    return nn.Sequential(*layers)

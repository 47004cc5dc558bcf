"""DLRM in plain PyTorch: `nn.EmbeddingBag`, dot interaction, SGD (Naumov et al. 2019).

With several ranks the tables are sharded table-wise (pooled all-to-all) and the MLPs are data
parallel (DDP), as in the reference implementation.
"""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import Any

import numpy as np

from perfmodel.collect.backend import Backend
from perfmodel.collect.models import MODELS, Options, Ranks, Training
from perfmodel.collect.models.configuration import (
    DlrmConfig,
    dlrm_config,
    require_room,
    zipf_indices,
)
from perfmodel.errors import UsageError

LEARNING_RATE = 0.01
DISTINCT_BATCHES = 8


@MODELS.register("dlrm")
def build_dlrm(backend: Backend, ranks: Ranks, options: Options) -> Training:
    """The DLRM of `options.preset` at `options.batch` samples per rank."""
    return train_dlrm(backend, ranks, options, dlrm_config(options))


def train_dlrm(backend: Backend, ranks: Ranks, options: Options, config: DlrmConfig) -> Training:
    """The DLRM of `config`; of `options`, the batch, skew and seed."""
    model = _Dlrm(backend, ranks, options, config)
    description = {
        "model": "dlrm",
        "preset": options.preset or "small",
        "batch_per_rank": options.batch,
        "zipf_alpha": options.zipf_alpha,
        "optimizer": f"SGD lr {LEARNING_RATE}",
        **{field.name: getattr(config, field.name) for field in fields(DlrmConfig)},
    }
    return Training(model.step, description)


class _Dlrm:
    """The parts of the model and its training step."""

    def __init__(
        self, backend: Backend, ranks: Ranks, options: Options, config: DlrmConfig
    ) -> None:
        torch, nn = backend.torch, backend.torch.nn
        torch.manual_seed(options.seed)
        self.backend, self.ranks, self.config = backend, ranks, config
        self.batch = options.batch
        self.owned = [t for t in range(len(config.rows)) if t % ranks.world == ranks.rank]
        if not self.owned:
            raise UsageError(
                f"{len(config.rows)} tables cannot be sharded over {ranks.world} ranks"
            )
        require_room(config, self.owned, backend.free_bytes())
        pairs = len(config.rows) + 1
        top_in = config.dim + pairs * (pairs - 1) // 2
        self.bottom, self.top = (
            mlp(torch, widths, last=last).to(backend.device)
            for widths, last in ((config.bottom, "ReLU"), ((top_in, *config.top), "Sigmoid"))
        )
        if ranks.world > 1:
            parallel = nn.parallel.DistributedDataParallel
            self.bottom, self.top = parallel(self.bottom), parallel(self.top)
        self.tables = []
        for rows in (config.rows[t] for t in self.owned):
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
        self.batches = self._make_batches(options)
        self.current = [tensor.to(backend.device) for tensor in self.batches[0]]

    def _make_batches(self, options: Options) -> list[list[Any]]:
        """Per batch: dense features, labels, and one index tensor of all owned tables.

        The indices of an owned table are those of the global batch, as the reference code has it.
        """
        torch, config = self.backend.torch, self.config
        generator = np.random.default_rng(options.seed + self.ranks.rank)
        lookups = self.batch * self.ranks.world * config.pooling
        batches = []
        for _ in range(DISTINCT_BATCHES):
            dense = generator.random((self.batch, config.bottom[0]), dtype=np.float32)
            labels = (generator.random((self.batch, 1)) < 0.3).astype(np.float32)
            indices = [
                zipf_indices(generator, config.rows[t], lookups, options.zipf_alpha)
                for t in self.owned
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
        sparse = self._exchange(pooled) if self.ranks.world > 1 else torch.stack(pooled, dim=1)
        joined = torch.cat([features.unsqueeze(1), sparse], dim=1)
        products = torch.bmm(joined, joined.transpose(1, 2))
        flat = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([features, flat], dim=1))

    def _exchange(self, pooled: list[Any]) -> Any:
        """All-to-all of pooled vectors: own tables, global batch -> all tables, own batch."""
        torch, world = self.backend.torch, self.ranks.world
        functional = import_module("torch.distributed.nn.functional")
        tables = len(self.config.rows)
        held = [len(range(rank, tables, world)) for rank in range(world)]
        width = self.batch * self.config.dim
        sent = torch.stack([p.reshape(world, self.batch, -1) for p in pooled], dim=1)
        received = sent.new_empty(sum(held) * width)
        exchanged = functional.all_to_all_single(
            received,
            sent.reshape(-1),
            output_split_sizes=[count * width for count in held],
            input_split_sizes=[len(pooled) * width] * world,
        )
        return exchanged.reshape(tables, self.batch, -1).transpose(0, 1)


def mlp(torch: Any, widths: tuple[int, ...], *, last: str) -> Any:
    """Linear layers of `widths` with ReLU between them and the activation named `last`."""
    nn = torch.nn
    layers: list[Any] = []
    for number in range(1, len(widths)):
        activation = last if number == len(widths) - 1 else "ReLU"
        layers += [nn.Linear(widths[number - 1], widths[number]), getattr(nn, activation)()]
    return nn.Sequential(*layers)

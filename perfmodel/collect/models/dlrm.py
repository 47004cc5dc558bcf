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
UPDATES = ("sparse", "inplace")


@MODELS.register("dlrm")
def build_dlrm(backend: Backend, ranks: Ranks, options: Options) -> Training:
    """The DLRM of `options.preset` at `options.batch` samples per rank."""
    return train_dlrm(backend, ranks, options, dlrm_config(options))


def train_dlrm(backend: Backend, ranks: Ranks, options: Options, config: DlrmConfig) -> Training:
    """The DLRM of `config`; of `options`, the batch, skew, update and seed."""
    if options.embedding_update not in UPDATES:
        raise UsageError(f"--embedding-update must be one of {', '.join(UPDATES)}")
    model = _Dlrm(backend, ranks, options, config)
    description = {
        "model": "dlrm",
        "preset": options.preset or "small",
        "batch_per_rank": options.batch,
        "zipf_alpha": options.zipf_alpha,
        "embedding_update": options.embedding_update,
        "optimizer": f"SGD lr {LEARNING_RATE}",
        **{field.name: getattr(config, field.name) for field in fields(DlrmConfig)},
    }
    captured = model.compute if model.inplace and ranks.world == 1 else None
    return Training(model.step, description, load=model.load, compute=captured)


class _Dlrm:
    """The parts of the model and its training step."""

    def __init__(
        self, backend: Backend, ranks: Ranks, options: Options, config: DlrmConfig
    ) -> None:
        torch = backend.torch
        torch.manual_seed(options.seed)
        self.backend, self.ranks, self.config = backend, ranks, config
        self.batch = options.batch
        self.inplace = options.embedding_update == "inplace"
        self.owned = [t for t in range(len(config.rows)) if t % ranks.world == ranks.rank]
        if not self.owned:
            raise UsageError(
                f"{len(config.rows)} tables cannot be sharded over {ranks.world} ranks"
            )
        require_room(config, self.owned, backend.free_bytes())
        pairs = len(config.rows) + 1
        self.bottom = self._replicate(mlp(torch, config.bottom, last="ReLU"))
        top_in = config.dim + pairs * (pairs - 1) // 2
        self.top = self._replicate(mlp(torch, (top_in, *config.top), last="Sigmoid"))
        self.tables = [self._table(config.rows[t], config.dim) for t in self.owned]
        self.pairs = torch.tril_indices(pairs, pairs, -1, device=backend.device)
        self.loss = torch.nn.BCELoss()
        self.dense_sgd = torch.optim.SGD(
            [*self.bottom.parameters(), *self.top.parameters()], lr=LEARNING_RATE
        )
        self.table_sgd = None
        if not self.inplace:
            weights = [table.weight for table in self.tables]
            self.table_sgd = torch.optim.SGD(weights, lr=LEARNING_RATE, foreach=False)
        self.batches = self._make_batches(options)
        self.current = [tensor.to(backend.device) for tensor in self.batches[0]]

    def _replicate(self, module: Any) -> Any:
        module = module.to(self.backend.device)
        if self.ranks.world == 1:
            return module
        return self.backend.torch.nn.parallel.DistributedDataParallel(module)

    def _table(self, rows: int, dim: int) -> Any:
        nn = self.backend.torch.nn
        table = nn.utils.skip_init(
            nn.EmbeddingBag,
            rows,
            dim,
            mode="sum",
            sparse=not self.inplace,
            device=self.backend.device,
        )
        nn.init.uniform_(table.weight, -(rows**-0.5), rows**-0.5)
        return table.requires_grad_(not self.inplace)

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

    def load(self, number: int) -> None:
        """Copy batch `number` to the device, into buffers that stay where they are."""
        batch = self.batches[number % len(self.batches)]
        for target, source in zip(self.current, batch, strict=True):
            target.copy_(source, non_blocking=True)

    def compute(self) -> None:
        """Forward, backward and both optimizers on the loaded batch."""
        dense, labels, indices = self.current
        self.dense_sgd.zero_grad(set_to_none=True)
        if self.table_sgd is not None:
            self.table_sgd.zero_grad(set_to_none=True)
        pooled = [table(indices[slot]) for slot, table in enumerate(self.tables)]
        if self.inplace:
            for vector in pooled:
                vector.requires_grad_()
        output = self._predict(dense, pooled)
        self.loss(output, labels).backward()
        self.dense_sgd.step()
        if self.table_sgd is not None:
            self.table_sgd.step()
        else:
            self._update_tables(pooled, indices)

    def step(self, number: int) -> None:
        """One training step on batch `number`."""
        self.load(number)
        self.compute()

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

    def _update_tables(self, pooled: list[Any], indices: Any) -> None:
        """SGD on the rows looked up, without a gradient tensor: can be captured in a graph."""
        torch, pooling = self.backend.torch, self.config.pooling
        with torch.no_grad():
            for slot, (table, vector) in enumerate(zip(self.tables, pooled, strict=True)):
                rows = vector.grad.repeat_interleave(pooling, dim=0)
                table.weight.index_add_(0, indices[slot].reshape(-1), rows, alpha=-LEARNING_RATE)


def mlp(torch: Any, widths: tuple[int, ...], *, last: str) -> Any:
    """Linear layers of `widths` with ReLU between them and the activation named `last`."""
    nn = torch.nn
    layers: list[Any] = []
    for number in range(1, len(widths)):
        activation = last if number == len(widths) - 1 else "ReLU"
        layers += [nn.Linear(widths[number - 1], widths[number]), getattr(nn, activation)()]
    return nn.Sequential(*layers)

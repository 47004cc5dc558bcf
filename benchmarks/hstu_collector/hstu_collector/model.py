"""A sequential recommender (HSTU; Zhai et al. 2024) on one GPU: rows of sequences unpooled, layers
with attention of SiLU over jagged sequences, a prediction head; PyTorch and Triton alone.

It is what perfmodel's implementation `hstu` describes, without DDP; the description of a training
holds that workload's file (`toml`). Lengths are a beta distribution's at even steps of its
probability, the same in every batch, in another order. On a CPU PyTorch's operators stand for the
kernels.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hstu_collector.cases import CONTEXT, DROPPED
from perfmodel.collect.backend import Backend
from perfmodel.collect.models import Options, Training, chosen
from perfmodel.collect.models.dlrm import FP32_BYTES, require_room

DISTINCT_BATCHES, COPIES = 8, 2
"""A batch is sent twice, as DLRMv4's reference does, from memory that is not pinned."""
DRAWS = 256
"""Lengths drawn for each one taken."""
ALIGNED = 128
"""A batch has a multiple of so many positions."""
ACTION_BITS, ACTION_DIM = 3, 8
PLACES, AGES = 8192, 2048
CONTENT_TABLES = 3
LEARNING_RATE, TABLE_RATE = 1e-3, 0.01


@dataclass(frozen=True)
class HstuConfig:
    """Sequences of `positions` on average (history and candidate) and 8 contextual rows, at most
    `longest` together; a batch has the share `unique` of different rows among its lookups.

    `rows` and `unique`: of each of three tables, and of all contextual tables together.
    """

    positions: int
    length_std: float
    longest: int
    layers: int = 3
    heads: int = 4
    head_dim: int = 128
    dim: int = 512
    hidden: int = 256
    rows: tuple[int, ...] = (2_000_000, 1_000_000, 1_000_000, 2_000_000)
    unique: tuple[float, ...] = (0.1, 0.05, 0.1, 0.5)

    def tokens(self, batch: int) -> int:
        """Positions of `batch` sequences."""
        return -(-batch * (self.positions + CONTEXT) // ALIGNED) * ALIGNED


PRESETS = {
    "mlperf": HstuConfig(2628, 350.0, 4096, unique=(0.024, 0.006, 0.015, 0.6)),
    "equal": HstuConfig(1016, 0.0, 1024),
    "spread": HstuConfig(1000, 700.0, 4096),
    "long": HstuConfig(4000, 1500.0, 8192, layers=2),
    "short": HstuConfig(150, 50.0, 512),
    "wide": HstuConfig(1500, 500.0, 4096, layers=4, heads=2, head_dim=256),
    "narrow": HstuConfig(700, 150.0, 1024, layers=6, heads=2),
    "tiny": HstuConfig(24, 8.0, 64, 2, 2, 16, 32, 16, (400, 200, 100, 80)),
}

TOML = """title = "HSTU {preset}, of perfmodel's collector"
batch = {batch}
[model]
dense_features = 2
bottom_mlp = [{dim}, {dim}]
top_mlp = [{dim}, 1]
[interaction]
kind = "cat"
[sequence]
layers = {layers}
heads = {heads}
attention_dim = {head_dim}
hidden_dim = {head_dim}
content_hidden = {hidden}
length_std = {length_std}
max_length = {longest}
unique_frac = {unique_frac}
index_dedup = true
recompute = false
[[tables]]
rows = {rows}
dim = {dim}
pooling = {positions}
[[tables]]
rows = {context_rows}
dim = {dim}
[training]
loss = "bce_with_logits"
dense_optimizer = "adam"
table_optimizer = "rowwise_adagrad"
[implementation]
name = "hstu"
precision = "bf16"
sharding = "table_wise"
"""


def workload_file(preset: str, config: HstuConfig, batch: int) -> str:
    """The workload file of perfmodel that describes `config`."""
    *unique, contextual = config.unique
    values = asdict(config) | {
        "preset": preset,
        "batch": batch,
        "rows": list(config.rows[:-1]),
        "context_rows": [config.rows[-1] // CONTEXT] * CONTEXT,
        "unique_frac": [*unique, *[contextual] * CONTEXT],
    }
    return TOML.format(**values)


def build_hstu(backend: Backend, options: Options) -> Training:
    """The model of `options.preset` at `options.batch` sequences, `mlperf` where none is named."""
    options = replace(options, preset=options.preset or "mlperf")
    preset, config = chosen(PRESETS, options, "HSTU")
    if options.max_rows:
        config = replace(config, rows=tuple(min(rows, options.max_rows) for rows in config.rows))
    model = _Hstu(backend, config, options)
    described = {"model": "hstu", "preset": preset, "batch_per_rank": options.batch}
    described |= asdict(config) | {"toml": workload_file(preset, config, options.batch)}
    return Training(model.step, described)


def lengths_of(config: HstuConfig, batch: int) -> NDArray[np.int64]:
    """Lengths of `batch` sequences, contextual positions not among them, the shortest first."""
    mean = (config.positions + CONTEXT) / config.longest
    lengths = np.full(batch, mean)
    if config.length_std:
        about = mean * (1 - mean) / (config.length_std / config.longest) ** 2 - 1
        drawn = np.random.default_rng(0).beta(mean * about, (1 - mean) * about, batch * DRAWS)
        lengths = np.sort(drawn)[DRAWS // 2 :: DRAWS]
    whole = np.maximum((lengths * config.longest).astype(np.int64) - CONTEXT, 2)
    missing = config.tokens(batch) - CONTEXT * batch - int(whole.sum())
    longer = whole[batch // 2 :]
    longer += np.diff(np.arange(len(longer) + 1) * missing // len(longer))
    return whole


class _Hstu:
    """The parts of the model and its training step."""

    def __init__(self, backend: Backend, config: HstuConfig, options: Options) -> None:
        torch = backend.torch
        torch.manual_seed(options.seed)
        self.torch, self.config, self.batch = torch, config, options.batch
        self.device = backend.device
        self.parts = import_module(f"hstu_collector.{'fused' if backend.is_gpu else 'plain'}")
        require_room(FP32_BYTES * config.dim * sum(config.rows), backend.free_bytes())
        self.modules = torch.nn.ModuleList()
        dim, gates, actions = config.dim, config.heads * config.head_dim, ACTION_BITS * ACTION_DIM
        self.tables = [self._rows(rows, dim) for rows in config.rows]
        self.states = [torch.zeros(rows, device=self.device) for rows in config.rows]
        self.actions = self._rows(1 << ACTION_BITS, actions)
        self.branches = [
            [*self._mlp(width, config.hidden, dim), self._norm(dim)]
            for width in (dim, (CONTENT_TABLES - 1) * dim, actions)
        ]
        self.candidate = [*self._mlp(CONTENT_TABLES * dim, dim, dim), self._norm(dim)]
        self.head, self.context = self._mlp(dim, dim, 1), self._linear(dim, dim)
        self.layers = [
            (
                self._norm(dim),
                self._linear(dim, 4 * gates),
                self._norm(gates),
                self._linear(3 * gates, dim, bias=False),
            )
            for _ in range(config.layers)
        ]
        positions = [torch.nn.Parameter(self._rows(rows, dim)) for rows in (PLACES, AGES)]
        self.by_place, self.by_age = positions
        self.adam = torch.optim.Adam([*self.modules.parameters(), *positions], lr=LEARNING_RATE)
        self.loss, self.seed = torch.nn.BCEWithLogitsLoss(), 1
        self.lengths = lengths_of(config, self.batch)
        self.longest = int(self.lengths[-1]) + CONTEXT
        generator = np.random.default_rng(options.seed)
        self.batches = [self._draw(generator) for _ in range(DISTINCT_BATCHES)]

    def _rows(self, rows: int, dim: int) -> Any:
        return self.torch.empty((rows, dim), device=self.device).uniform_(-0.01, 0.01)

    def _linear(self, before: int, after: int, *, bias: bool = True) -> Any:
        self.modules.append(self.torch.nn.Linear(before, after, bias=bias, device=self.device))
        return self.modules[-1]

    def _norm(self, width: int) -> Any:
        self.modules.append(self.torch.nn.LayerNorm(width, device=self.device))
        return self.modules[-1]

    def _mlp(self, *widths: int) -> list[Any]:
        before, between, after = widths
        return [self._linear(before, between), self._norm(between), self._linear(between, after)]

    def _draw(self, generator: np.random.Generator) -> tuple[Any, list[int], Any]:
        """All ids, ages, actions and labels in one tensor, the size of each part, and where each
        sequence ends.

        Of a table, ids of all histories come first, then those of the candidates."""
        config, torch = self.config, self.torch
        lengths = generator.permutation(self.lengths)
        count = int(lengths.sum())
        parts = [
            _ids(generator, rows, looked_up, frac)
            for rows, looked_up, frac in zip(
                config.rows,
                (*(count,) * CONTENT_TABLES, self.batch * CONTEXT),
                config.unique,
                strict=True,
            )
        ]
        for most in (AGES**2, 1 << ACTION_BITS, 60):
            parts.append(generator.integers(0, most, count))
        parts.append(generator.integers(0, 2, self.batch))
        values = torch.from_numpy(np.concatenate(parts).astype(np.int64))
        ends = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
        return values, [len(part) for part in parts], ends

    def step(self, number: int) -> None:
        """One training step on batch `number`."""
        values, sizes, ends = self.batches[number % DISTINCT_BATCHES]
        for _ in range(COPIES):
            sent = values.to(self.device)
        ends = ends.to(self.device)
        *ids, ages, actions, _, labels = sent.split(sizes)
        self.adam.zero_grad(set_to_none=True)
        found = [self._read(*each) for each in zip(self.tables, ids, strict=True)]
        output = self._predict(found, ends, ages, actions)
        self.loss(output, labels.float()).backward()
        self.adam.step()
        for table, state, (unique, _, rows) in zip(self.tables, self.states, found, strict=True):
            self.parts.update_rows(table, state, unique, rows.grad, TABLE_RATE)

    def _read(self, table: Any, ids: Any) -> tuple[Any, Any, Any]:
        """Different ids, where each id is among them, and their rows."""
        unique, places = self.torch.unique(ids, return_inverse=True)
        return unique, places, table.index_select(0, unique).requires_grad_()

    def _predict(self, found: list[Any], ends: Any, ages: Any, actions: Any) -> Any:
        torch, parts, config = self.torch, self.parts, self.config
        each = torch.arange(self.batch + 1, device=self.device)
        histories, longest = ends - each, self.longest
        merged, candidates = [], []
        for _, places, rows in found[:-1]:
            past = rows.index_select(0, places[: -self.batch])
            candidates.append(rows.index_select(0, places[-self.batch :]))
            merged.append(parts.join(past, candidates[-1], histories, each, longest))
        done = self.actions.index_select(0, actions)
        first, *others = merged
        given = (first, torch.cat(others, 1), done)
        x, *more = [
            self._normed(part, branch) for part, branch in zip(given, self.branches, strict=True)
        ]
        for other in more:
            x = x + other
        _, places, rows = found[-1]
        extra = _linear(rows.index_select(0, places), self.context)
        x = parts.join(extra, x, each * CONTEXT, ends, longest)
        ends = ends + each * CONTEXT
        x = parts.add_positions(x, ages, self.by_place, self.by_age, ends, longest)
        x = torch.nn.functional.dropout(x, DROPPED)
        for before, uvqk, between, out in self.layers:
            normed = parts.norm(x, before.weight, before.bias, False)
            u, attended = parts.attend(_linear(normed, uvqk), ends, longest, config.heads)
            self.seed += 2  # never a number for which Triton compiles anew
            joined = parts.gate(u, attended, between.weight, between.bias, self.seed)
            x = _linear(joined, out) + x
        _, last = parts.split(x, ends - each, each, longest)
        both = last * self._normed(torch.cat(candidates, 1), self.candidate)
        return self._normed(both, self.head).float().squeeze(1)

    def _normed(self, x: Any, mlp: list[Any]) -> Any:
        """Linear, gated norm, linear, and a norm where there is one."""
        first, between, second, *last = mlp
        x = self.parts.norm(_linear(x, first), between.weight, between.bias, True)
        x = _linear(x, second)
        return self.parts.norm(x, last[0].weight, last[0].bias, False) if last else x


def _linear(x: Any, layer: Any) -> Any:
    """In bf16."""
    bias = None if layer.bias is None else layer.bias.bfloat16()
    return import_module("torch.nn.functional").linear(x.bfloat16(), layer.weight.bfloat16(), bias)


def _ids(generator: np.random.Generator, rows: int, count: int, frac: float) -> NDArray[np.int64]:
    """`count` row numbers below `rows`, `frac * count` of them different where so many exist."""
    unique = min(max(1, round(frac * count)), rows)
    different = generator.choice(rows, unique, replace=False)
    repeats = generator.choice(different, count - unique)
    return generator.permutation(np.concatenate([different, repeats]))

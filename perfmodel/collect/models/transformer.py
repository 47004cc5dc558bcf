"""A transformer encoder that predicts tokens, built of PyTorch's own layers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from perfmodel.collect.backend import Backend
from perfmodel.collect.models import MODELS, Options, Ranks, Training, chosen

LEARNING_RATE = 1e-4
DISTINCT_BATCHES = 4


class TransformerConfig(NamedTuple):
    """Layers, model width, heads, feed-forward width, sequence length, vocabulary."""

    layers: int
    width: int
    heads: int
    hidden: int
    sequence: int
    vocabulary: int


PRESETS = {
    "base": TransformerConfig(12, 768, 12, 3072, 512, 30_000),
    "small": TransformerConfig(4, 256, 4, 1024, 128, 10_000),
    "mini": TransformerConfig(2, 64, 4, 256, 32, 1_000),
    "tiny": TransformerConfig(1, 16, 2, 32, 8, 50),
}


@MODELS.register("transformer")
def build_transformer(backend: Backend, ranks: Ranks, options: Options) -> Training:
    """The transformer of `options.preset` with `options.batch` sequences per rank, under AdamW."""
    name, config = chosen(PRESETS, options, "transformer")
    torch, nn = backend.torch, backend.torch.nn
    torch.manual_seed(options.seed)
    layers = [
        nn.TransformerEncoderLayer(
            config.width, config.heads, config.hidden, dropout=0.0, batch_first=True
        )
        for _ in range(config.layers)
    ]
    head = nn.Linear(config.width, config.vocabulary)
    model: Any = nn.Sequential(nn.Embedding(config.vocabulary, config.width), *layers, head)
    model = model.to(backend.device)
    if ranks.world > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    loss = nn.CrossEntropyLoss()
    generator = np.random.default_rng(options.seed + ranks.rank)
    shape = (DISTINCT_BATCHES, options.batch, config.sequence + 1)
    tokens = torch.from_numpy(generator.integers(0, config.vocabulary, shape))

    def step(number: int) -> None:
        batch = tokens[number % DISTINCT_BATCHES].to(backend.device)
        optimizer.zero_grad(set_to_none=True)
        logits = model(batch[:, :-1])
        loss(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step()

    description = {
        "model": "transformer",
        "preset": name,
        "batch_per_rank": options.batch,
        "optimizer": f"AdamW lr {LEARNING_RATE}",
        **config._asdict(),
    }
    return Training(step, description)

"""Models to trace that are no recommenders, a plug-in of `python -m perfmodel.collect`: a residual
network for images, and a transformer encoder of tokens. Nothing is installed; from a checkout:

    PYTHONPATH=benchmarks/reference_models python -m perfmodel.collect trace --model resnet
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from perfmodel.collect.backend import Backend
from perfmodel.collect.models import Options, Training, chosen

RESNET_LEARNING_RATE = 0.01
CLASSES = 1000


class ResnetConfig(NamedTuple):
    """Side of the images in pixels, channels of each stage, basic blocks per stage."""

    image: int
    channels: tuple[int, ...]
    blocks: int


RESNET_PRESETS = {
    "resnet18": ResnetConfig(224, (64, 128, 256, 512), 2),
    "small": ResnetConfig(64, (16, 32, 64), 2),
    "mini": ResnetConfig(32, (8, 16), 2),
    "tiny": ResnetConfig(16, (4, 8), 1),
}


def build_resnet(backend: Backend, options: Options) -> Training:
    """The residual network of `options.preset` with `options.batch` images."""
    name, config = chosen(RESNET_PRESETS, options, "resnet")
    torch, nn = backend.torch, backend.torch.nn
    torch.manual_seed(options.seed)
    model = _network(nn, config).to(backend.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=RESNET_LEARNING_RATE, momentum=0.9)
    loss = nn.CrossEntropyLoss()
    images = torch.randn(options.batch, 3, config.image, config.image)
    labels = torch.randint(0, CLASSES, (options.batch,))

    def step(number: int) -> None:
        inputs, targets = images.to(backend.device), labels.to(backend.device)
        optimizer.zero_grad(set_to_none=True)
        loss(model(inputs), targets).backward()
        optimizer.step()

    description = {
        "model": "resnet",
        "preset": name,
        "batch_per_rank": options.batch,
        "optimizer": f"SGD lr {RESNET_LEARNING_RATE} momentum 0.9",
        **config._asdict(),
    }
    return Training(step, description)


def _network(nn: Any, config: ResnetConfig) -> Any:
    """Stem, stages of residual blocks (the first of a later stage halves the image), head."""
    first, last = config.channels[0], config.channels[-1]
    parts = [*_convolution(nn, 3, first, stride=2), nn.ReLU()]
    width = first
    for stage, channels in enumerate(config.channels):
        for block in range(config.blocks):
            stride = 2 if stage and not block else 1
            parts += [_residual_block(nn, width, channels, stride), nn.ReLU()]
            width = channels
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, CLASSES)]
    return nn.Sequential(*parts, *head)


def _residual_block(nn: Any, wide_in: int, wide_out: int, stride: int) -> Any:
    """Two convolutions and the shortcut around them."""
    body = nn.Sequential(
        *_convolution(nn, wide_in, wide_out, stride=stride),
        nn.ReLU(),
        *_convolution(nn, wide_out, wide_out, stride=1),
    )
    same = wide_in == wide_out and stride == 1
    short = nn.Identity() if same else nn.Conv2d(wide_in, wide_out, 1, stride=stride, bias=False)
    block = nn.ModuleList([body, short])
    block.forward = lambda inputs: body(inputs) + short(inputs)
    return block


def _convolution(nn: Any, wide_in: int, wide_out: int, *, stride: int) -> list[Any]:
    return [
        nn.Conv2d(wide_in, wide_out, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(wide_out),
    ]


TRANSFORMER_LEARNING_RATE = 1e-4
TRANSFORMER_BATCHES = 4


class TransformerConfig(NamedTuple):
    """Layers, model width, heads, feed-forward width, sequence length, vocabulary."""

    layers: int
    width: int
    heads: int
    hidden: int
    sequence: int
    vocabulary: int


TRANSFORMER_PRESETS = {
    "base": TransformerConfig(12, 768, 12, 3072, 512, 30_000),
    "small": TransformerConfig(4, 256, 4, 1024, 128, 10_000),
    "mini": TransformerConfig(2, 64, 4, 256, 32, 1_000),
    "tiny": TransformerConfig(1, 16, 2, 32, 8, 50),
}


def build_transformer(backend: Backend, options: Options) -> Training:
    """The transformer of `options.preset` with `options.batch` sequences, under AdamW."""
    name, config = chosen(TRANSFORMER_PRESETS, options, "transformer")
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
    optimizer = torch.optim.AdamW(model.parameters(), lr=TRANSFORMER_LEARNING_RATE)
    loss = nn.CrossEntropyLoss()
    generator = np.random.default_rng(options.seed)
    shape = (TRANSFORMER_BATCHES, options.batch, config.sequence + 1)
    tokens = torch.from_numpy(generator.integers(0, config.vocabulary, shape))

    def step(number: int) -> None:
        batch = tokens[number % TRANSFORMER_BATCHES].to(backend.device)
        optimizer.zero_grad(set_to_none=True)
        logits = model(batch[:, :-1])
        loss(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step()

    description = {
        "model": "transformer",
        "preset": name,
        "batch_per_rank": options.batch,
        "optimizer": f"AdamW lr {TRANSFORMER_LEARNING_RATE}",
        **config._asdict(),
    }
    return Training(step, description)

"""A small residual network for images: basic blocks, batch norm, SGD with momentum."""

from __future__ import annotations

from typing import Any, NamedTuple

from perfmodel.collect.backend import Backend
from perfmodel.collect.models import MODELS, Options, Ranks, Training, chosen

LEARNING_RATE = 0.01
CLASSES = 1000


class ResnetConfig(NamedTuple):
    """Side of the images in pixels, channels of each stage, basic blocks per stage."""

    image: int
    channels: tuple[int, ...]
    blocks: int


PRESETS = {
    "resnet18": ResnetConfig(224, (64, 128, 256, 512), 2),
    "small": ResnetConfig(64, (16, 32, 64), 2),
    "mini": ResnetConfig(32, (8, 16), 2),
    "tiny": ResnetConfig(16, (4, 8), 1),
}


@MODELS.register("resnet")
def build_resnet(backend: Backend, ranks: Ranks, options: Options) -> Training:
    """The residual network of `options.preset` with `options.batch` images per rank."""
    name, config = chosen(PRESETS, options, "resnet")
    torch, nn = backend.torch, backend.torch.nn
    torch.manual_seed(options.seed + ranks.rank)
    model = _network(nn, config).to(backend.device)
    if ranks.world > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
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
        "optimizer": f"SGD lr {LEARNING_RATE} momentum 0.9",
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
            parts += [_residual(nn, width, channels, stride), nn.ReLU()]
            width = channels
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, CLASSES)]
    return nn.Sequential(*parts, *head)


def _residual(nn: Any, wide_in: int, wide_out: int, stride: int) -> Any:
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

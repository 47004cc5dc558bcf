"""The functions that give columns, by the name that model files carry."""

from __future__ import annotations

from perfmodel.kernels.learned import matmul_columns, other_columns, stream_columns
from perfmodel.kernels.learned.columns import Build

BUILDS: dict[str, Build] = {
    "matmul": matmul_columns.build,
    "stream": stream_columns.build,
    "convolution": other_columns.convolutions,
    "attention": other_columns.attentions,
}
BUILD_OF_FAMILY = {
    "matmul": "matmul",
    "vector": "stream",
    "convolution": "convolution",
    "attention": "attention",
}

FALLING = {"matmul": matmul_columns.FALLING}
"""Per build, figures in which the time over its base never rises."""

GAINS = {"matmul": matmul_columns.ALIGNED}
"""Per build, the figure whose effect is a slope of its own per op and device: its large values,
which programs ask about, are rare in measurements of random sizes."""

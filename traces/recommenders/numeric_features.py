"""Dense features as pipelines prepare them: logarithms, clipping, buckets, periodic embeddings."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features, buckets, dim):
        super().__init__()
        self.register_buffer("edges", torch.linspace(0, 10, buckets))
        self.table = nn.Embedding(buckets + 1, dim)
        self.frequencies = nn.Parameter(torch.rand(features, 8))
        self.norm = nn.LayerNorm(features * 16)
        self.out = nn.Linear(features * (16 + dim), 256)

    def forward(self, x):
        x = torch.log1p(x.clamp(min=0))
        bucketed = self.table(torch.bucketize(x, self.edges)).flatten(1)
        angles = x.unsqueeze(2) * self.frequencies * 6.2832
        periodic = self.norm(torch.cat([angles.sin(), angles.cos()], 2).flatten(1))
        return self.out(torch.cat([bucketed, periodic], 1))


def get_init_inputs():
    return [64, 127, 8]


def get_inputs():
    return [torch.rand(16384, 64) * 1000]

"""Wukong: three layers of factorisation machines and linear compression over 64 embeddings."""

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, count, dim, rank):
        super().__init__()
        self.project = nn.Parameter(torch.rand(count, rank))
        self.norm = nn.LayerNorm(count * rank)
        self.deep = nn.Sequential(nn.Linear(count * rank, 1024), nn.ReLU(), nn.Linear(1024, count // 2 * dim))
        self.compress = nn.Parameter(torch.rand(count // 2, count))
        self.last = nn.LayerNorm(dim)

    def forward(self, x):
        products = torch.bmm(x, x.transpose(1, 2) @ self.project)
        crossed = self.deep(self.norm(products.flatten(1))).view(len(x), -1, x.shape[2])
        return self.last(torch.cat([crossed, self.compress @ x], 1) + x)


class Model(nn.Module):
    def __init__(self, count, dim, rank):
        super().__init__()
        self.layers = nn.Sequential(*(Layer(count, dim, rank) for _ in range(3)))
        self.out = nn.Linear(count * dim, 1)

    def forward(self, x):
        return self.out(self.layers(x).flatten(1))


def get_init_inputs():
    return [64, 128, 24]


def get_inputs():
    return [torch.rand(2048, 64, 128)]

"""DeepFM: one table of all fields, a factorisation machine beside an MLP."""

import torch
from torch import nn


def mlp(*widths):
    layers = []
    for wide, next_ in zip(widths, widths[1:]):
        layers += [nn.Linear(wide, next_), nn.ReLU()]
    return nn.Sequential(*layers)


class Model(nn.Module):
    def __init__(self, fields, rows, dim):
        super().__init__()
        self.linear = nn.Embedding(rows, 1)
        self.table = nn.Embedding(rows, dim)
        self.deep = mlp(fields * dim, 400, 400, 400)
        self.out = nn.Linear(400, 1)

    def forward(self, ids):
        x = self.table(ids)
        second = 0.5 * (x.sum(1) ** 2 - (x**2).sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(self.linear(ids).sum(1) + second + self.out(self.deep(x.flatten(1))))


def get_init_inputs():
    return [39, 2_000_000, 16]


def get_inputs():
    return [torch.randint(0, 2_000_000, (8192, 39))]

"""Neural factorisation machine with batch norms."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        self.table = nn.Embedding(rows, dim)
        self.norm = nn.BatchNorm1d(dim)
        self.deep = nn.Sequential(nn.Linear(dim, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 1))

    def forward(self, ids):
        x = self.table(ids)
        return self.deep(self.norm(0.5 * (x.sum(1) ** 2 - (x * x).sum(1))))


def get_init_inputs():
    return [3_000_000, 64]


def get_inputs():
    return [torch.randint(0, 3_000_000, (16384, 39))]

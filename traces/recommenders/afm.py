"""Attentional factorisation machine: weighted products of all pairs of 24 fields."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, fields, rows, dim):
        super().__init__()
        self.table = nn.Embedding(rows, dim)
        first, second = torch.triu_indices(fields, fields, 1)
        self.register_buffer("first", first)
        self.register_buffer("second", second)
        self.attention = nn.Sequential(nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, 1))
        self.out = nn.Linear(dim, 1)

    def forward(self, ids):
        x = self.table(ids)
        pairs = x[:, self.first] * x[:, self.second]
        weights = torch.softmax(self.attention(pairs), dim=1)
        return torch.sigmoid(self.out((weights * pairs).sum(1)))


def get_init_inputs():
    return [24, 500_000, 32]


def get_inputs():
    return [torch.randint(0, 500_000, (2048, 24))]

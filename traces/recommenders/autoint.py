"""AutoInt: three layers of attention over 39 fields."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, fields, rows, dim, heads):
        super().__init__()
        self.table = nn.Embedding(rows, dim)
        self.layers = nn.ModuleList(nn.MultiheadAttention(dim, heads, batch_first=True) for _ in range(3))
        self.out = nn.Linear(fields * dim, 1)

    def forward(self, ids):
        x = self.table(ids)
        for layer in self.layers:
            x = torch.relu(layer(x, x, x, need_weights=False)[0] + x)
        return torch.sigmoid(self.out(x.flatten(1)))


def get_init_inputs():
    return [39, 1_000_000, 64, 2]


def get_inputs():
    return [torch.randint(0, 1_000_000, (4096, 39))]

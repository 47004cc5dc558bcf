"""DLRM: pooled tables, products of all pairs, batch 4,096."""

import torch
from torch import nn


def mlp(*widths):
    layers = []
    for wide, next_ in zip(widths, widths[1:]):
        layers += [nn.Linear(wide, next_), nn.ReLU()]
    return nn.Sequential(*layers)


class Model(nn.Module):
    def __init__(self, dense, fields, rows, dim):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum") for _ in range(fields))
        self.bottom = mlp(dense, 512, 256, dim)
        first, second = torch.tril_indices(fields + 1, fields + 1, -1)
        self.register_buffer("first", first)
        self.register_buffer("second", second)
        self.top = mlp(dim + len(first), 1024, 512, 256)
        self.out = nn.Linear(256, 1)

    def forward(self, dense, ids):
        x = self.bottom(dense)
        rows = torch.stack([x] + [table(ids[:, i]) for i, table in enumerate(self.tables)], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))[:, self.first, self.second]
        return torch.sigmoid(self.out(self.top(torch.cat([x, products], 1))))


def get_init_inputs():
    return [13, 26, 100_000, 64]


def get_inputs():
    return [torch.rand(4096, 13), torch.randint(0, 100_000, (4096, 26, 10))]

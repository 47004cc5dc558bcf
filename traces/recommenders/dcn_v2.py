"""DCN-v2: three full cross layers beside a deep tower."""

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
        self.tables = nn.ModuleList(nn.Embedding(rows, dim) for _ in range(fields))
        width = dense + fields * dim
        self.crosses = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.deep = mlp(width, 1024, 512, 256)
        self.out = nn.Linear(width + 256, 1)

    def forward(self, dense, ids):
        start = torch.cat([dense] + [table(ids[:, i]) for i, table in enumerate(self.tables)], 1)
        x = start
        for cross in self.crosses:
            x = start * cross(x) + x
        return torch.sigmoid(self.out(torch.cat([x, self.deep(start)], 1)))


def get_init_inputs():
    return [13, 26, 100_000, 32]


def get_inputs():
    return [torch.rand(8192, 13), torch.randint(0, 100_000, (8192, 26))]

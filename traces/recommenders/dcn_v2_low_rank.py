"""DCN-v2 in the manner of MLPerf: low-rank crosses of pooled tables, batch 16,384."""

import torch
from torch import nn


def mlp(*widths):
    layers = []
    for wide, next_ in zip(widths, widths[1:]):
        layers += [nn.Linear(wide, next_), nn.ReLU()]
    return nn.Sequential(*layers)


class Model(nn.Module):
    def __init__(self, dense, fields, rows, dim, rank):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum") for _ in range(fields))
        width = (fields + 1) * dim
        self.bottom = mlp(dense, 512, 256, dim)
        self.down = nn.ModuleList(nn.Linear(width, rank, bias=False) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(rank, width) for _ in range(3))
        self.top = mlp(width, 1024, 1024, 512, 256)
        self.out = nn.Linear(256, 1)

    def forward(self, dense, ids):
        pooled = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        start = torch.cat([self.bottom(dense)] + pooled, 1)
        x = start
        for down, up in zip(self.down, self.up):
            x = start * up(down(x)) + x
        return self.out(self.top(x))


def get_init_inputs():
    return [13, 26, 200_000, 128, 512]


def get_inputs():
    return [torch.rand(16384, 13), torch.randint(0, 200_000, (16384, 26, 4))]

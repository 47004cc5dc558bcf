"""Product network: inner products of 26 fields beside the fields themselves."""

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
        self.tables = nn.ModuleList(nn.Embedding(rows, dim) for _ in range(fields))
        self.top = mlp(fields * dim + fields * fields, 1024, 512)
        self.out = nn.Linear(512, 1)

    def forward(self, ids):
        x = torch.stack([table(column) for table, column in zip(self.tables, ids.unbind(1))], 1)
        products = torch.matmul(x, x.transpose(1, 2))
        return self.out(self.top(torch.cat([x.flatten(1), products.flatten(1)], 1)))


def get_init_inputs():
    return [26, 50_000, 48]


def get_inputs():
    return [torch.randint(0, 50_000, (4096, 26))]

"""FiBiNET: fields weighted by squeeze and excitation, bilinear products of pairs."""

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
        self.table = nn.Embedding(rows, dim)
        self.squeeze = nn.Sequential(nn.Linear(fields, fields // 3), nn.ReLU(), nn.Linear(fields // 3, fields), nn.ReLU())
        self.bilinear = nn.Linear(dim, dim, bias=False)
        first, second = torch.triu_indices(fields, fields, 1)
        self.register_buffer("first", first)
        self.register_buffer("second", second)
        self.top = mlp(2 * len(first) * dim, 400, 400)
        self.out = nn.Linear(400, 1)

    def products(self, x):
        return (self.bilinear(x)[:, self.first] * x[:, self.second]).flatten(1)

    def forward(self, ids):
        x = self.table(ids)
        weighted = x * self.squeeze(x.mean(2)).unsqueeze(2)
        return self.out(self.top(torch.cat([self.products(x), self.products(weighted)], 1)))


def get_init_inputs():
    return [24, 1_000_000, 16]


def get_inputs():
    return [torch.randint(0, 1_000_000, (4096, 24))]

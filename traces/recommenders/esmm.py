"""ESMM: two towers over shared tables, the product of their probabilities."""

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
        self.click = mlp(fields * dim, 360, 200, 80)
        self.buy = mlp(fields * dim, 360, 200, 80)
        self.out = nn.ModuleList([nn.Linear(80, 1), nn.Linear(80, 1)])

    def forward(self, ids):
        x = self.table(ids).flatten(1)
        click = torch.sigmoid(self.out[0](self.click(x)))
        return click, click * torch.sigmoid(self.out[1](self.buy(x)))


def get_init_inputs():
    return [23, 5_000_000, 18]


def get_inputs():
    return [torch.randint(0, 5_000_000, (16384, 23))]

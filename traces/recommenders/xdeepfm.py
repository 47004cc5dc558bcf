"""xDeepFM: compressed interactions of 26 fields."""

import torch
from torch import nn


def mlp(*widths):
    layers = []
    for wide, next_ in zip(widths, widths[1:]):
        layers += [nn.Linear(wide, next_), nn.ReLU()]
    return nn.Sequential(*layers)


class Model(nn.Module):
    def __init__(self, fields, rows, dim, maps):
        super().__init__()
        self.table = nn.Embedding(rows, dim)
        self.layers = nn.ModuleList([nn.Conv1d(fields * fields, maps, 1), nn.Conv1d(fields * maps, maps, 1)])
        self.deep = mlp(fields * dim, 400, 400)
        self.out = nn.Linear(2 * maps + 400, 1)

    def forward(self, ids):
        start = self.table(ids)
        x, found = start, []
        for layer in self.layers:
            outer = torch.einsum("bhd,bmd->bhmd", x, start).flatten(1, 2)
            x = torch.relu(layer(outer))
            found.append(x.sum(2))
        return self.out(torch.cat(found + [self.deep(start.flatten(1))], 1))


def get_init_inputs():
    return [26, 1_000_000, 16, 100]


def get_inputs():
    return [torch.randint(0, 1_000_000, (2048, 26))]

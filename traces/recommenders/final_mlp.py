"""FinalMLP: two gated streams, fused by a bilinear product per head."""

import torch
from torch import nn


def mlp(*widths):
    layers = []
    for wide, next_ in zip(widths, widths[1:]):
        layers += [nn.Linear(wide, next_), nn.ReLU()]
    return nn.Sequential(*layers)


class Model(nn.Module):
    def __init__(self, fields, rows, dim, heads):
        super().__init__()
        self.heads = heads
        self.table = nn.Embedding(rows, dim)
        width = fields * dim
        self.gates = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 256), nn.ReLU(), nn.Linear(256, width), nn.Sigmoid()) for _ in range(2)
        )
        self.streams = nn.ModuleList([mlp(width, 800, 400), mlp(width, 400, 400)])
        self.fused = nn.Parameter(torch.rand(heads, 400 // heads, 400 // heads))

    def forward(self, ids):
        x = self.table(ids)
        flat = x.flatten(1)
        one = self.streams[0](flat * 2 * self.gates[0](x[:, 0])).unflatten(1, (self.heads, -1))
        two = self.streams[1](flat * 2 * self.gates[1](x[:, 1])).unflatten(1, (self.heads, -1))
        return torch.einsum("bhi,hij,bhj->b", one, self.fused, two)


def get_init_inputs():
    return [39, 1_000_000, 20, 8]


def get_inputs():
    return [torch.randint(0, 1_000_000, (8192, 39))]

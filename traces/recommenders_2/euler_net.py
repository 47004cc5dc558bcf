"""EulerNet: 30 fields as complex numbers, whose orders of products are sums of logarithms and angles."""

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, fields, dim, orders):
        super().__init__()
        self.orders, self.norm = nn.Linear(fields, orders, bias=False), nn.LayerNorm([orders, dim])
        self.plain = nn.Linear(fields * dim, orders * dim)

    def forward(self, real, imaginary):
        angle = self.orders(torch.atan2(imaginary, real).mT).mT
        size = self.orders(0.5 * torch.log(real**2 + imaginary**2 + 1e-8).mT).mT.exp()
        parts = (real, size * torch.cos(angle)), (imaginary, size * torch.sin(angle))
        return [self.norm(new + torch.relu(self.plain(old.flatten(1))).view_as(new)) for old, new in parts]


class Model(nn.Module):
    def __init__(self, ids, fields, dim, orders):
        super().__init__()
        self.table = nn.Embedding(ids, dim)
        self.phase = nn.Parameter(torch.ones(1, fields, dim))
        self.layers = nn.ModuleList([Layer(fields, dim, orders), Layer(orders, dim, orders)])
        self.out = nn.Linear(2 * orders * dim, 1)

    def forward(self, ids):
        x = self.table(ids)
        parts = [self.phase * torch.cos(x), self.phase * torch.sin(x)]
        for layer in self.layers:
            parts = layer(*parts)
        return torch.sigmoid(self.out(torch.cat(parts, 1).flatten(1)))


def get_init_inputs():
    return [2_000_000, 30, 16, 24]


def get_inputs():
    return [torch.randint(0, 2_000_000, (6144, 30))]

"""GDCN: cross layers with gates."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.crosses = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.gates = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.out = nn.Linear(width, 1)

    def forward(self, start):
        x = start
        for cross, gate in zip(self.crosses, self.gates):
            x = start * cross(x) * torch.sigmoid(gate(x)) + x
        return self.out(x)


def get_init_inputs():
    return [624, 4]


def get_inputs():
    return [torch.rand(16384, 624)]

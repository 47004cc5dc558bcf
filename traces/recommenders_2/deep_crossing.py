"""Deep Crossing: projected fields and five residual units of ReLU, in fp16, batch 8,192."""

import torch
from torch import nn


class Unit(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.first = nn.Linear(width, hidden)
        self.second = nn.Linear(hidden, width)

    def forward(self, x):
        return torch.relu(x + self.second(torch.relu(self.first(x))))


class Model(nn.Module):
    def __init__(self, sparse, wide, units):
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(size, 128) for size in sparse)
        width = 128 * len(sparse)
        self.units = nn.Sequential(*(Unit(width, wide) for _ in range(units)))
        self.out = nn.Linear(width, 1)
        self.half()

    def forward(self, *fields):
        x = [torch.relu(project(field)) for project, field in zip(self.projections, fields)]
        return torch.sigmoid(self.out(self.units(torch.cat(x, 1))))


def get_init_inputs():
    return [(512, 512, 256, 128, 1024, 64), 1024, 5]


def get_inputs():
    return [torch.empty(8192, size).uniform_().half() for size in get_init_inputs()[0]]

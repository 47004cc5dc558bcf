"""PLE: two levels of shared and specific experts for two tasks."""

import torch
from torch import nn


def mlp(*widths):
    layers = []
    for wide, next_ in zip(widths, widths[1:]):
        layers += [nn.Linear(wide, next_), nn.ReLU()]
    return nn.Sequential(*layers)


class Level(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.experts = nn.ModuleList(nn.ModuleList(mlp(width, out) for _ in range(2)) for _ in range(3))
        self.gates = nn.ModuleList([nn.Linear(width, 4), nn.Linear(width, 4), nn.Linear(width, 6)])

    def forward(self, first, second, shared):
        made = [[expert(x) for expert in group] for group, x in zip(self.experts, (first, second, shared))]
        found = []
        for gate, x, among in zip(self.gates, (first, second, shared), (made[0] + made[2], made[1] + made[2], sum(made, []))):
            weights = torch.softmax(gate(x), 1).unsqueeze(2)
            found.append((torch.stack(among, 1) * weights).sum(1))
        return found


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.levels = nn.ModuleList([Level(width, 256), Level(256, 128)])
        self.towers = nn.ModuleList([nn.Linear(128, 1), nn.Linear(128, 1)])

    def forward(self, x):
        x = [x, x, x]
        for level in self.levels:
            x = level(*x)
        return [torch.sigmoid(tower(part)) for tower, part in zip(self.towers, x)]


def get_init_inputs():
    return [512]


def get_inputs():
    return [torch.rand(8192, 512)]

"""MMoE: eight experts, gates of three tasks."""

import torch
from torch import nn


def mlp(*widths):
    layers = []
    for wide, next_ in zip(widths, widths[1:]):
        layers += [nn.Linear(wide, next_), nn.ReLU()]
    return nn.Sequential(*layers)


class Model(nn.Module):
    def __init__(self, width, experts, tasks):
        super().__init__()
        self.experts = nn.ModuleList(mlp(width, 512, 256) for _ in range(experts))
        self.gates = nn.ModuleList(nn.Linear(width, experts) for _ in range(tasks))
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1)) for _ in range(tasks))

    def forward(self, x):
        outs = torch.stack([expert(x) for expert in self.experts], 1)
        found = []
        for gate, tower in zip(self.gates, self.towers):
            mixed = torch.bmm(torch.softmax(gate(x), 1).unsqueeze(1), outs).squeeze(1)
            found.append(torch.sigmoid(tower(mixed)))
        return torch.cat(found, 1)


def get_init_inputs():
    return [499, 8, 3]


def get_inputs():
    return [torch.rand(8192, 499)]

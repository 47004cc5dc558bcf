"""DIEN: a GRU over 50 clicks, attention by the target, a second GRU."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, items, dim):
        super().__init__()
        self.items = nn.Embedding(items, dim)
        self.interest = nn.GRU(dim, dim, batch_first=True)
        self.evolution = nn.GRU(dim, dim, batch_first=True)
        self.attention = nn.Linear(dim, dim, bias=False)
        self.top = nn.Sequential(nn.Linear(3 * dim, 200), nn.PReLU(), nn.Linear(200, 80), nn.PReLU(), nn.Linear(80, 2))

    def forward(self, history, target):
        x, goal = self.items(history), self.items(target)
        states = self.interest(x)[0]
        weights = torch.softmax(torch.einsum("bld,bd->bl", states, self.attention(goal)), 1)
        last = self.evolution(states * weights[..., None])[1][0]
        return torch.log_softmax(self.top(torch.cat([last, goal, x.mean(1)], 1)), 1)


def get_init_inputs():
    return [400_000, 64]


def get_inputs():
    return [torch.randint(0, 400_000, (512, 50)), torch.randint(0, 400_000, (512,))]

"""DIN: attention of a target over 100 clicks by a small MLP."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, items, dim):
        super().__init__()
        self.items = nn.Embedding(items, dim)
        self.attention = nn.Sequential(nn.Linear(4 * dim, 80), nn.Sigmoid(), nn.Linear(80, 40), nn.Sigmoid(), nn.Linear(40, 1))
        self.top = nn.Sequential(
            nn.Linear(3 * dim, 200), nn.BatchNorm1d(200), nn.PReLU(), nn.Linear(200, 80), nn.PReLU(), nn.Linear(80, 1)
        )

    def forward(self, history, target, valid):
        x, goal = self.items(history), self.items(target)
        wide = goal.unsqueeze(1).expand_as(x)
        scores = self.attention(torch.cat([x, wide, x - wide, x * wide], 2)).squeeze(2)
        scores = scores.masked_fill(~valid, float("-inf")).softmax(1)
        pooled = torch.bmm(scores.unsqueeze(1), x).squeeze(1)
        return torch.sigmoid(self.top(torch.cat([pooled, goal, pooled * goal], 1)))


def get_init_inputs():
    return [1_000_000, 64]


def get_inputs():
    return [torch.randint(0, 1_000_000, (1024, 100)), torch.randint(0, 1_000_000, (1024,)), torch.rand(1024, 100) > 0.3]

"""Jagged histories of 100,000 events: gated by a candidate of their user, averaged by segment, then FM and MLP."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, items, dim, users):
        super().__init__()
        self.users = users
        self.items = nn.Embedding(items, dim)
        self.ages = nn.Embedding(128, dim)
        self.gate = nn.Sequential(nn.Linear(3 * dim, 64), nn.SiLU(), nn.Linear(64, 1))
        self.top = nn.Sequential(nn.Linear(3 * dim, 192), nn.SiLU(), nn.Linear(192, 1))

    def forward(self, ids, age, segment, candidate):
        wanted = self.items(candidate)
        x = self.items(ids) + self.ages(torch.bucketize(age, torch.linspace(0, 1, 127, device=age.device)))
        each = wanted.index_select(0, segment)
        x = x * torch.sigmoid(self.gate(torch.cat([x, each, x - each], 1)))
        total = torch.zeros_like(wanted).index_add(0, segment, x)
        count = torch.zeros(self.users, device=x.device).index_add(0, segment, torch.ones_like(age))
        mean = total / count.clamp(min=1).unsqueeze(1)
        return torch.sigmoid(self.top(torch.cat([mean, wanted, mean * wanted], 1)))


def get_init_inputs():
    return [600_000, 80, 1024]


def get_inputs():
    segment = torch.randint(0, 1024, (100_000,)).sort().values
    ids, candidate = torch.randint(0, 600_000, (100_000,)), torch.randint(0, 600_000, (1024,))
    return [ids, torch.rand(100_000), segment, candidate]

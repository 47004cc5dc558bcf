"""Caser: horizontal and vertical convolutions over the last ten items."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, items, users, dim, length, filters):
        super().__init__()
        self.items = nn.Embedding(items, dim)
        self.users = nn.Embedding(users, dim)
        self.vertical = nn.Conv2d(1, 4, (length, 1))
        self.horizontal = nn.ModuleList(nn.Conv2d(1, filters, (height, dim)) for height in range(1, length + 1))
        self.hidden = nn.Linear(4 * dim + filters * length, dim)
        self.out = nn.Linear(2 * dim, 1)

    def forward(self, ids, users):
        x = self.items(ids).unsqueeze(1)
        found = [self.vertical(x).flatten(1)]
        for layer in self.horizontal:
            found.append(torch.relu(layer(x)).squeeze(3).amax(2))
        x = torch.relu(self.hidden(torch.cat(found, 1)))
        return self.out(torch.cat([x, self.users(users)], 1))


def get_init_inputs():
    return [200_000, 500_000, 64, 10, 16]


def get_inputs():
    return [torch.randint(0, 200_000, (2048, 10)), torch.randint(0, 500_000, (2048,))]

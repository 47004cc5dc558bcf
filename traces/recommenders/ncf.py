"""Neural collaborative filtering: products and an MLP of a user and an item, batch 65,536."""

import torch
from torch import nn


def mlp(*widths):
    layers = []
    for wide, next_ in zip(widths, widths[1:]):
        layers += [nn.Linear(wide, next_), nn.ReLU()]
    return nn.Sequential(*layers)


class Model(nn.Module):
    def __init__(self, users, items, dim):
        super().__init__()
        self.users = nn.Embedding(users, dim)
        self.items = nn.Embedding(items, dim)
        self.deep_users = nn.Embedding(users, 2 * dim)
        self.deep_items = nn.Embedding(items, 2 * dim)
        self.deep = mlp(4 * dim, 256, 128, 64)
        self.out = nn.Linear(dim + 64, 1)

    def forward(self, users, items):
        products = self.users(users) * self.items(items)
        deep = self.deep(torch.cat([self.deep_users(users), self.deep_items(items)], 1))
        return self.out(torch.cat([products, deep], 1))


def get_init_inputs():
    return [140_000, 27_000, 64]


def get_inputs():
    return [torch.randint(0, 140_000, (65536,)), torch.randint(0, 27_000, (65536,))]

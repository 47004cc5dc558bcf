"""CAN: the row of an item is a small MLP that 50 clicks of the user go through, in three orders."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, users, items, widths):
        super().__init__()
        self.sizes = list(zip(widths, widths[1:]))
        self.clicks = nn.Embedding(users, widths[0])
        self.weights = nn.Embedding(items, sum(wide * next_ for wide, next_ in self.sizes))
        self.plain = nn.Embedding(items, 64)
        joined = 3 * sum(widths[1:]) + 64
        self.top = nn.Sequential(nn.Linear(joined, 200), nn.PReLU(), nn.Linear(200, 80), nn.PReLU(), nn.Linear(80, 2))

    def forward(self, clicks, item, mask):
        row = self.weights(item)
        parts = row.split([wide * next_ for wide, next_ in self.sizes], 1)
        found, x = [self.plain(item)], self.clicks(clicks)
        for order in (1, 2, 3):
            h = x**order
            for part, (wide, next_) in zip(parts, self.sizes):
                h = torch.tanh(torch.bmm(h, part.view(-1, wide, next_)))
                found.append((h * mask).sum(1))
        return torch.softmax(self.top(torch.cat(found, 1)), 1)


def get_init_inputs():
    return [500_000, 200_000, (16, 16, 8)]


def get_inputs():
    users, items, _ = get_init_inputs()
    mask = (torch.rand(2048, 50, 1) > 0.3).float()
    return [torch.randint(0, users, (2048, 50)), torch.randint(0, items, (2048,)), mask]

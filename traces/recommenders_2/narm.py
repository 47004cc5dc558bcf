"""NARM: a GRU over 30 clicks, attention of the last state over all of them, scores of 40,000 items."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, items, dim, hidden):
        super().__init__()
        self.items = nn.Embedding(items, dim, padding_idx=0)
        self.gru = nn.GRU(dim, hidden, batch_first=True)
        self.of_last = nn.Linear(hidden, hidden, bias=False)
        self.of_each = nn.Linear(hidden, hidden, bias=False)
        self.weight = nn.Linear(hidden, 1, bias=False)
        self.project = nn.Linear(2 * hidden, dim, bias=False)

    def forward(self, ids):
        states, last = self.gru(self.items(ids))
        last = last[0]
        mixed = torch.sigmoid(self.of_each(states) + self.of_last(last).unsqueeze(1))
        weights = self.weight(mixed) * (ids > 0).unsqueeze(2)
        session = torch.cat([(weights * states).sum(1), last], 1)
        return self.project(session) @ self.items.weight.T


def get_init_inputs():
    return [40_000, 96, 128]


def get_inputs():
    return [torch.randint(0, 40_000, (256, 30))]

"""AFN: logarithms of 39 fields, 600 neurons learn the orders of products, exponentials, an MLP."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, ids, fields, dim, neurons):
        super().__init__()
        self.table = nn.Embedding(ids, dim)
        self.before = nn.BatchNorm1d(dim)
        self.orders = nn.Linear(fields, neurons)
        self.after = nn.BatchNorm1d(dim)
        self.hidden = nn.Sequential(nn.Linear(dim * neurons, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU())
        self.out = nn.Linear(400, 1)

    def forward(self, ids):
        x = self.table(ids).transpose(1, 2)
        x = self.before(torch.log(x.abs().clamp(min=1e-5)))
        x = self.after(torch.exp(self.orders(x)))
        return torch.sigmoid(self.out(self.hidden(x.flatten(1))))


def get_init_inputs():
    return [1_000_000, 39, 10, 600]


def get_inputs():
    return [torch.randint(0, 1_000_000, (2048, 39))]

"""Behaviour sequence transformer: one encoder layer over 20 items, then an MLP."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, items, dim, length):
        super().__init__()
        self.items = nn.Embedding(items, dim)
        self.places = nn.Embedding(length, dim)
        self.layer = nn.TransformerEncoderLayer(dim, 8, 256, dropout=0.0, batch_first=True)
        self.top = nn.Sequential(
            nn.Linear(length * dim, 1024), nn.LeakyReLU(), nn.Linear(1024, 512), nn.LeakyReLU(), nn.Linear(512, 1)
        )
        self.register_buffer("at", torch.arange(length))

    def forward(self, ids):
        x = self.items(ids) + self.places(self.at)
        return torch.sigmoid(self.top(self.layer(x).flatten(1)))


def get_init_inputs():
    return [2_000_000, 64, 21]


def get_inputs():
    return [torch.randint(0, 2_000_000, (4096, 21))]

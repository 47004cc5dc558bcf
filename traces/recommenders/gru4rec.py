"""GRU4Rec: sessions of 20 items, scores against 50,000."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, items, dim, hidden):
        super().__init__()
        self.items = nn.Embedding(items, dim)
        self.gru = nn.GRU(dim, hidden, batch_first=True)
        self.out = nn.Linear(hidden, items)

    def forward(self, ids):
        return self.out(self.gru(self.items(ids))[0][:, -1])


def get_init_inputs():
    return [50_000, 128, 512]


def get_inputs():
    return [torch.randint(0, 50_000, (512, 20))]

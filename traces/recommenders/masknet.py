"""MaskNet: three parallel blocks whose masks come from the embeddings."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.mask = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.hidden = nn.Sequential(nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.ReLU())

    def forward(self, x, normed):
        return self.hidden(self.mask(x) * normed)


class Model(nn.Module):
    def __init__(self, fields, rows, dim, hidden):
        super().__init__()
        self.table = nn.Embedding(rows, dim)
        self.norm = nn.LayerNorm(dim)
        self.blocks = nn.ModuleList(Block(fields * dim, hidden) for _ in range(3))
        self.out = nn.Linear(3 * hidden, 1)

    def forward(self, ids):
        x = self.table(ids)
        normed = self.norm(x).flatten(1)
        return self.out(torch.cat([block(x.flatten(1), normed) for block in self.blocks], 1))


def get_init_inputs():
    return [30, 1_000_000, 16, 256]


def get_inputs():
    return [torch.randint(0, 1_000_000, (8192, 30))]

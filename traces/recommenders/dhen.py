"""DHEN: two layers, each an ensemble of attention, an MLP and pairwise products over 48 embeddings."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, count, dim):
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.flat = nn.Sequential(nn.Linear(count * dim, 512), nn.ReLU(), nn.Linear(512, count * dim))
        self.pairs = nn.Linear(count * count, count * dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        products = torch.bmm(x, x.transpose(1, 2)).flatten(1)
        mixed = self.attention(x, x, x, need_weights=False)[0]
        return self.norm(x + mixed + self.flat(x.flatten(1)).view_as(x) + self.pairs(products).view_as(x))


class Model(nn.Module):
    def __init__(self, count, dim):
        super().__init__()
        self.blocks = nn.Sequential(Block(count, dim), Block(count, dim))
        self.out = nn.Linear(count * dim, 1)

    def forward(self, x):
        return self.out(self.blocks(x).flatten(1))


def get_init_inputs():
    return [48, 128]


def get_inputs():
    return [torch.rand(2048, 48, 128)]

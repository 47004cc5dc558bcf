"""NextItNet: dilated causal convolutions over 100 items."""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, dim, dilation):
        super().__init__()
        self.reach = 2 * dilation
        self.layer = nn.Conv1d(dim, dim, 3, dilation=dilation)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        y = self.layer(F.pad(x, (self.reach, 0))).transpose(1, 2)
        return x + torch.relu(self.norm(y)).transpose(1, 2)


class Model(nn.Module):
    def __init__(self, items, dim):
        super().__init__()
        self.items = nn.Embedding(items, dim)
        self.blocks = nn.Sequential(*(Block(dim, dilation) for dilation in (1, 2, 4, 8, 1, 2, 4, 8)))
        self.out = nn.Linear(dim, items)

    def forward(self, ids):
        x = self.blocks(self.items(ids).transpose(1, 2))
        return self.out(x[:, :, -1])


def get_init_inputs():
    return [65_000, 128]


def get_inputs():
    return [torch.randint(0, 65_000, (256, 100))]

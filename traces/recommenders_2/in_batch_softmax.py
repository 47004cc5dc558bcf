"""Retrieval in bf16: a query against the 8,192 items of the batch and as many drawn ones, fp32 loss."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, users, items, dim):
        super().__init__()
        self.users = nn.Embedding(users, dim)
        self.items = nn.Embedding(items, dim)
        self.query = nn.Sequential(nn.Linear(dim + 96, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 256))
        self.item = nn.Sequential(nn.Linear(dim, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256))
        self.bfloat16()

    def forward(self, user, context, item, drawn):
        left = self.query(torch.cat([self.users(user), context], 1))
        right = self.item(self.items(torch.cat([item, drawn])))
        logits = (left @ right.T).float() / 16
        hit = item.unsqueeze(1) == drawn.unsqueeze(0)
        logits = torch.cat([logits[:, : len(item)], logits[:, len(item) :].masked_fill(hit, -1e4)], 1)
        return F.cross_entropy(logits, torch.arange(len(item), device=item.device))


def get_init_inputs():
    return [1_000_000, 300_000, 64]


def get_inputs():
    user, item, drawn = (torch.randint(0, top, (8192,)) for top in (1_000_000, 300_000, 300_000))
    return [user, torch.rand(8192, 96).bfloat16(), item, drawn]

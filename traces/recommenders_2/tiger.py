"""TIGER: a causal transformer of six layers over 300 semantic codes of 75 items, next codes of 1,024, bf16."""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.down = nn.Linear(dim, 8 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        q, k, v = (p.unflatten(2, (self.heads, -1)).transpose(1, 2) for p in self.qkv(self.first(x)).chunk(3, 2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        gate, value = self.up(self.second(x)).chunk(2, 2)
        return x + self.down(F.silu(gate) * value)


class Model(nn.Module):
    def __init__(self, codes, levels, dim, heads, layers):
        super().__init__()
        self.codes = nn.Embedding(codes * levels, dim)
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(layers)), nn.RMSNorm(dim))
        self.head = nn.Linear(dim, codes * levels, bias=False)
        self.bfloat16()

    def forward(self, ids):
        logits = self.head(self.blocks(self.codes(ids[:, :-1])))
        return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def get_init_inputs():
    return [256, 4, 384, 6, 6]


def get_inputs():
    return [torch.randint(0, 256, (64, 301)) + torch.arange(301) % 4 * 256]

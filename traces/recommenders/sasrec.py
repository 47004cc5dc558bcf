"""SASRec: two causal layers over 200 items, logits of one positive and one negative each."""

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.first = nn.LayerNorm(dim)
        self.second = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.hidden = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Dropout(0.2), nn.Linear(dim, dim), nn.Dropout(0.2))

    def forward(self, x):
        q, k, v = self.qkv(self.first(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.hidden(self.second(x))


class Model(nn.Module):
    def __init__(self, items, dim, length):
        super().__init__()
        self.items = nn.Embedding(items, dim)
        self.places = nn.Parameter(torch.zeros(length, dim))
        self.layers = nn.Sequential(Layer(dim, 2), Layer(dim, 2))
        self.norm = nn.LayerNorm(dim)

    def forward(self, ids, positive, negative):
        x = self.norm(self.layers(self.items(ids) * 8 + self.places))
        return (x * self.items(positive)).sum(2), (x * self.items(negative)).sum(2)


def get_init_inputs():
    return [60_000, 64, 200]


def get_inputs():
    return [torch.randint(0, 60_000, (512, 200)) for _ in range(3)]

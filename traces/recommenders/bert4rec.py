"""BERT4Rec: two encoder layers over 200 items, scores of 30 masked places against 30,000 items."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, items, dim, length):
        super().__init__()
        self.items = nn.Embedding(items, dim)
        self.places = nn.Parameter(torch.zeros(length, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.1, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)

    def forward(self, ids, masked):
        x = self.encoder(self.norm(self.items(ids) + self.places))
        x = x.gather(1, masked[..., None].expand(-1, -1, x.shape[-1]))
        return x @ self.items.weight.T


def get_init_inputs():
    return [30_000, 256, 200]


def get_inputs():
    return [torch.randint(0, 30_000, (128, 200)), torch.randint(0, 200, (128, 30))]

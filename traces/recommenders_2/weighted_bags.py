"""Ten weighted jagged bags (offsets, per-sample weights) of tables of 500,000 rows, sums beside an MLP."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features, rows, dim):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum") for _ in range(features))
        self.dense = nn.Sequential(nn.Linear(24, 128), nn.ReLU(), nn.Linear(128, dim))
        self.top = nn.Sequential(nn.Linear((features + 1) * dim, 384), nn.ReLU(), nn.Linear(384, 96), nn.ReLU())
        self.out = nn.Linear(96, 1)

    def forward(self, dense, ids, weights, offsets):
        pooled = [self.dense(dense)]
        for i, table in enumerate(self.tables):
            pooled.append(table(ids[i], offsets[i], per_sample_weights=weights[i]))
        return self.out(self.top(torch.cat(pooled, 1)))


def get_init_inputs():
    return [10, 500_000, 48]


def get_inputs():
    batch, looked_up = 3072, 3072 * 14
    offsets = torch.randint(0, looked_up, (10, batch)).sort(1).values
    offsets[:, 0] = 0
    return [torch.rand(batch, 24), torch.randint(0, 500_000, (10, looked_up)), torch.rand(10, looked_up), offsets]

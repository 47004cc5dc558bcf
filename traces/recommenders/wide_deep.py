"""Wide and deep: a linear part over sparse ids beside an MLP with dropout."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, fields, rows, dim, dense):
        super().__init__()
        self.wide = nn.EmbeddingBag(rows, 1, mode="sum")
        self.tables = nn.ModuleList(nn.Embedding(rows // fields, dim) for _ in range(fields))
        self.deep = nn.Sequential(
            nn.Linear(fields * dim + dense, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)
        )

    def forward(self, dense, ids, crossed):
        x = torch.cat([table(ids[:, i]) for i, table in enumerate(self.tables)] + [dense], 1)
        return torch.sigmoid(self.wide(crossed) + self.deep(x))


def get_init_inputs():
    return [20, 1_000_000, 64, 13]


def get_inputs():
    return [torch.rand(8192, 13), torch.randint(0, 50_000, (8192, 20)), torch.randint(0, 1_000_000, (8192, 40))]

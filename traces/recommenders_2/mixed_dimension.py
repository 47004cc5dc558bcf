"""DLRM of tables of mixed dimensions (8 to 128) by popularity, projected to one."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, sizes, dim):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, narrow, mode="mean") for rows, narrow in sizes)
        self.projections = nn.ModuleList(nn.Linear(narrow, dim, bias=False) for _, narrow in sizes)
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, dim), nn.ReLU())
        first, second = torch.triu_indices(len(sizes) + 1, len(sizes) + 1, 1)
        self.register_buffer("pairs", first * (len(sizes) + 1) + second)
        self.top = nn.Sequential(nn.Linear(dim + len(first), 768), nn.ReLU(), nn.Linear(768, 384), nn.ReLU())
        self.out = nn.Linear(384, 1)

    def forward(self, dense, *ids):
        x = self.bottom(dense)
        fields = [project(table(i)) for table, project, i in zip(self.tables, self.projections, ids)]
        rows = torch.stack([x, *fields], 1)
        products = torch.matmul(rows, rows.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.out(self.top(torch.cat([x, products], 1)))


def get_init_inputs():
    return [[(1_000_000, 8)] * 8 + [(200_000, 32)] * 6 + [(10_000, 128)] * 4, 128]


def get_inputs():
    sizes, _ = get_init_inputs()
    return [torch.rand(8192, 13), *(torch.randint(0, rows, (8192, 5)) for rows, _ in sizes)]

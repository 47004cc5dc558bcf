"""DLRM under bf16 autocast: one joint table of 4 million rows, 20 features of 3 ids, logits to a loss."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, rows, features, dim):
        super().__init__()
        self.table = nn.EmbeddingBag(rows, dim, mode="sum", _weight=torch.empty(rows, dim).uniform_(-0.01, 0.01))
        self.register_buffer("starts", torch.arange(features).view(1, -1, 1) * (rows // features))
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, dim), nn.ReLU())
        first, second = torch.tril_indices(features + 1, features + 1, -1)
        self.register_buffer("below", first * (features + 1) + second)
        self.top = nn.Sequential(nn.Linear(dim + len(self.below), 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU())
        self.out = nn.Linear(512, 1)

    def forward(self, dense, ids, labels):
        pooled = self.table((ids + self.starts).flatten(0, 1)).view(len(ids), -1, self.table.embedding_dim)
        with torch.autocast(dense.device.type, torch.bfloat16):
            x = self.bottom(dense)
            rows = torch.cat([x.unsqueeze(1), pooled], 1)
            products = torch.bmm(rows, rows.mT).flatten(1)[:, self.below]
            logits = self.out(self.top(torch.cat([x, products], 1)))
        return F.binary_cross_entropy_with_logits(logits.squeeze(1).float(), labels)


def get_init_inputs():
    return [4_000_000, 20, 64]


def get_inputs():
    return [torch.rand(8192, 13), torch.randint(0, 200_000, (8192, 20, 3)), torch.randint(0, 2, (8192,)).float()]

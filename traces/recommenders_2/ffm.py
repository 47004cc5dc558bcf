"""FFM: 22 fields, a row of each id holds one vector per other field, batch 4,096."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, ids, fields, dim):
        super().__init__()
        self.shape = (fields, fields, dim)
        self.vectors = nn.Embedding(ids, fields * dim)
        self.linear = nn.Embedding(ids, 1)
        self.bias = nn.Parameter(torch.zeros(1))
        self.register_buffer("starts", torch.arange(fields) * (ids // fields))
        self.register_buffer("above", torch.triu(torch.ones(fields, fields), 1))

    def forward(self, ids):
        ids = ids + self.starts
        x = self.vectors(ids).view(-1, *self.shape)
        products = (x * x.transpose(1, 2)).sum(3) * self.above
        return torch.sigmoid(self.bias + self.linear(ids).sum((1, 2)) + products.sum((1, 2)))


def get_init_inputs():
    return [440_000, 22, 8]


def get_inputs():
    return [torch.randint(0, 20_000, (4096, 22))]

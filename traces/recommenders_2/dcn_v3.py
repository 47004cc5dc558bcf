"""DCN-v3: deep and shallow crosses whose masked halves filter noise, a loss of each and of their mean."""

import torch
from torch import nn


class Cross(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Linear(width, width // 2, bias=False)
        self.norm = nn.LayerNorm(width // 2)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x, times):
        c = self.weight(x)
        return x + times * (torch.cat([c, c * torch.relu(self.norm(c))], 1) + self.bias)


class Model(nn.Module):
    def __init__(self, ids, fields, dim, layers):
        super().__init__()
        self.table = nn.Embedding(ids, dim)
        self.deep, self.shallow = (nn.ModuleList(Cross(fields * dim) for _ in range(layers)) for _ in range(2))
        self.of_deep, self.of_shallow = nn.Linear(fields * dim, 1), nn.Linear(fields * dim, 1)

    def forward(self, ids, labels):
        first = deep = shallow = self.table(ids).flatten(1)
        for of_deep, of_shallow in zip(self.deep, self.shallow):
            deep, shallow = of_deep(deep, deep), of_shallow(shallow, first)
        left, right = self.of_deep(deep).squeeze(1), self.of_shallow(shallow).squeeze(1)
        loss = nn.BCEWithLogitsLoss()
        whole, left, right = loss((left + right) / 2, labels), loss(left, labels), loss(right, labels)
        return whole + torch.relu(left - whole.detach()) * left + torch.relu(right - whole.detach()) * right


def get_init_inputs():
    return [1_500_000, 36, 24, 4]


def get_inputs():
    return [torch.randint(0, 1_500_000, (7168, 36)), torch.randint(0, 2, (7168,)).float()]

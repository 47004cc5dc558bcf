"""Sparse experts: each of 16 takes the 768 of 6,144 samples that its gate scores highest, in bf16."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, width, hidden, experts, taken):
        super().__init__()
        self.taken = taken
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, width, hidden).uniform_(-0.05, 0.05))
        self.down = nn.Parameter(torch.empty(experts, hidden, width).uniform_(-0.05, 0.05))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, 2)
        self.bfloat16()

    def forward(self, x):
        scores = torch.softmax(self.gate(x).float(), 1)
        weights, chosen = torch.topk(scores.T, self.taken, dim=1)
        inside = torch.bmm(F.gelu(torch.bmm(x[chosen], self.up)), self.down)
        inside = (inside * weights.unsqueeze(2).to(inside.dtype)).flatten(0, 1)
        return self.out(self.norm(x.index_add(0, chosen.flatten(), inside)))


def get_init_inputs():
    return [512, 1024, 16, 768]


def get_inputs():
    return [torch.rand(6144, 512).bfloat16()]

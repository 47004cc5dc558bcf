"""A tower of wide layers in bf16 with layer norms and SiLU."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        made = []
        for _ in range(layers):
            made += [nn.Linear(width, width), nn.LayerNorm(width), nn.SiLU()]
        self.layers = nn.Sequential(*made).to(torch.bfloat16)

    def forward(self, x):
        return self.layers(x)


def get_init_inputs():
    return [3072, 6]


def get_inputs():
    return [torch.rand(4096, 3072).to(torch.bfloat16)]

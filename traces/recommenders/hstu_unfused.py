"""Two HSTU layers of PyTorch's operators over padded sequences, in bf16."""

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.uvqk = nn.Linear(dim, 4 * dim)
        self.gated = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, causal):
        u, v, q, k = F.silu(self.uvqk(self.norm(x))).chunk(4, dim=2)
        v, q, k = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (v, q, k))
        scores = F.silu(q @ k.transpose(2, 3)) / x.shape[1] * causal
        mixed = (scores @ v).transpose(1, 2).flatten(2)
        return x + self.out(self.gated(mixed) * u)


class Model(nn.Module):
    def __init__(self, dim, heads, length):
        super().__init__()
        self.layers = nn.ModuleList([Layer(dim, heads), Layer(dim, heads)]).to(torch.bfloat16)
        self.register_buffer("causal", torch.tril(torch.ones(length, length)).to(torch.bfloat16))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, self.causal)
        return x


def get_init_inputs():
    return [256, 4, 1024]


def get_inputs():
    return [torch.rand(16, 1024, 256).to(torch.bfloat16)]

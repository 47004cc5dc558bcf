"""DSSM: two towers with layer norms, cosine of their outputs with 50 negatives."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, width, dim):
        super().__init__()
        self.user = nn.Sequential(nn.Linear(width, 1024), nn.LayerNorm(1024), nn.Tanh(), nn.Linear(1024, dim))
        self.item = nn.Sequential(nn.Linear(width // 2, 512), nn.LayerNorm(512), nn.Tanh(), nn.Linear(512, dim))

    def forward(self, user, items):
        return torch.log_softmax(20 * F.cosine_similarity(self.user(user).unsqueeze(1), self.item(items), dim=2), 1)


def get_init_inputs():
    return [1024, 128]


def get_inputs():
    return [torch.rand(1024, 1024), torch.rand(1024, 51, 512)]

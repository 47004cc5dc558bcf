"""Two towers and a softmax over the batch of 4,096, corrected by how often items are drawn."""

import torch
from torch import nn
from torch.nn import functional as F


def mlp(*widths):
    layers = []
    for wide, next_ in zip(widths, widths[1:]):
        layers += [nn.Linear(wide, next_), nn.ReLU()]
    return nn.Sequential(*layers)


class Model(nn.Module):
    def __init__(self, users, items, dim):
        super().__init__()
        self.users = nn.EmbeddingBag(users, dim, mode="mean")
        self.items = nn.EmbeddingBag(items, dim, mode="mean")
        self.user_tower = mlp(dim, 512, 256, 128)
        self.item_tower = mlp(dim, 512, 256, 128)

    def forward(self, user, item, log_drawn):
        left = F.normalize(self.user_tower(self.users(user)), dim=1)
        right = F.normalize(self.item_tower(self.items(item)), dim=1)
        logits = left @ right.T / 0.05 - log_drawn
        return F.cross_entropy(logits, torch.arange(len(logits), device=logits.device))


def get_init_inputs():
    return [2_000_000, 500_000, 128]


def get_inputs():
    return [torch.randint(0, 2_000_000, (4096, 30)), torch.randint(0, 500_000, (4096, 8)), torch.rand(4096)]

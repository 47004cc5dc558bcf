"""Mult-VAE over clicks of 20,000 items."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, items, hidden, latent):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.encoder = nn.Sequential(nn.Linear(items, hidden), nn.Tanh(), nn.Linear(hidden, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.Tanh(), nn.Linear(hidden, items))

    def forward(self, x):
        mean, spread = self.encoder(self.drop(F.normalize(x))).chunk(2, dim=1)
        latent = mean + torch.randn_like(mean) * torch.exp(0.5 * spread)
        scores = torch.log_softmax(self.decoder(latent), 1)
        apart = -0.5 * (1 + spread - mean**2 - spread.exp()).sum(1).mean()
        return -(scores * x).sum(1).mean() + 0.2 * apart


def get_init_inputs():
    return [20_000, 600, 200]


def get_inputs():
    return [(torch.rand(500, 20_000) > 0.99).float()]
